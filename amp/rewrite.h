// Rewritten ops: a policy entry may replace an op by a function of the user's, as one recorded node. This is where
// emulated formats come in. The function computes the op itself and, in the node's backward, each contraction of its
// gradient, so that a quantiser written once acts on x W^T, on dy W and on dy^T x. For gradients it counts as the
// exact op (straight-through: Bengio et al. 2013), and gradients of gradients are rewritten in the same way.
#pragma once

#include "policy.h"

namespace gradual::amp {

// What an operand of a rewritten op is: the op's first input, its other inputs, or a gradient that flows back.
enum class Role : std::uint8_t { activation, weight, error };
std::string_view name(Role role);

// Inside a rewrite: the role of an input of the call it was given.
Role operand_role(int input);

// Runs `call` by policy.function (what Autocast does). Error where the result's shape is not the op's.
Outputs run_rewritten(const CastPolicy& policy, const OpCall& call);

}  // namespace gradual::amp
