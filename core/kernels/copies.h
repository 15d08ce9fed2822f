// Copies between strided tensors on the CPU, and views for writing a part of a tensor.
#pragma once

#include <cstdint>

#include "loops.h"

namespace gradual::cpu {

// `length` entries of `t` along `dim` from `start`, every step-th.
Tensor part(const Tensor& t, int dim, std::int64_t start, std::int64_t length, std::int64_t step = 1);
// out[..] = x[..] broadcast to out's sizes and converted to its dtype; any strides. The two must not overlap.
void copy_elements(const Tensor& out, const Tensor& x);
// x's numbers in a tensor of their own, in workspace memory.
Tensor copied(const Tensor& x, DType dtype);
// Whether a write of x could change what is yet to be read of `source`: both lie on one storage, in different geometry.
bool overlaps(const Tensor& x, const Tensor& source);
// What to read of `source` while x is written: a copy where they overlap.
Tensor readable(const Tensor& x, const Tensor& source);

}  // namespace gradual::cpu
