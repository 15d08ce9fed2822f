#include "judge_losses.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "judge_bounds.h"
#include "judge_ops.h"
#include "log_probabilities.h"

namespace gradual::lab {
namespace {

constexpr double kJoins = 4;     // roundings of a term, and of the scaling of its sum
constexpr double kFunction = 8;  // units of rounding of exp and log, and of the few operations around them

// --- cross entropy ---------------------------------------------------------------------------------------------------

// [N, C, ..] as rows [M, C].
Tensor as_rows(const Tensor& x) {
  if (x.dim() == 1) return unsqueeze(x, 0);
  Shape order{0};
  for (int d = 2; d < x.dim(); ++d) order.push_back(d);
  order.push_back(1);
  return reshape(permute(x, order), {x.numel() / std::max<std::int64_t>(1, x.size(1)), x.size(1)});
}
// The same back in the sizes of `like`.
Tensor from_rows(const Tensor& rows, const Tensor& like) {
  if (like.dim() <= 2) return reshape(rows, like.sizes());
  Shape sizes{like.size(0)};
  Shape back{0, like.dim() - 1};
  for (int d = 2; d < like.dim(); ++d) {
    sizes.push_back(like.size(d));
    back.push_back(d - 1);
  }
  sizes.push_back(like.size(1));
  return permute(reshape(rows, sizes), back);
}

enum Argument : std::uint8_t { kSelf, kTarget, kWeight, kReduction, kIgnored, kSmoothing };
enum Reducing : std::int64_t { kNone = 0, kMean = 1, kSum = 2 };

struct CrossEntropy {
  Tensor x, x_error;  // rows [M, C]
  Tensor factors;     // [M, C]: the loss is the sum of -factors log p, or of each row if it is not reduced
  Tensor factors_error;
  Tensor of_target;  // [M, C] or [C]: what a soft target is multiplied with; undefined for classes
  bool reduced = true;
  double terms = 0;
};

// An operand's error and its rounding to the recorded dtype.
Tensor operand_error(const Tensor& t, const Tensor& error, const Units& units) {
  return add(or_zeros(error, t), mul(abs(t), units.store));
}

// Target probabilities, smoothed and weighted.
void set_soft_factors(CrossEntropy& c, const Tensor& target, const Tensor& target_error, const Tensor& weight,
                      const Tensor& weight_error, double smooth, double rows) {
  const Tensor p = add(mul(target, 1 - smooth), smooth / length(target, 1));
  const Tensor p_error = mul(target_error, 1 - smooth);
  c.of_target = mul(weight, (1 - smooth) / rows);
  c.factors = div(mul(p, weight), rows);
  c.factors_error = add(mul(p_error, add(abs(weight), weight_error)), mul(abs(p), weight_error));
  c.factors_error = div(c.factors_error, rows);
}

std::optional<CrossEntropy> read(const pt2::Step& step, const ValueTensors& inputs, const std::vector<Tensor>& errors,
                                 const Units& units) {
  if (!is_op(step, "aten.cross_entropy_loss")) return std::nullopt;
  const Tensor x = of(inputs, id_of(step, kSelf));
  const Tensor target = of(inputs, id_of(step, kTarget));
  if (!moves(x) || !target.defined() || x.numel() == 0) return std::nullopt;
  CrossEntropy c;
  c.x = as_rows(x);
  const Tensor error = error_of(inputs, errors, id_of(step, kSelf));
  if (error.defined()) c.x_error = as_rows(error);
  const std::int64_t classes = c.x.size(1);
  const std::int64_t* const by = argument_of<std::int64_t>(step, kReduction);
  const double* const smoothing = argument_of<double>(step, kSmoothing);
  const double smooth = smoothing ? *smoothing : 0;
  const Tensor given = of(inputs, id_of(step, kWeight));
  const Tensor weight = given.defined() ? cast(given, DType::f64) : ones({classes}, {.dtype = DType::f64});
  const Tensor weight_error = given.defined()
                                  ? operand_error(weight, error_of(inputs, errors, id_of(step, kWeight)), units)
                                  : zeros_like(weight);
  const bool mean_of_all = !by || *by == kMean;
  c.reduced = !by || *by != kNone;
  c.terms = static_cast<double>(c.x.size(0)) + (smooth > 0 || target.is_floating() ? static_cast<double>(classes) : 1);
  if (target.is_floating()) {
    const Tensor wide = cast(target, DType::f64);
    const Tensor target_error = operand_error(wide, error_of(inputs, errors, id_of(step, kTarget)), units);
    set_soft_factors(c, as_rows(wide), as_rows(target_error), weight, weight_error, smooth,
                     mean_of_all ? length(c.x, 0) : 1);
    return c;
  }
  const std::int64_t* const ignored = argument_of<std::int64_t>(step, kIgnored);
  const Tensor flat = reshape(cast(target, DType::i64), {-1});
  const Tensor used = ne(flat, ignored ? *ignored : -100);
  const Tensor safe = where(used, flat, 0);
  const Tensor counted = cast(used, DType::f64);
  const Tensor of_targets = mul(index_select(weight, 0, safe), counted);
  const Tensor chosen = mul(cast(one_hot(safe, classes), DType::f64), unsqueeze(counted, 1));
  const Tensor parts = add(mul(chosen, 1 - smooth), mul(unsqueeze(counted, 1), smooth / static_cast<double>(classes)));
  c.factors = mul(parts, weight);
  c.factors_error = mul(parts, weight_error);
  if (!mean_of_all) return c;
  const Tensor total = maximum(sum(of_targets), 1e-300);
  const Tensor total_error = sum(mul(index_select(weight_error, 0, safe), counted));
  c.factors = div(c.factors, total);
  c.factors_error =
      div(add(c.factors_error, mul(abs(c.factors), total_error)), maximum(sub(total, total_error), 1e-300));
  return c;
}

Tensor cross_entropy_bound(const CrossEntropy& c, const Tensor& loss, const Units& units) {
  const LogProbabilities log_p = log_probabilities(c.x, c.x_error, units);
  const Tensor size = abs(c.factors);
  const Tensor logarithms = abs(finite(log_p.y));
  Tensor carried = mul(add(size, c.factors_error), log_p.error);
  carried = add(carried, mul(c.factors_error, logarithms));
  const double own = gamma(c.terms + kJoins, units.sum);
  Tensor bound = sum(add(carried, mul(mul(size, logarithms), own)), {1});
  bound = c.reduced ? sum(bound) : bound;
  return add(reshape(bound, loss.sizes()), add(mul(abs(loss), 2 * units.store), units.least));
}

// g (p S - factors), with S the sum of a row's factors.
Tensor cross_entropy_gradient_bound(const CrossEntropy& c, const Tensor& gradient, const Tensor& gradient_error,
                                    const Tensor& result, const Units& units) {
  const LogProbabilities log_p = log_probabilities(c.x, c.x_error, units);
  const auto by_row = [&](const Tensor& t) { return c.reduced ? t : reshape(t, {-1, 1}); };
  const Tensor g = abs(by_row(gradient));
  const Tensor g_error = add(by_row(or_zeros(gradient_error, gradient)), mul(g, units.store));
  const Tensor size = abs(c.factors);
  const Tensor total = sum(size, {1}, true);
  const double sums = gamma(length(c.x, 1) + kJoins, units.sum);
  const Tensor total_error = sum(c.factors_error, {1}, true);
  Tensor error = mul(g, mul(log_p.p_error, add(total, total_error)));
  error = add(error, mul(g, add(mul(log_p.p, total_error), c.factors_error)));
  const Tensor terms = add(mul(log_p.p, total), size);
  error = add(error, mul(mul(g, terms), sums));
  error = add(error, mul(g_error, abs(sub(mul(log_p.p, sum(c.factors, {1}, true)), c.factors))));
  return add(from_rows(error, result), add(mul(abs(result), 2 * units.store), units.least));
}

// -g of_target log p: the gradient of a soft target.
Tensor target_gradient_bound(const CrossEntropy& c, const Tensor& gradient, const Tensor& gradient_error,
                             const Tensor& result, const Units& units) {
  const LogProbabilities log_p = log_probabilities(c.x, c.x_error, units);
  const auto by_row = [&](const Tensor& t) { return c.reduced ? t : reshape(t, {-1, 1}); };
  const Tensor g = abs(by_row(gradient));
  const Tensor g_error = add(by_row(or_zeros(gradient_error, gradient)), mul(g, units.store));
  const Tensor logarithms = abs(finite(log_p.y));
  Tensor error = mul(add(g, g_error), log_p.error);
  error = add(error, mul(add(g_error, mul(g, units.store + kFunction * units.sum)), logarithms));
  error = mul(error, abs(c.of_target));
  return add(from_rows(error, result), add(mul(abs(result), 2 * units.store), units.least));
}

// --- log_softmax -----------------------------------------------------------------------------------------------------

bool is_log_softmax(const pt2::Step& step, const ValueTensors& inputs) {
  if (!is_op(step, "aten.log_softmax") && !is_op(step, "aten._log_softmax")) return false;
  const std::int64_t* const dim = argument_of<std::int64_t>(step, 1);
  if (!dim || inputs.size() != 1 || !moves(inputs[0].second) || inputs[0].second.dim() == 0) return false;
  return *dim == -1 || *dim == inputs[0].second.dim() - 1;
}

// g - p G with G the row's sum of g.
Tensor log_softmax_gradient_bound(const Tensor& x, const Tensor& x_error, const Tensor& g, const Tensor& gradient_error,
                                  const Tensor& result, const Units& units) {
  const LogProbabilities log_p = log_probabilities(x, x_error, units);
  const Tensor g_error = add(or_zeros(gradient_error, g), mul(abs(g), units.store));
  const Tensor total = abs(sum(g, {-1}, true));
  const Tensor of_sum =
      add(sum(g_error, {-1}, true), mul(sum(abs(g), {-1}, true), gamma(length(x, -1) + kJoins, units.sum)));
  Tensor error = add(g_error, mul(log_p.p_error, add(total, of_sum)));
  error = add(error, mul(log_p.p, of_sum));
  error = add(error, mul(add(abs(g), mul(log_p.p, total)), kFunction * units.sum));
  return add(error, add(mul(abs(result), 2 * units.store), units.least));
}

// --- mean errors -----------------------------------------------------------------------------------------------------

// Means and sums of (x - t)^2 and |x - t|.
std::optional<Tensor> mean_error_bound(const pt2::Step& step, const ValueTensors& inputs,
                                       const std::vector<Tensor>& errors, const Tensor& loss, const Units& units) {
  const bool squares = is_op(step, "aten.mse_loss");
  if (!squares && !is_op(step, "aten.l1_loss")) return std::nullopt;
  const int x_id = id_of(step, 0);
  const int t_id = id_of(step, 1);
  const Tensor x = of(inputs, x_id);
  const Tensor t = of(inputs, t_id);
  if (!moves(x) || !moves(t)) return std::nullopt;
  const Tensor away = abs(sub(x, t));
  Tensor error = add(or_zeros(error_of(inputs, errors, x_id), x), or_zeros(error_of(inputs, errors, t_id), t));
  error = add(error, mul(add(abs(x), abs(t)), units.store));
  error = add(error, mul(away, units.sum));
  Tensor terms = away;
  if (squares) {
    error = mul(error, add(mul(away, 2), error));
    terms = square(away);
  }
  const std::int64_t* const by = argument_of<std::int64_t>(step, 2);
  const double n = loss.dim() == 0 ? static_cast<double>(std::max<std::int64_t>(1, terms.numel())) : 1;
  error = add(error, mul(terms, gamma(n + kJoins, units.sum)));
  if (loss.numel() == 1) error = reshape(div(sum(error), !by || *by == kMean ? n : 1.0), loss.sizes());
  return add(error, add(mul(abs(loss), 2 * units.store), units.least));
}

}  // namespace

std::optional<std::vector<Tensor>> loss_bounds(const pt2::Step& step, const ValueTensors& inputs,
                                               const std::vector<Tensor>& errors, const ValueTensors& outputs,
                                               const Units& units) {
  if (outputs.size() != 1) return std::nullopt;
  const Tensor& y = outputs[0].second;
  if (const std::optional<CrossEntropy> c = read(step, inputs, errors, units))
    return std::vector<Tensor>{cross_entropy_bound(*c, y, units)};
  if (is_log_softmax(step, inputs)) {
    const Tensor error = log_probabilities(inputs[0].second, errors[0], units).error;
    return std::vector<Tensor>{add(error, add(mul(abs(finite(y)), 2 * units.store), units.least))};
  }
  if (const std::optional<Tensor> bound = mean_error_bound(step, inputs, errors, y, units))
    return std::vector<Tensor>{*bound};
  return std::nullopt;
}

std::optional<std::vector<Tensor>> loss_gradient_bounds(const pt2::Step& step, const ValueTensors& inputs,
                                                        const std::vector<Tensor>& errors, const Tensor& gradient,
                                                        const Tensor& gradient_error,
                                                        const std::vector<Tensor>& results, const Units& units) {
  std::vector<Tensor> bounds(inputs.size());
  if (const std::optional<CrossEntropy> c = read(step, inputs, errors, units)) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!results[i].defined()) continue;
      const int id = inputs[i].first;
      const bool of_target = id == id_of(step, kTarget);
      if (id_of(step, kSelf) == id_of(step, kTarget)) return std::nullopt;
      if (id != id_of(step, kSelf) && !of_target) continue;  // a weight
      bounds[i] = of_target ? target_gradient_bound(*c, gradient, gradient_error, results[i], units)
                            : cross_entropy_gradient_bound(*c, gradient, gradient_error, results[i], units);
    }
    return bounds;
  }
  if (!is_log_softmax(step, inputs) || !results[0].defined()) return std::nullopt;
  bounds[0] = log_softmax_gradient_bound(inputs[0].second, errors[0], gradient, gradient_error, results[0], units);
  return bounds;
}

}  // namespace gradual::lab
