// Attention as products of blocks: 64 queries meet all keys that one of them sees at a time, by the kernels that products have.
// The results are those of the plain loops of attention.cpp but for the order of sums, and for NaN: one in v, or that an Inf makes
// there, reaches all queries of a block.
#pragma once

#include "../../ops/dispatch.h"

namespace gradual::cpu {

// Whether this is faster than the products and the softmax that attention consists of: causal, for it leaves out most of what is
// not seen, and long.
bool suits_attention_blocks(const AttentionAttrs& a, const Tensor& q, const Tensor& k, const Tensor& v);
// Offers of flash_attention and its backward. False, with nothing written, for f64, f16 and TF32, and for results without
// rows. bf16 probabilities and score gradients are rounded to bf16 once for their products; all sums are f32.
bool attention_blocks(const OpCall& call, Outputs& out);
bool attention_blocks_backward(const OpCall& call, Outputs& out);

}  // namespace gradual::cpu
