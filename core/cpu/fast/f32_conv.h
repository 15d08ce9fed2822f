// The gradient of a convolution's weights in f32 on processors with AVX2 alone, where oneDNN's is slower.
#pragma once

#include "../../ops/dispatch.h"

namespace gradual::cpu {

// An offer of conv2d_backward_weight. False, with nothing written, for strides above 1, groups of fewer than 8 outputs,
// f64, a set accumulator, empty tensors and other processors. Each part of the batch, which is cut by its shape alone,
// has one chain of fused multiply-adds in the order of pixels for each weight; the parts' sums are added up in order.
bool f32_weight_gradient(const OpCall& call, Outputs& out);

}  // namespace gradual::cpu
