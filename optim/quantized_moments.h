// Moments stored as codes and scales between steps (UpdateOptions::moments).
#pragma once

#include "optimizer.h"

namespace gradual::optim {

// Error for an invalid quantizer, or one that does not suit moments.
void check_moments(const UpdateOptions& options);
// The quantizer of a parameter's k-th moment; null: the moment is not quantised.
const Quantizer* moment_quantizer(const UpdateOptions& options, const Tensor& param, std::size_t k);
// Identifies a moment; stochastic rounding is keyed by all of this.
struct MomentPlace {
  std::uint64_t seed = 0;
  std::int64_t steps = 0;  // of the parameter before this one
  // Unless null: the step count in GPU memory, which this step has already incremented.
  const std::int64_t* steps_there = nullptr;
  std::size_t index = 0, k = 0;  // of the parameter, of the moment
};
QuantizedTensor encode_moment(const Tensor& moment, const Quantizer& quantizer, const MomentPlace& place);
// Overwrites codes `to` by `from` of the same layout, on a GPU, unless *skipped is not 0 (null: always). Does not wait.
void replace_codes(const QuantizedTensor& to, const QuantizedTensor& from, const std::int64_t* skipped);

// Saves it in a state dict, under `key` and a dot.
void save_moment(StateDict& to, const std::string& key, const QuantizedTensor& codes, const Quantizer& quantizer);
// Loads codes onto the parameter's device; none if the state has no codes under `key`. Error naming the key and the
// parameter `name` if they do not match what the quantizer (null: none) makes for the parameter's sizes.
std::optional<QuantizedTensor> load_moment(const StateDict& from, const std::string& key, const std::string& name,
                                           const Tensor& param, const Quantizer* quantizer);

}  // namespace gradual::optim
