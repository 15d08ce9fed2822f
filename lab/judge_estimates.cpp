// What rounding explains of steps without a bound: estimates, from operands that are moved by units of rounding.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "judge_bounds.h"
#include "judge_ops.h"
#include "judge_step.h"
#include "judge_ties.h"

namespace gradual::lab {
namespace {

constexpr int kSamples = 5;         // all operands up, all down, every other one up, the others up, and at random
constexpr double kSafety = 2;       // on the largest change of the samples
constexpr double kElementwise = 8;  // units of rounding by which operands are moved
constexpr double kComposite = 8;    // the same, of ops with sums inside
// Far less than an operand may be rounded by: it moves only those that are at the jump.
constexpr double kAside = 0x1p-50;
constexpr double kAsideOfZero = 0x1p-1000;

// Operand `place` goes up or down in this sample; 0: each element at random.
int direction(int sample, std::size_t place) {
  const bool even = place % 2 == 0;
  if (sample == 0) return 1;
  if (sample == 1) return -1;
  if (sample == 2) return even ? 1 : -1;
  if (sample == 3) return even ? -1 : 1;
  return 0;
}

Tensor larger(const Tensor& a, const Tensor& b) { return a.defined() ? maximum(a, b) : b; }

// Of the finite elements.
double root_mean_square(const Tensor& t) {
  return t.numel() == 0 ? 0 : std::sqrt(mean(square(where(isfinite(t), t, 0))).item());
}

// The polynomial that multiplies 1 - t^2 in the gradient of GELU by tanh.
Tensor tanh_gelu_factor(const Tensor& size) { return add(mul(mul(square(size), size), 0.134), size); }

}  // namespace

std::optional<SaturationErrors> saturation_errors(const pt2::Step& step, const ValueTensors& inputs,
                                                  const Units& units) {
  constexpr double kRoundings = 4;
  const bool of_result = is_op(step, "aten.sigmoid") || is_op(step, "aten.tanh");  // backward reads it as it is stored
  const bool gelu = is_op(step, "aten.gelu");
  if (!of_result && !gelu && !is_op(step, "aten.silu") && !is_op(step, "aten.mish")) return std::nullopt;
  const Tensor size = abs(finite(inputs.at(0).second));
  const Tensor one = ones_like(size);
  if (of_result) return {{{}, mul(one, kRoundings * units.store)}};
  const std::string* const approximate = gelu ? argument_of<std::string>(step, 1) : nullptr;
  const bool by_tanh = approximate && *approximate == "tanh";
  const Tensor slope = add(by_tanh ? tanh_gelu_factor(size) : size, one);
  return {{gelu ? mul(size, kRoundings / 2 * units.sum) : Tensor(), mul(slope, kRoundings * units.sum)}};
}

// x + s (error + relative |x| + least), with s = 1, -1 or random signs.
Tensor StepBounds::moved(const Tensor& x, const Tensor& error, const Move& move, int direction) {
  Tensor by = add(mul(abs(x), move.relative), move.least);
  if (error.defined()) by = add(by, error);
  by = where(isfinite(x), by, 0);  // a mask of -Inf stays
  if (direction != 0) return add(x, mul(by, direction));
  std::vector<double> signs(static_cast<std::size_t>(x.numel()));
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < signs.size(); ++i) {
    if (i % 64 == 0) bits = random_();
    signs[i] = (bits >> (i % 64) & 1) != 0 ? 1 : -1;
  }
  return add(x, mul(by, from_data(signs, x.sizes(), {.dtype = DType::f64})));
}

ValueTensors StepBounds::moved_inputs(const ValueTensors& inputs, const std::vector<Tensor>& errors, const Move& by,
                                      int sample) {
  ValueTensors all;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& t = inputs[i].second;
    all.emplace_back(inputs[i].first, moves(t) ? moved(t, errors[i], by, direction(sample, i)) : clone(t));
  }
  return all;
}

// The largest changes of the results when operands are moved.
std::vector<Tensor> StepBounds::of_moved_operands(const pt2::Step& step, const ValueTensors& inputs,
                                                  const std::vector<Tensor>& errors, const ValueTensors& outputs,
                                                  const Units& units) {
  const bool arranges = only_arranges(step);
  double relative = arranges ? 0 : kElementwise * units.store;
  if (has_sums_inside(step)) {
    double row = 1;
    for (const auto& [id, t] : inputs)
      for (const std::int64_t n : t.sizes()) row = std::max(row, static_cast<double>(n));
    relative = kComposite * units.store + std::sqrt(row) * units.sum;
  }
  std::vector<Tensor> largest(outputs.size());
  std::vector<double> spread(outputs.size());
  for (int sample = 0; sample < kSamples; ++sample) {
    const ValueTensors moved =
        evaluate(step, moved_inputs(inputs, errors, {relative, arranges ? 0 : units.least}, sample));
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Tensor& y = outputs[i].second;
      if (!moves(y)) {  // comparisons, and numbers rounded to integers
        const Tensor other = of(moved, outputs[i].first);
        if (other.sizes() == y.sizes()) largest[i] = larger(largest[i], cast(ne(other, y), DType::f64));
        continue;
      }
      const Tensor change = distance(of(moved, outputs[i].first), y);
      largest[i] = larger(largest[i], change);
      spread[i] = std::max(spread[i], root_mean_square(change));
    }
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!largest[i].defined() || !moves(outputs[i].second)) continue;
    largest[i] = mul(largest[i], kSafety);
    if (!arranges) largest[i] = add(add(largest[i], spread[i]), mul(abs(outputs[i].second), 2 * units.store));
    largest[i] = where(isfinite(outputs[i].second), largest[i], 0);
  }
  const auto saturation = saturation_errors(step, inputs, units);
  if (saturation && saturation->result.defined()) largest[0] = add(largest[0], saturation->result);
  return largest;
}

// Of other ops: the largest changes when operands and gradients are moved.
std::vector<Tensor> StepBounds::of_sampled_gradients(const pt2::Step& step, const ValueTensors& inputs,
                                                     const std::vector<Tensor>& errors, const ValueTensors& given,
                                                     const std::vector<Tensor>& gradient_errors,
                                                     const std::vector<Tensor>& results, const Units& units) {
  const bool arranges = only_arranges(step);
  double relative = arranges ? 0 : kElementwise * units.store;
  double repeated = 1;  // elements of the output for each of the smallest input
  double row = 1;
  for (const auto& [id, t] : inputs) {
    if (!moves(t)) continue;
    repeated = std::max(repeated, static_cast<double>(given[0].second.numel()) /
                                      static_cast<double>(std::max<std::int64_t>(1, t.numel())));
    for (const std::int64_t n : t.sizes()) row = std::max(row, static_cast<double>(n));
  }
  if (has_sums_inside(step)) relative = kComposite * units.store + std::sqrt(row) * units.sum;
  const double least = arranges ? 0 : units.least;
  const Move of_gradient{relative + std::sqrt(repeated) * units.sum + (arranges ? 0 : units.store), least};
  const bool jumps = arranges && derivative_jumps(step);
  const Move of_operand = jumps ? Move{kAside, kAsideOfZero} : Move{relative, least};
  std::vector<Tensor> bounds(inputs.size());
  std::vector<double> spread(inputs.size());
  for (int sample = 0; sample < kSamples; ++sample) {
    ValueTensors cotangents;
    for (std::size_t i = 0; i < given.size(); ++i)
      cotangents.emplace_back(given[i].first,
                              moved(given[i].second, gradient_errors[i], of_gradient, direction(sample, i)));
    const std::vector<Tensor> other = gradients(step, moved_inputs(inputs, errors, of_operand, sample), cotangents);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!results[i].defined() || !other[i].defined()) continue;
      const Tensor change = distance(other[i], results[i]);
      bounds[i] = larger(bounds[i], change);
      spread[i] = std::max(spread[i], root_mean_square(change));
    }
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!bounds[i].defined()) continue;
    bounds[i] = mul(bounds[i], kSafety);
    if (!arranges) bounds[i] = add(add(bounds[i], spread[i]), add(mul(abs(results[i]), 2 * units.store), units.least));
  }
  const auto saturation = saturation_errors(step, inputs, units);
  if (saturation && bounds[0].defined()) bounds[0] = add(bounds[0], mul(abs(given[0].second), saturation->gradient));
  return bounds;
}

}  // namespace gradual::lab
