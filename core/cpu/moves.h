// Copying elements between tensors, for kernels.
#pragma once

#include "../tensor.h"

namespace gradual::cpu {

// out[..] = x[..] broadcast to out's sizes and converted to its dtype; any strides. The two must not overlap.
void copy_elements(const Tensor& out, const Tensor& x);

void register_indexing();  // indexing.cpp's share of register_movement()

}  // namespace gradual::cpu
