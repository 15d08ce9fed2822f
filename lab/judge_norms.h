// How far rounding may move the results and gradients of normalisations and of variances, whatever the order of the
// sums. docs/judge.md derives the bounds.
#pragma once

#include <optional>
#include <vector>

#include "judge_step.h"

namespace gradual::lab {

// Layer, batch, group, instance and RMS norms, in training and evaluation. One entry for each of `outputs` and
// `inputs`, as StepBounds gives them; none for every other step.
std::optional<std::vector<Tensor>> norm_bounds(const pt2::Step& step, const ValueTensors& inputs,
                                               const std::vector<Tensor>& errors, const ValueTensors& outputs,
                                               const Units& units);
std::optional<std::vector<Tensor>> norm_gradient_bounds(const pt2::Step& step, const ValueTensors& inputs,
                                                        const std::vector<Tensor>& errors, const Tensor& gradient,
                                                        const Tensor& gradient_error,
                                                        const std::vector<Tensor>& results, const Units& units);

// var and std of one result.
std::optional<std::vector<Tensor>> variance_bounds(const pt2::Step& step, const ValueTensors& inputs,
                                                   const std::vector<Tensor>& errors, const ValueTensors& outputs,
                                                   const Units& units);

}  // namespace gradual::lab
