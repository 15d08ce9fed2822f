// Samples and targets as two tensors. Overlapping windows of a text are a strided view. A dataset that computes its
// samples passes a function to DataLoader.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../core/tensor/tensor.h"

namespace gradual::data {

// The tensors of samples by name, each [N, ...].
using Fields = std::vector<std::pair<std::string, Tensor>>;

struct Dataset {
  Tensor inputs{};           // [N, ...]
  Tensor targets{};          // [N, ...]; class numbers are i64
  std::int64_t classes = 0;  // number of classes (or characters); 0: targets are not class numbers
  std::string name{};        // for tables and reports
  std::int64_t tokens = 0;   // number of different inputs, where they are i64; 0: as many as classes
  Fields fields{};           // of samples with names: all tensors; inputs is the first of them, targets the last

  std::int64_t size() const;  // N; Error if the tensors differ in N
};

struct Batch {
  Tensor inputs;
  Tensor targets;
  std::int64_t first = 0;  // the samples of a part: first
  std::int64_t whole = 0;  // .. of a batch of `whole`; 0: all of them
  Fields fields = {};      // of samples with names, as in Dataset
  std::int64_t size() const { return inputs.defined() ? inputs.size(0) : 0; }
};

struct Split {
  Dataset train;
  Dataset test;
};

// Copies of the given samples, in the given order. Error for an index that is not in [0, N).
Batch take(const Dataset& dataset, const std::vector<std::int64_t>& indices);

// `train_count` samples drawn by seed, and the rest, both in the drawn order. The order depends on the seed alone.
Split split(const Dataset& dataset, std::int64_t train_count, std::uint64_t seed = 0);

}  // namespace gradual::data
