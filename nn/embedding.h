// A table of vectors.
#pragma once

#include <optional>
#include <string>

#include "../core/ops/ops.h"
#include "../core/support/error.h"
#include "init.h"
#include "module.h"

namespace gradual::nn {

struct EmbeddingOptions {
  // The vector of this entry starts as zeros and gets no gradient: it stands for places that are padded.
  std::optional<std::int64_t> padding_idx = {};
};

// A module whose weight is read by rows and enters no product.
struct LookupTable {
  virtual ~LookupTable() = default;
};

// i64 indices [..] -> [.., size]; weight [entries, size] starts from N(0, 1).
struct Embedding : Layer, LookupTable {
  Embedding(std::int64_t entries, std::int64_t size, EmbeddingOptions o = {})
      : weight(register_parameter("weight",
                                  empty({count("Embedding", "entries", entries), count("Embedding", "size", size)}))),
        options_(o) {
    if (o.padding_idx && (*o.padding_idx < 0 || *o.padding_idx >= entries))
      throw_error("Embedding: padding_idx is " + std::to_string(*o.padding_idx) + "; allowed are 0 to " +
                  std::to_string(entries - 1));
    init::normal_(weight);
    if (o.padding_idx) weight.detach().narrow(0, *o.padding_idx, 1).fill_(0);
  }
  Tensor forward(const Tensor& indices) override {
    const Tensor vectors = embedding(weight, indices);
    if (!options_.padding_idx) return vectors;
    const Tensor padded = unsqueeze(eq(indices, static_cast<double>(*options_.padding_idx)), -1);
    return where(padded, vectors.detach(), vectors);
  }

  Tensor& weight;

 private:
  EmbeddingOptions options_;
};

}  // namespace gradual::nn
