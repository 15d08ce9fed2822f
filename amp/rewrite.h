// Rewritten ops: a policy entry may replace an op by a function, as one recorded node. Emulated formats are implemented
// in this way. The function computes the op itself and, in the node's backward, each contraction of its gradient, so a
// quantiser written once applies to x W^T, dy W and dy^T x. Its gradient is that of the exact op (straight-through:
// Bengio et al. 2013), unless the function says otherwise (set_gradient). Gradients of gradients are rewritten in the
// same way.
#pragma once

#include <memory>
#include <optional>

#include "../core/quantize/quantized_tensor.h"
#include "../core/support/generator.h"
#include "policy.h"

namespace gradual::amp {

// The role of an operand of a rewritten op. Observers receive it with the op (CallRecord::replaced).
using Role = OperandRole;
inline constexpr int kRoles = 4;
bool is_parameter(const Tensor& t);  // true for any leaf that requires a gradient
inline std::uint64_t storage_id(const Tensor& t) { return t.unsafe_impl()->storage->id; }

// Inside a rewrite: the role of an input of its call.
Role operand_role(int input);

// Inside a rewrite: the context of its call.
struct RewriteContext {
  bool gradient = false;       // a contraction in the backward of a rewritten op, not the op itself
  bool recorded = false;       // a backward may follow
  std::shared_ptr<void> data;  // the function's own data, shared by an op and the contractions of its backward
  // By input: the scale of one that was saved as codes, f32 [] (undefined: 1); none for other inputs.
  std::vector<std::optional<Tensor>> saved_scales = {};
  std::optional<RandomKey> backward_key = {};  // if backward draws: the key of its draws, a rewrite_key()
};
RewriteContext& rewrite_context();

// Inside a rewrite: the key of its next random numbers. In forward it comes from rounding_generator(). In backward it
// is derived from the op's backward_key: it differs between ops and steps, and is the same if a backward or a
// checkpointed segment runs again.
RandomKey rewrite_key();

// Inside the rewrite of an op: saves these codes for backward instead of input `input`. Contractions there receive the
// codes' values as f32, unscaled, and get the scale (one element) from RewriteContext::saved_scales; `again`: the
// scaled values, as any other operand, and the sum of those of all calls for the input. Codes have no second
// derivative.
void save_as_codes(int input, QuantizedTensor codes, bool again = false);

// Inside the rewrite of an op that is recorded: what the gradient of an operand becomes, in which the op's rule counts
// the rounding as the identity. It has no second derivative.
struct OperandGradient {
  Tensor slopes = {};  // of the input's sizes: they multiply the gradient; undefined: 1
  // The gradient of number `parameter` of CastPolicy::parameters is factor * sum(gradient * direction), with the
  // gradient before it is multiplied. Undefined: none.
  Tensor direction = {};
  int parameter = 0;
  double factor = 1;
};
void set_gradient(int input, OperandGradient gradient);

// Runs `call` by policy.function; called by Autocast. Error if the result does not have the op's shape.
Outputs run_rewritten(const CastPolicy& policy, const OpCall& call);

}  // namespace gradual::amp
