// An op without rounding: the same call in f64.
#pragma once

#include <vector>

#include "../core/ops/op.h"

namespace gradual::inspect {

// Runs the op of `call` on other inputs, which are f64 where the call's are floating (integers and bool as they are;
// widened() in mirror.h makes them). The same attributes and random draws; no accumulator, no rounding, no stochastic
// update, no loss of what a cast to another float loses. In-place ops write their inputs. Not for custom ops. Nothing
// else sees the run. Error where the op has no f64 form.
Outputs run_exactly(const OpCall& call, const std::vector<Tensor>& inputs);

// The values of `t` rounded to `dtype`, as f64; t is f64.
Tensor rounded_to(const Tensor& t, DType dtype);

}  // namespace gradual::inspect
