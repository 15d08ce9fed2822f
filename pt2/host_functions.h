// Elementwise functions for which the library has no op. The host computes them: for f32 and narrower dtypes in f64,
// rounded once, quotients as stated. A GPU is waited for. Their gradients are made of ops.
#pragma once

#include <cstdint>

#include "../core/tensor/tensor.h"

namespace gradual::pt2 {

// f(x) of a floating tensor; the gradient is that of y times slope(x).
Tensor host_function(const Tensor& x, double (*f)(double), Tensor (*slope)(const Tensor& x));

// f(x, y) of integers of one dtype and one shape.
Tensor host_integers(const Tensor& x, const Tensor& y, std::int64_t (*f)(std::int64_t, std::int64_t));
// The angle of the point (x, y), with both of one floating dtype and one shape.
Tensor host_atan2(const Tensor& y, const Tensor& x);

enum class Toward : std::uint8_t { floor, zero };

// x / y rounded to an integer, and what is left of x then: with Toward::floor it has the sign of y, else that of x. x
// and y have one dtype and one shape. f64 is computed in f64, other floating dtypes in f32, as PyTorch does: the
// remainder of floats is exact up to one rounding, however large the quotient is. The quotient's gradient is 0.
// Error if an integer is divided by 0.
Tensor rounded_quotient(const Tensor& x, const Tensor& y, Toward by);
Tensor remainder_of(const Tensor& x, const Tensor& y, Toward by);

}  // namespace gradual::pt2
