// Results under other orders of summation. They show how far rounding spreads in practice; the bounds hold for all
// orders.
#pragma once

#include <optional>

#include "judge_step.h"

namespace gradual::lab {

inline constexpr int kSampledOrders = 4;

// The largest relative difference (2-norm) from `y`, the f64 result of value `id`, when the step is computed in f32
// with its sums in kSampledOrders random orders, rounded to `dtype`. The same orders in each run. None for steps
// without a sum whose terms can be exchanged (products of matrices, convolutions in one group, sums and means, softmax
// and norms along the last dim), and for f64.
std::optional<double> sampled_orders(StepBounds& bounds, const pt2::Step& step, const ValueTensors& inputs, int id,
                                     const Tensor& y, DType dtype);

}  // namespace gradual::lab
