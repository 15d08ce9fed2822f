// Copies between tensors of one device.
#pragma once

#include "../../core/tensor/tensor.h"

namespace gradual::cuda {

// out[..] = x[..] broadcast to out's sizes and converted to its dtype; any strides. The two must not overlap.
void copy_elements(const Tensor& out, const Tensor& x);
// All elements become `value`, rounded to the dtype.
void fill_elements(const Tensor& t, double value);
// x's numbers in a row-major tensor of their own, in workspace memory.
Tensor copied(const Tensor& x, DType dtype);
// x itself where it is row-major and of that dtype, else a copy.
Tensor dense(const Tensor& x, DType dtype);
// What to read of `source` while x is written: a copy where they overlap (core/kernels/loops.h).
Tensor readable(const Tensor& x, const Tensor& source);

}  // namespace gradual::cuda
