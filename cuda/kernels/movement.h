// Copies between tensors of one device.
#pragma once

#include "../../core/tensor/tensor.h"

namespace gradual::cuda {

// out[..] = x[..] broadcast to out's sizes and converted to its dtype; any strides. The two must not overlap.
void copy_elements(const Tensor& out, const Tensor& x);
// Sets all elements to `value`, rounded to the dtype.
void fill_elements(const Tensor& t, double value);
// A row-major copy of x, in workspace memory.
Tensor copied(const Tensor& x, DType dtype);
// x itself if it is row-major and of that dtype, else a copy.
Tensor dense(const Tensor& x, DType dtype);
// `source`, or a copy if it overlaps x, which is being written (core/kernels/loops.h).
Tensor readable(const Tensor& x, const Tensor& source);

}  // namespace gradual::cuda
