// sum and mean under an accumulator.
#pragma once

#include <cstdint>

#include "../tensor/tensor.h"

namespace gradual::cpu {

// The sum of x over the dims of the bit mask `dims`, divided by n, by the scope's accumulator: each output is the
// product of its elements, in row-major order, with ones. Returns false, with nothing written, without an accumulator
// or if x is f64 or integral.
bool sum_accumulated(const Tensor& x, std::uint32_t dims, double n, Tensor& out);

}  // namespace gradual::cpu
