// Convolutions of a few input channels in bf16, as a network's first one, by our product (bf16_product.h): libraries' kernels go
// through the channels and find little to multiply.
#pragma once

#include "../../ops/dispatch.h"

namespace gradual::cpu {

// An offer of conv2d and conv2d_backward_weight, where a window and a bias are at most 32 numbers, as many as AMX adds up at once.
// False, with nothing written, for groups, other dtypes than bf16 of all operands and the result, images that are not
// row-major, rows of more than 16384 pixels, a set accumulator, empty tensors and other processors. The gradient's sums are those of
// some rows of windows, f32, added up in order; the cut depends on shapes alone.
bool bf16_shallow_convolution(const OpCall& call, Outputs& out);

}  // namespace gradual::cpu
