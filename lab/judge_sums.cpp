// What rounding explains of steps that are sums of products, whatever the order of the sums (Higham 2002, 3.1).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "judge_bounds.h"
#include "judge_ops.h"
#include "judge_step.h"

namespace gradual::lab {

double windows_over_an_element(const pt2::Step& step) {
  if (!is_op(step, "aten.avg_pool2d")) return 1;
  const std::vector<std::int64_t> kernel = integers_of(step, 1);
  const std::vector<std::int64_t> stride = integers_of(step, 2);  // none: the kernel's
  double windows = 1;
  for (std::size_t dim = 0; dim < 2 && !kernel.empty() && !stride.empty(); ++dim) {
    const auto k = static_cast<double>(kernel[std::min(dim, kernel.size() - 1)]);
    const auto s = static_cast<double>(stride[std::min(dim, stride.size() - 1)]);
    windows *= std::ceil(k / s);
  }
  return windows;
}

// The lengths of the sums in a step that is nothing but sums of products.
StepBounds::Terms StepBounds::terms_of(const pt2::Step& step, const ValueTensors& inputs,
                                       const ValueTensors& outputs) const {
  const std::string& target = step.op->target;
  if (outputs.empty() || !outputs[0].second.defined()) return {};
  const auto argument = [&](std::size_t i) -> const Tensor& {
    static const Tensor none;
    const pt2::Ref* const r = i < step.arguments.size() ? step.arguments[i].get<pt2::Ref>() : nullptr;
    return r ? of(inputs, r->id) : none;
  };
  const Tensor& y = outputs[0].second;
  if (!moves(y)) return {};
  const auto count = [](std::int64_t n) { return static_cast<double>(std::max<std::int64_t>(1, n)); };
  const auto products = [&](const Tensor& a, const Tensor& b) -> Terms {
    if (!a.defined() || !b.defined() || a.dim() == 0) return {};
    const double n = count(a.size(-1));
    return {n, std::max(count(a.numel()) / n, count(b.numel()) / n)};
  };
  if (target.starts_with("aten.linear.")) return products(argument(0), argument(1));
  if (target.starts_with("aten.matmul.") || target.starts_with("aten.mm.") || target.starts_with("aten.bmm."))
    return products(argument(0), argument(1));
  if (is_op(step, "aten.mul") || is_op(step, "aten.add") || is_op(step, "aten.sub")) {
    double least = count(y.numel());  // each operand's gradient adds up what it was broadcast to
    for (const auto& [id, t] : inputs)
      if (moves(t)) least = std::min(least, count(t.numel()));
    return {2, count(y.numel()) / least + 1};
  }
  if (target.starts_with("aten.addmm.") || target.starts_with("aten.baddbmm.")) {
    const Terms terms = products(argument(1), argument(2));
    return {terms.forward + 1, terms.backward};
  }
  const Tensor& w = argument(1);
  if ((target.starts_with("aten.conv") || target.starts_with("aten.convolution")) && w.defined() && y.dim() > 2) {
    const bool transposed = target.starts_with("aten.conv_transpose");
    const double forward = count(w.numel()) / count(w.size(transposed ? 1 : 0));
    const double other = count(w.numel()) / count(w.size(transposed ? 0 : 1));
    return {forward + 1, std::max({forward, other, count(y.numel()) / count(y.size(1))})};
  }
  const bool sums = target.starts_with("aten.sum.") || target.starts_with("aten.mean.") ||
                    target.starts_with("aten.avg_pool2d.") || target.starts_with("aten.adaptive_avg_pool2d.") ||
                    target.starts_with("aten.cumsum.");
  if (sums && argument(0).defined()) {
    const bool running = target.starts_with("aten.cumsum.");
    const double n = running ? count(y.numel()) : count(argument(0).numel()) / count(y.numel()) + 1;
    return {n, n};
  }
  if (target.starts_with("aten.embedding.") || target.starts_with("aten.index.") || target.starts_with("aten.gather."))
    return {1, count(y.numel())};
  return {};
}

// Of sums, differences and quotients of two operands, of which one may be a number. Products are sums of one term.
std::optional<Tensor> StepBounds::of_arithmetic(const pt2::Step& step, const ValueTensors& inputs,
                                                const std::vector<Tensor>& errors, const ValueTensors& outputs,
                                                const Units& units) {
  const bool sums = is_op(step, "aten.add") || is_op(step, "aten.sub");
  const bool divides = is_op(step, "aten.div") && !step.op->target.ends_with("_mode");
  if ((!sums && !divides) || outputs.size() != 1 || !moves(outputs[0].second)) return std::nullopt;
  const Tensor& y = outputs[0].second;
  const auto operand = [&](std::size_t i) {
    const Tensor t = of(inputs, id_of(step, i));
    if (t.defined()) return cast(t, DType::f64);
    const double* const number = argument_of<double>(step, i);
    const std::int64_t* const whole = argument_of<std::int64_t>(step, i);
    return full({}, number ? *number : whole ? static_cast<double>(*whole) : 0.0, {.dtype = DType::f64});
  };
  const auto error = [&](std::size_t i, const Tensor& t) {
    const Tensor carried = or_zeros(error_of(inputs, errors, id_of(step, i)), t);
    return add(carried, mul(abs(finite(t)), units.store));
  };
  const Tensor a = operand(0);
  const Tensor b = operand(1);
  Tensor bound;
  if (sums) {
    const double* const number = argument_of<double>(step, 2);
    const std::int64_t* const whole = argument_of<std::int64_t>(step, 2);
    const double alpha = std::abs(number ? *number : whole ? static_cast<double>(*whole) : 1.0);
    bound = add(error(0, a), mul(add(error(1, b), mul(abs(finite(b)), alpha == 1 ? 0 : units.sum)), alpha));
  } else {
    const Tensor left = sub(abs(b), error(1, b));
    const Tensor least = where(gt(left, 0), left, 0);  // what the divisor is at least: 0 leaves every quotient open
    bound = div(add(error(0, a), mul(abs(finite(y)), error(1, b))), least);
    bound = where(isnan(bound), 0, bound);
  }
  bound = add(bound, add(mul(abs(y), 2 * units.store + units.sum), units.least));
  return where(isfinite(y), bound, 0);
}

// Of sums of products: (n u) of the sum of magnitudes, and the operands' own errors.
std::vector<Tensor> StepBounds::of_sum(const pt2::Step& step, const ValueTensors& inputs,
                                       const std::vector<Tensor>& errors, const ValueTensors& outputs,
                                       const Units& units, double terms) {
  ValueTensors magnitudes;
  ValueTensors wide;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto& [id, t] = inputs[i];
    const Tensor size = moves(t) ? abs(t) : t;
    magnitudes.emplace_back(id, size);
    Tensor more = moves(t) ? add(mul(size, 1 + units.store), units.least) : t;
    if (moves(t) && errors[i].defined()) more = add(more, errors[i]);
    wide.emplace_back(id, more);
  }
  const ValueTensors sums = evaluate(step, magnitudes);
  const ValueTensors moved = evaluate(step, wide);
  const double gamma = terms * units.sum / (1 - std::min(0.5, terms * units.sum));
  std::vector<Tensor> bounds;
  for (const auto& [id, y] : outputs) {
    if (!moves(y)) {  // sums of integers are exact
      bounds.emplace_back();
      continue;
    }
    const Tensor carried = sub(of(moved, id), of(sums, id));
    const Tensor bound = add(mul(of(sums, id), gamma), carried);
    const Tensor stored = add(mul(abs(y), 2 * units.store), units.least);
    bounds.push_back(where(isfinite(y), add(bound, stored), 0));  // the logarithm of 0 times a number
  }
  return bounds;
}

// Of sums of products, as of_sum: the gradients are such sums themselves.
std::vector<Tensor> StepBounds::of_product_gradients(const pt2::Step& step, const ValueTensors& inputs,
                                                     const std::vector<Tensor>& errors, const ValueTensors& given,
                                                     const std::vector<Tensor>& gradient_errors,
                                                     const std::vector<Tensor>& results, const Units& units,
                                                     double terms) {
  const Move move{units.store, units.least};
  constexpr int kUp = 1;
  ValueTensors base = inputs;
  for (auto& [id, t] : base)
    if (moves(t)) t = abs(t);
  ValueTensors base_cotangents;
  ValueTensors cotangents;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const Tensor g = abs(given[i].second);
    base_cotangents.emplace_back(given[i].first, g);
    cotangents.emplace_back(given[i].first, moved(g, gradient_errors[i], move, kUp));
  }
  const std::vector<Tensor> wide = gradients(step, moved_inputs(base, errors, move, 0), cotangents);
  const std::vector<Tensor> sums = gradients(step, base, base_cotangents);
  const double windows = windows_over_an_element(step);
  const double rounded = windows > 1 ? windows * units.store : 0;
  const double gamma = terms * units.sum / (1 - std::min(0.5, terms * units.sum)) + rounded;
  std::vector<Tensor> bounds(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!results[i].defined() || !wide[i].defined()) continue;
    const Tensor carried = distance(wide[i], sums[i]);
    const Tensor stored = add(mul(abs(results[i]), 2 * units.store), units.least);
    bounds[i] = add(add(carried, mul(abs(sums[i]), gamma)), stored);
  }
  return bounds;
}

}  // namespace gradual::lab
