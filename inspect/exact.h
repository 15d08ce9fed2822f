// An op without rounding: the same call in f64.
#pragma once

#include "../core/ops/op.h"

namespace gradual::inspect {

// Runs the op of `call` on other inputs, which are f64 for floating ones (f64_of() in mirror.h makes them). Attributes
// and random draws are the same; there is no accumulator, no rounding and no stochastic update, and a cast to another
// float loses nothing. In-place ops write their inputs. Custom ops are not allowed. Neither observers nor the tape see
// the run. A cast to another float gives its input itself. Error if the op has no f64 form.
Outputs run_exactly(const OpCall& call, const std::vector<Tensor>& inputs);

}  // namespace gradual::inspect
