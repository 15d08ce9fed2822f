// Attention in blocks by the CPU's kernel (core/kernels/attention_blocks.h), with the bits of the reference. Not a
// public header.
#pragma once

#include "attention_steps.h"

namespace gradual::amp {

// True if the kernel computes the attention of these inputs (q, k, v, mask): f32 sums on the CPU, no accumulator of the
// surrounding scope and no TF32, inside the blocks no transform, no square tiles and no scale of a whole tensor but a
// delayed one, blocks that fit it, scores for all heads of the result, and no gradient of the mask. It does not depend
// on observers.
bool kernel_suits(const AttentionPrecision& precision, const std::vector<Tensor>& inputs, const AttentionUse& use,
                  bool mask_needs_grad);

// O and the logsumexp before they are rounded.
struct AttentionForward {
  Tensor o, logsumexp;
};
AttentionForward forward_by_kernel(AttentionSteps& steps);

struct AttentionBackward {
  Tensor along_values, along_queries;  // dO, rounded for dP and for dV
  Tensor along_keys;                   // q, rounded for dK
  Tensor delta, logsumexp;             // [.., L, 1]
};
// [dq, dk, dv].
std::vector<Tensor> backward_by_kernel(AttentionSteps& steps, const AttentionBackward& operands);

}  // namespace gradual::amp
