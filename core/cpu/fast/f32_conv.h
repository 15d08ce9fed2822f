// The weight gradient of convolutions in f32, on processors with AVX2 but not AVX-512, where oneDNN is slower.
#pragma once

#include "../../ops/dispatch.h"

namespace gradual::cpu {

// An offer of conv2d_backward_weight. False, with nothing written, for strides above 1, groups of fewer than 8 outputs,
// f64, a set accumulator, empty tensors and other processors. The batch is cut into parts by shape alone. In a part
// each weight has one sum of fused multiply-adds in the order of pixels; the sums of the parts are added in order.
bool f32_weight_gradient(const OpCall& call, Outputs& out);

}  // namespace gradual::cpu
