// Copies between strided tensors on the CPU, and views for writing a part of a tensor.
#pragma once

#include <cstdint>

#include "loops.h"

namespace gradual::cpu {

// A view of `length` entries of `t` along `dim`: start, start + step, ...
Tensor part(const Tensor& t, int dim, std::int64_t start, std::int64_t length, std::int64_t step = 1);
// out[..] = x[..], with x broadcast to out's sizes and converted to out's dtype. Any strides; the two must not overlap.
void copy_elements(const Tensor& out, const Tensor& x);
// A contiguous copy of x as `dtype`, in workspace memory.
Tensor copied(const Tensor& x, DType dtype);
// True if a write to x may change elements of `source` before they are read: they share a storage, with different
// geometry.
bool overlaps(const Tensor& x, const Tensor& source);
// The tensor to read while x is written: `source`, or a copy of it if the two overlap.
Tensor readable(const Tensor& x, const Tensor& source);

}  // namespace gradual::cpu
