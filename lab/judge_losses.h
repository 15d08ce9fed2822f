// How far rounding may move logarithms of softmax and losses of classes and of differences, whatever the order of the
// sums. docs/judge.md derives the bounds.
#pragma once

#include <optional>
#include <vector>

#include "judge_step.h"

namespace gradual::lab {

// log_softmax along its last dim, cross entropy, and the mean square and absolute errors; none for every other step.
std::optional<std::vector<Tensor>> loss_bounds(const pt2::Step& step, const ValueTensors& inputs,
                                               const std::vector<Tensor>& errors, const ValueTensors& outputs,
                                               const Units& units);
// The same of the gradients of log_softmax and cross entropy; undefined for that of a class weight.
std::optional<std::vector<Tensor>> loss_gradient_bounds(const pt2::Step& step, const ValueTensors& inputs,
                                                        const std::vector<Tensor>& errors, const Tensor& gradient,
                                                        const Tensor& gradient_error,
                                                        const std::vector<Tensor>& results, const Units& units);

}  // namespace gradual::lab
