// Moments that are codes and scales between steps (UpdateOptions::moments).
#pragma once

#include "optimizer.h"

namespace gradual::optim {

// Error where a quantizer is none, or moments cannot be kept by it.
void check_moments(const UpdateOptions& options);
// Of the k-th moment of a parameter; null: the moment is kept as it is.
const Quantizer* moment_quantizer(const UpdateOptions& options, const Tensor& param, std::size_t k);
// Where a moment belongs; stochastic rounding is keyed by all of this.
struct MomentPlace {
  std::uint64_t seed = 0;
  std::int64_t steps = 0;  // of the parameter before this one
  // In its GPU's memory instead, unless null: counted up by this step already.
  const std::int64_t* steps_there = nullptr;
  std::size_t index = 0, k = 0;  // of the parameter, of the moment
};
QuantizedTensor encode_moment(const Tensor& moment, const Quantizer& quantizer, const MomentPlace& place);
// Puts codes in the place of others alike, on a GPU, unless *skipped is not 0 there (null: never). Nobody waits.
void replace_codes(const QuantizedTensor& to, const QuantizedTensor& from, const std::int64_t* skipped);

// In a state dict, under `key` and a dot.
void save_moment(StateDict& to, const std::string& key, const QuantizedTensor& codes, const Quantizer& quantizer);
// Nothing where the state has no codes under that key. Error naming the key and the parameter `name` where they are not
// those that the quantizer (null: none) makes of the parameter's sizes. They lie on its device.
std::optional<QuantizedTensor> load_moment(const StateDict& from, const std::string& key, const std::string& name,
                                           const Tensor& param, const Quantizer* quantizer);

}  // namespace gradual::optim
