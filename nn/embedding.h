// Embedding: rows of a table.
#pragma once

#include "module.h"

namespace gradual::nn {

struct EmbeddingOptions {
  DType dtype = DType::f32;
};

// i64 indices [..] -> [.., size]; weight [entries, size] starts from N(0, 1).
class Embedding : public Layer {
 public:
  Embedding(std::int64_t entries, std::int64_t size, EmbeddingOptions options = {});
  Tensor forward(const Tensor& indices) override;

  Tensor& weight;
};

}  // namespace gradual::nn
