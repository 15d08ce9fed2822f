// A recorded call of a quantizer on other numbers, and how far its results may differ. Internal to tolerance().
#pragma once

#include <array>

#include "recorded_ops.h"

namespace gradual::lab {

// Error for a quantizer without bounds: scales that are searched for, rounded at random or in another way than to
// nearest, doubled by parts, under those of outer blocks, learned, or taken from the amax of more than the input; a
// gradient that is not straight, whose slopes would count as exact.
void check_quantizer(const RecordedOp& op);

// The outputs of the call on x, f64 and of the input's sizes; it is first rounded to the input's dtype. Random words
// are those of the recorded call.
std::array<Tensor, kMaxOutputs> run_quantizer(const RecordedOp& op, const Tensor& x);

// By how much they may differ from `y` = run_quantizer(op, x) if each element of x is within `error` of it. Scales grow
// with the largest magnitude under them, and every rounding keeps the order of numbers, at random too if the random
// word is the same. So the results lie between those of both ends of each element under both ends of its scale and of
// its factor, which is its inverse but for a stored 0: they are the same where no tie between two codes lies between
// the ends. Elements that are all 0 in place of the recorded ones have results of 0; their scale is not looked at.
std::array<Tensor, kMaxOutputs> quantizer_error(const RecordedOp& op, const Tensor& x, const Tensor& error,
                                                const std::array<Tensor, kMaxOutputs>& y);

}  // namespace gradual::lab
