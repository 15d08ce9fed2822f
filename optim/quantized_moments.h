// Moments stored as codes and scales between steps (UpdateOptions::moments).
#pragma once

#include <iterator>
#include <string>

#include "optimizer.h"

namespace gradual::optim {

// Error for an invalid quantizer, or one that does not suit moments.
void check_moments(const UpdateOptions& options);
// The quantizer of a parameter's k-th moment; null: the moment is not quantised.
const Quantizer* moment_quantizer(const UpdateOptions& options, const Tensor& param, std::size_t k);
// The tensors of a moment's codes. The last two may be undefined.
inline constexpr Tensor QuantizedTensor::*kPartsOfCodes[] = {&QuantizedTensor::codes, &QuantizedTensor::scales,
                                                             &QuantizedTensor::global_scale};

// The keys of a moment's codes in a state dict: that of the moment and one of these.
inline constexpr const char* kKeysOfCodes[] = {".quantizer", ".codes", ".scales", ".global_scale"};
// Whether the k-th moment may be codes.
inline bool may_be_codes(std::size_t k) { return k < std::size(UpdateOptions{}.moments); }

// Saves a moment in a state dict, under `key` and a dot.
void save_moment(StateDict& to, const std::string& key, const QuantizedTensor& codes, const Quantizer& quantizer);
// Loads codes onto the parameter's device; none if the state has no codes under `key`. Error naming the key and the
// parameter `name` if they do not match what the quantizer (null: none) makes for the parameter's sizes.
std::optional<QuantizedTensor> load_moment(const StateDict& from, const std::string& key, const std::string& name,
                                           const Tensor& param, const Quantizer* quantizer);

}  // namespace gradual::optim
