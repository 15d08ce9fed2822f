// What the kinds of coded scales share: the format in which scales are rounded and kept.
#pragma once

#include "quantizer_kernels.h"

namespace gradual::detail {

// Under one scale of the tensor. Error that names the wrong option.
void check_two_levels(std::string_view kind, const Format& element, const Format& scale);
// Scales rounded in this format, the tensor's largest to `largest` if they are under one of the tensor.
void set_coded(ScaleSpec& spec, const Format& scale, double largest);
// The format of QuantizedTensor::scales: codes of bytes; others are kept as the f32 that they stand for.
Format stored_as(const Format& scale);

}  // namespace gradual::detail
