// Gradients of activations, for the rules of fused ops too.
#pragma once

#include "rule.h"

namespace gradual {

// Calls a gradient op (relu_backward, gelu_backward) on the received gradient, whose memory it may reuse, and a saved
// tensor.
Tensor times_slope(const RuleContext& c, OpId op, const Attrs& attrs, const Tensor& saved);
// The received gradient times gelu's slope at x: one op, with the history of the composed form under create_graph.
Tensor gelu_gradient(const RuleContext& c, const Tensor& x);

}  // namespace gradual
