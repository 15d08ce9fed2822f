// A table of vectors.
#pragma once

#include "../core/ops/ops.h"
#include "init.h"
#include "module.h"

namespace gradual::nn {

// i64 indices [..] -> [.., size]; weight [entries, size] starts from N(0, 1).
struct Embedding : Layer {
  Embedding(std::int64_t entries, std::int64_t size)
      : weight(register_parameter("weight",
                                  empty({count("Embedding", "entries", entries), count("Embedding", "size", size)}))) {
    init::normal_(weight);
  }
  Tensor forward(const Tensor& indices) override { return embedding(weight, indices); }

  Tensor& weight;
};

}  // namespace gradual::nn
