// Moments that are codes and scales between steps (UpdateOptions::moments).
#pragma once

#include "optimizer.h"

namespace gradual::optim {

// Error where a quantizer is none, or moments cannot be kept by it.
void check_moments(const UpdateOptions& options);
// Of the k-th moment of a parameter; null: the moment is kept as it is.
const Quantizer* moment_quantizer(const UpdateOptions& options, const Tensor& param, std::size_t k);
// The k-th moment of parameter `index` after `steps` steps; stochastic rounding is keyed by all of these.
QuantizedTensor encode_moment(const Tensor& moment, const Quantizer& quantizer, std::uint64_t seed, std::int64_t steps,
                              std::size_t index, std::size_t k);

// In a state dict, under `key` and a dot.
void save_moment(StateDict& to, const std::string& key, const QuantizedTensor& codes, const Quantizer& quantizer);
// Nothing where the state has no codes under that key. Error naming the key and the parameter `name` where they are not
// those that the quantizer (null: none) makes of the parameter's sizes. They lie on its device.
std::optional<QuantizedTensor> load_moment(const StateDict& from, const std::string& key, const std::string& name,
                                           const Tensor& param, const Quantizer* quantizer);

}  // namespace gradual::optim
