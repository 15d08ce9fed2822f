#include "embedding.h"

#include "../core/ops.h"
#include "init.h"

namespace gradual::nn {

Embedding::Embedding(std::int64_t entries, std::int64_t size, EmbeddingOptions options)
    : weight(register_parameter("weight", empty({entries, size}, {.dtype = options.dtype}))) {
  init::normal_(weight);
}

Tensor Embedding::forward(const Tensor& indices) { return embedding(weight, indices); }

}  // namespace gradual::nn
