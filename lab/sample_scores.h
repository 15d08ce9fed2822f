// What a run gives on each sample of its test set. Differences between runs are paired by these (statistics.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../core/tensor/tensor.h"
#include "../data/dataset.h"

namespace gradual::lab {

// Which scores are better.
enum class Direction : std::uint8_t { higher, lower, count_ };
std::string_view to_string(Direction direction);  // "higher", "lower"

// Sums over the targets of each sample that count: one for an image, many for a window of text.
struct SampleScores {
  std::string metric = "accuracy";
  Direction better = Direction::higher;
  std::vector<std::uint32_t> sample = {};  // its content_name(): the same sample in runs of other seeds
  std::vector<float> counted = {};         // targets
  std::vector<float> loss = {};
  std::vector<float> score = {};  // of the metric; accuracy: right answers

  std::size_t size() const { return sample.size(); }
  bool empty() const { return sample.empty(); }
};

// A number made from the bytes of a sample and its target, rows `index` of the two. Different
// samples share one with a chance of 2^-32.
std::uint32_t content_name(const Tensor& inputs, const Tensor& targets, std::int64_t index);

// Adds the samples of one batch, which is on the CPU; logits as in add_score() (tasks.h), on any device. No observer
// sees the ops.
void add_samples(SampleScores& samples, const Tensor& logits, const data::Batch& batch);

}  // namespace gradual::lab
