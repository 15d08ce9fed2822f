// Attention as products of blocks: 64 queries meet all their keys at a time, by the kernels that products have. Many times as
// fast as the plain loops of attention.cpp, whose results these are but for the order of sums.
#pragma once

#include "../dispatch.h"

namespace gradual::cpu {

// Whether q, k and v are such that this is faster than the products and the softmax that attention consists of.
bool suits_attention_blocks(const Tensor& q, const Tensor& k, const Tensor& v);
// Offers of flash_attention and its backward. False, with nothing written, for f64, f16 and TF32, and for results without
// rows. bf16 probabilities and score gradients are rounded to bf16 once for their products; all sums are f32.
bool attention_blocks(const OpCall& call, Outputs& out);
bool attention_blocks_backward(const OpCall& call, Outputs& out);

}  // namespace gradual::cpu
