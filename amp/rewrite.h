// Rewritten ops: a policy entry may replace an op by a function of the user's, as one recorded node. This is where
// emulated formats come in. The function computes the op itself and, in the node's backward, each contraction of its
// gradient, so that a quantiser written once acts on x W^T, on dy W and on dy^T x. For gradients it counts as the
// exact op (straight-through: Bengio et al. 2013), and gradients of gradients are rewritten in the same way.
#pragma once

#include <memory>
#include <optional>

#include "../core/quantize/quantized_tensor.h"
#include "../core/support/generator.h"
#include "policy.h"

namespace gradual::amp {

// What an operand of a rewritten op is: the op's first input, its other inputs, or a gradient that flows back; and what
// becomes of a product of the last kind.
enum class Role : std::uint8_t { activation, weight, error, weight_gradient };
inline constexpr int kRoles = 4;
std::string_view name(Role role);
bool is_parameter(const Tensor& t);  // or any leaf that wants a gradient
inline std::uint64_t storage_id(const Tensor& t) { return t.unsafe_impl()->storage->id; }

// Inside a rewrite: the role of an input of the call it was given.
Role operand_role(int input);

// Inside a rewrite: what its call is part of.
struct RewriteContext {
  bool gradient = false;       // a contraction in the backward of a rewritten op, not the op itself
  bool recorded = false;       // for a backward to come
  std::shared_ptr<void> data;  // the function's own, shared by an op and the contractions of its backward
  std::optional<RandomKey> backward_key = {};  // of what backward draws, where that draws at all: a rewrite_key()
};
RewriteContext& rewrite_context();

// Inside a rewrite: the key of its next random numbers. The op's own are the default generator's. Those of its backward are
// made of the op's backward_key: they differ from op to op and from step to step, and are the same again where a backward or
// a checkpointed segment runs again.
RandomKey rewrite_key();

// Inside the rewrite of an op: backward gets input `input` from these codes, which are kept in its place. Contractions
// there see the codes' values, f32 and not scaled, and find the scale, of one element, by saved_scale. Codes have no second
// derivative.
void save_as_codes(int input, QuantizedTensor codes);
// Inside a rewrite: the scale of an input that was saved as codes, f32 [] (undefined: 1); nothing for others.
const std::optional<Tensor>& saved_scale(int input);

// Runs `call` by policy.function (what Autocast does). Error where the result's shape is not the op's.
Outputs run_rewritten(const CastPolicy& policy, const OpCall& call);

}  // namespace gradual::amp
