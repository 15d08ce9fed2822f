// How far the gradient's error moves a parameter in an optimizer's step. Internal to tolerance().
#pragma once

#include "tolerance_rules.h"

namespace gradual::lab {

// The parameter's error; what the step starts from (parameter, momentum, moments) has none.
std::array<Tensor, kMaxOutputs> of_sgd(const ExactOp& exact, ErrorKind kind, const Operands& in);
std::array<Tensor, kMaxOutputs> of_adam(const ExactOp& exact, ErrorKind kind, const Operands& in);

}  // namespace gradual::lab
