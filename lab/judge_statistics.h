// How far rounding may move the running statistics of a batch norm, whatever the order of the sums.
#pragma once

#include <utility>
#include <vector>

#include "judge_step.h"

namespace gradual::lab {

// The running mean and variance that `step` updates in training, by their values of the graph, and the bound of each
// element, f64; empty for every other step. The batch's mean of n numbers x may differ by n u times the mean of |x|,
// so a mean near 0 has a large relative error. The variance is that of the differences from the mean.
std::vector<std::pair<int, Tensor>> running_statistics_bounds(const pt2::Step& step, const ValueTensors& inputs,
                                                              const std::vector<Tensor>& errors, const Units& units);

}  // namespace gradual::lab
