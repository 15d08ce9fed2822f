// Small parts of the bounds of judge(). Internal to it. Tensors are f64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "judge_step.h"

namespace gradual::lab {

// n u / (1 - n u): the relative error of n roundings (Higham 2002, 3.1).
inline double gamma(double roundings, double unit) { return roundings * unit / (1 - std::min(0.5, roundings * unit)); }

inline bool moves(const Tensor& t) { return t.defined() && t.is_floating(); }
inline Tensor or_zeros(const Tensor& error, const Tensor& like) { return error.defined() ? error : zeros_like(like); }
// 0 where a mask of -Inf is.
inline Tensor finite(const Tensor& t) { return where(isfinite(t), t, 0); }
inline double length(const Tensor& t, int dim) { return static_cast<double>(t.size(dim)); }

// |a - b|; 0 where both are the same infinity and where b is NaN. Infinite where only a is not finite: an error that
// is too large to be carried on leaves open every value.
inline Tensor distance(const Tensor& a, const Tensor& b) {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  const Tensor away = abs(sub(a, b));
  return where(logical_or(eq(a, b), isnan(b)), 0, where(isnan(away), kAny, away));
}

// The tensor of value `id`; undefined: it is none of them.
const Tensor& of(const ValueTensors& all, int id);
// The error of value `id`; undefined: none.
Tensor error_of(const ValueTensors& all, const std::vector<Tensor>& errors, int id);

// What formulas lose that subtract from 1, or from a value near it, where an activation of x saturates: sigmoid's
// s (1 - s), tanh's 1 - t^2, GELU's 1 + erf and their like. Absolute errors, of the result and of the gradient for an
// incoming gradient of 1, both of x's sizes; undefined where there is none. None for other ops.
struct SaturationErrors {
  Tensor result, gradient;
};
std::optional<SaturationErrors> saturation_errors(const pt2::Step& step, const ValueTensors& inputs,
                                                  const Units& units);

}  // namespace gradual::lab
