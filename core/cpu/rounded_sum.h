// sum and mean under an accumulator.
#pragma once

#include <cstdint>

#include "../tensor/tensor.h"

namespace gradual::cpu {

// Under the scope's accumulator, if there is one and x is no f64: each output's elements in row-major order, their
// product with ones, divided by n. False where nothing was done.
bool sum_accumulated(const Tensor& x, std::uint32_t dims, double n, Tensor& out);

}  // namespace gradual::cpu
