// The random Hadamard transform of both operands of a product (Quantizer::hadamard). Not a public header.
#pragma once

#include <vector>

#include "../core/quantize/quantizer.h"

namespace gradual::amp {

// The elements of a group that the transform negates first. HadamardSigns::fixed: the transform is random, but the same
// in every product and run.
std::vector<bool> fixed_signs(HadamardSize of);
// HadamardSigns::drawn. Error in a recorded step (cuda::Graph).
std::vector<bool> drawn_signs(HadamardSize of, RandomKey key);

// `t` [.., k, ..], f32 or f64, transformed in groups along `axis`. Zeros fill the last group, so that a product of two
// operands that are transformed along the axis that it contracts is the product of the operands, up to rounding.
Tensor transformed(const Tensor& t, int axis, const std::vector<bool>& signs);

}  // namespace gradual::amp
