// The rules of layers: softmax, norms, attention, losses and max pools.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "judge_attention.h"
#include "judge_bounds.h"
#include "log_probabilities.h"
#include "norm_bounds.h"
#include "softmax_rows.h"
#include "tolerance_rules.h"
#include "tolerance_updates.h"

namespace gradual::lab {
namespace {

using Errors = std::array<Tensor, kMaxOutputs>;

// --- softmax ---------------------------------------------------------------------------------------------------------

void check_last(const RecordedOp& op) {
  if (!is_along_last(op))
    throwf("{} in '{}' along dim {} has no bound of rounding; along the last dim it has", to_string(op.op), op.module,
           op.attrs.get<DimAttrs>().dim);
}

Errors of_softmax(const ExactOp& exact, ErrorKind, const Operands& in) {
  check_last(exact.op);
  const Tensor x = exact.op.attrs.get<DimAttrs>().causal ? causally_masked(exact.x[0]) : exact.x[0];
  return {add(softmax_bound(x, in.error(0), units_of_sums(exact)), in.element_least())};
}

// y (dy - the row's sum of y dy).
Errors of_softmax_backward(const ExactOp& exact, ErrorKind, const Operands& in) {
  constexpr double kJoins = 4;
  check_last(exact.op);
  const Tensor& g = exact.x[0];
  const Tensor& y = exact.x[1];
  const double u = exact.units.sum;
  const Tensor wide = mul(add(abs(g), in.error(0)), add(y, in.error(1)));
  const Tensor of_terms = sub(wide, mul(abs(g), y));
  const double own = gamma(length(y, -1) + kJoins, exact.units.sum);
  const double least = in.element_least();
  const Tensor total_error =
      add(add(sum(of_terms, {-1}, true), mul(sum(wide, {-1}, true), own)), length(y, -1) * least);
  const Tensor total = sum(mul(g, y), {-1}, true);
  const Tensor centred = abs(sub(g, total));
  const Tensor centred_error = add(add(in.error(0), total_error), mul(add(abs(g), abs(total)), u));
  Tensor error = mul(add(y, in.error(1)), centred_error);
  error = add(error, mul(in.error(1), centred));
  // y dy - y total, with both products rounded.
  return {add(add(error, mul(mul(y, add(abs(g), abs(total))), kJoins * u)), least)};
}

Errors of_log_softmax(const ExactOp& exact, ErrorKind, const Operands& in) {
  check_last(exact.op);
  return {add(log_probabilities(exact.x[0], in.error(0), units_of_sums(exact)).error, in.element_least())};
}

// exp(log p) for a logarithm with this error. However large that is, each implementation has a probability: the largest
// logit is subtracted from all, and a sum that has 1 among its terms is at least 1.
Tensor probability_error(const Tensor& p, const Tensor& log_error, double unit) {
  constexpr double kFunction = 8;
  const Tensor carried = mul(p, expm1(add(log_error, kFunction * unit)));
  const Tensor most = add(maximum(p, sub(1, p)), kFunction * unit);
  return where(isfinite(carried), minimum(carried, most), most);
}

// dy - exp(y) G with G the row's sum of dy.
Errors of_log_softmax_backward(const ExactOp& exact, ErrorKind, const Operands& in) {
  check_last(exact.op);
  const double u = exact.units.sum;
  const Tensor& g = exact.x[0];
  const Tensor p = exp(exact.x[1]);
  const Tensor p_error = add(probability_error(p, in.error(1), u), in.element_least());
  const Tensor total = abs(sum(g, {-1}, true));
  const Tensor wide = sum(add(abs(g), in.error(0)), {-1}, true);
  const Tensor total_error = add(sum(in.error(0), {-1}, true), mul(wide, gamma(length(g, -1), exact.units.sum)));
  Tensor error = add(in.error(0), mul(p_error, add(total, total_error)));
  error = add(error, mul(p, total_error));
  return {add(add(error, mul(add(abs(g), mul(p, total)), 2 * u)), in.element_least())};
}

// --- norms -----------------------------------------------------------------------------------------------------------

// Where a norm's inputs are among those of its op; -1: it has none.
struct NormInputs {
  int x = 0;
  int weight = -1;
  int bias = -1;
  int mean = -1;
  int variance = -1;
};

NormInputs inputs_of(OpId op) {
  switch (op) {
    case OpId::layer_norm: return {.weight = 1, .bias = 2};
    case OpId::rms_norm: return {.weight = 1};
    case OpId::batch_norm: return {.weight = 1, .bias = 2, .mean = 3, .variance = 4};
    default: return {.x = 1, .weight = 2};  // of gradients
  }
}

}  // namespace

// x as rows or channels are reduced, and the shape in which weight and bias broadcast.
NormNumbers norm_of(const ExactOp& exact, const Operands& in) {
  const auto& attrs = exact.op.attrs.get<NormAttrs>();
  const NormInputs at = inputs_of(exact.op.op);
  const bool batch = exact.op.op == OpId::batch_norm || exact.op.op == OpId::batch_norm_backward;
  const auto tensor = [&](int i) { return i < 0 ? Tensor() : exact.x[static_cast<std::size_t>(i)]; };
  NormNumbers n;
  n.x = tensor(at.x);
  n.x_error = in.error(static_cast<std::size_t>(at.x));
  n.centred = exact.op.op != OpId::rms_norm && exact.op.op != OpId::rms_norm_backward;
  n.own = !batch || attrs.training;
  n.eps = attrs.eps;
  Shape channels = Shape::filled(n.x.dim(), 1);
  if (batch) channels[1] = n.x.size(1);
  for (int d = 0; d < n.x.dim(); ++d)
    if (batch ? d != 1 : d >= n.x.dim() - attrs.dims) n.dims.push_back(d);
  const auto broadcasting = [&](const Tensor& t) { return batch ? reshape(t, channels) : t; };
  const auto give = [&](int i, Tensor& value, Tensor& error) {
    if (!tensor(i).defined()) return;
    value = broadcasting(tensor(i));
    error = broadcasting(in.error(static_cast<std::size_t>(i)));
  };
  give(at.weight, n.weight, n.weight_error);
  give(at.bias, n.bias, n.bias_error);
  if (!n.own) {
    give(at.mean, n.mean, n.mean_error);
    give(at.variance, n.variance, n.variance_error);
  }
  if (!batch && attrs.dims == 1) n.x_rows = in.rows(static_cast<std::size_t>(at.x));
  return n;
}

namespace {

Errors of_norm_layer(const ExactOp& exact, ErrorKind, const Operands& in) {
  const Units units = units_of_sums(exact);
  const NormNumbers n = norm_of(exact, in);
  return {add(norm_output_bound(n, norm_parts(n, units), units), in.element_least())};
}

Errors of_norm_backward(const ExactOp& exact, ErrorKind, const Operands& in) {
  if (exact.op.op == OpId::batch_norm_backward && !exact.op.attrs.get<NormAttrs>().training)
    throwf("batch_norm_backward in '{}' with running statistics has no bound of rounding", exact.op.module);
  const Units units = units_of_sums(exact);
  const NormNumbers n = norm_of(exact, in);
  const NormParts p = norm_parts(n, units);
  const Tensor& g = exact.x[0];
  const Tensor g_error = in.error(0);
  // Products of the gradient, of deviations and of their roots may each underflow.
  const Tensor of_root = mul(square(add(p.root, 1)), in.element_least());
  const Tensor underflow = mul(of_root, add(abs(p.normal), 1));
  Errors errors;
  errors[0] = add(norm_input_gradient_bound(n, p, g, g_error, exact.y[0], units), underflow);
  const auto for_parameter = [&](std::size_t k, const Tensor& terms) {
    const Shape wide = n.weight.defined() ? n.weight.sizes() : exact.y[k].sizes();
    errors[k] = reshape(sum_to(terms, wide), exact.y[k].sizes());
  };
  for (std::size_t k = 1; k < kMaxOutputs; ++k) {
    if (!exact.y[k].defined() || exact.y[k].numel() == 0) continue;
    const double rows = static_cast<double>(g.numel()) / static_cast<double>(exact.y[k].numel());
    for_parameter(k, k == 1 ? add(norm_weight_gradient_bound(n, p, g, g_error, rows, units), underflow)
                            : norm_bias_gradient_bound(g, g_error, rows, units));
  }
  return errors;
}

// --- attention -------------------------------------------------------------------------------------------------------

AttentionStep attention_of(const ExactOp& exact, const Operands& in, std::size_t first) {
  const auto& attrs = exact.op.attrs.get<AttentionAttrs>();
  AttentionStep a;
  a.q = exact.x[first];
  a.k = exact.x[first + 1];
  a.v = exact.x[first + 2];
  a.q_error = in.error(first);
  a.k_error = in.error(first + 1);
  a.v_error = in.error(first + 2);
  a.scale = attention_scale(attrs, a.q.size(-1));
  if (attrs.causal) a.mask = causally_masked(zeros({a.q.size(-2), a.k.size(-2)}, {.dtype = DType::f64}));
  return a;
}

// Matrix units round several times per addition.
Units units_of_attention(const ExactOp& exact) {
  Units units = exact.units;
  units.sum *= std::max(exact.roundings_per_addition, exact.roundings_per_product);
  return units;
}

Errors of_attention(const ExactOp& exact, ErrorKind, const Operands& in) {
  return {attention_bound(attention_of(exact, in, 0), units_of_attention(exact))};
}

Errors of_attention_backward(const ExactOp& exact, ErrorKind, const Operands& in) {
  const AttentionGradientBounds found =
      attention_gradient_bounds(attention_of(exact, in, 1), exact.x[0], in.error(0), units_of_attention(exact));
  return {found.q, found.k, found.v};
}

// --- cross entropy ---------------------------------------------------------------------------------------------------

// Whether a row's class counts, and the number of those that do.
struct Counted {
  Tensor rows;  // [N, 1] f64
  double count = 0;
};
Counted counted(const Tensor& classes, const CrossEntropyAttrs& a) {
  Counted c;
  c.rows = reshape(cast(ne(classes, static_cast<double>(a.ignore_index)), DType::f64), {-1, 1});
  c.count = std::max(1.0, sum(c.rows).item());
  return c;
}

Errors of_cross_entropy(const ExactOp& exact, ErrorKind, const Operands& in) {
  constexpr double kJoins = 4;
  const auto& a = exact.op.attrs.get<CrossEntropyAttrs>();
  const LogProbabilities log_p = log_probabilities(exact.x[0], in.error(0), units_of_sums(exact));
  const std::int64_t classes = exact.x[0].size(-1);
  const Counted c = counted(exact.x[1], a);
  const Tensor safe = where(gt(reshape(c.rows, {-1}), 0), exact.x[1], 0);
  const Tensor chosen = mul(cast(one_hot(safe, classes), DType::f64), 1 - a.label_smoothing);
  const Tensor factors = mul(add(chosen, a.label_smoothing / static_cast<double>(classes)), c.rows);
  const Tensor size = mul(factors, abs(log_p.y));
  Tensor error = sum(mul(factors, log_p.error), {1});
  error = add(error, mul(sum(size, {1}), gamma(static_cast<double>(classes) + kJoins, exact.units.sum)));
  if (a.reduction != Reduction::none) error = add(sum(error), mul(sum(size), gamma(c.count + kJoins, exact.units.sum)));
  if (a.reduction == Reduction::mean) error = div(error, c.count);
  error = add(error, in.element_least());
  return {reshape(error, exact.y[0].sizes()), add(log_p.error, in.element_least())};
}

// dy (exp(log p) - target).
Errors of_cross_entropy_backward(const ExactOp& exact, ErrorKind, const Operands& in) {
  const auto& a = exact.op.attrs.get<CrossEntropyAttrs>();
  const double u = exact.units.sum;
  const Counted c = counted(exact.x[2], a);
  const double by = a.reduction == Reduction::mean ? c.count : 1;
  const bool each = exact.x[0].numel() > 1;
  const auto of_rows = [&](const Tensor& t) {
    return mul(div(each ? reshape(t, {-1, 1}) : reshape(t, {1, 1}), by), c.rows);
  };
  const Tensor g = of_rows(abs(exact.x[0]));
  const Tensor g_error = of_rows(in.error(0));
  const Tensor p = exp(exact.x[1]);
  const Tensor p_error = add(probability_error(p, in.error(1), u), in.element_least());
  // |p - target|, which is at most 1; not to be had from a gradient of 0.
  const Tensor away = where(gt(g, 0), div(abs(exact.y[0]), where(gt(g, 0), g, 1)), 1);
  Tensor error = mul(add(g, g_error), p_error);
  error = add(error, mul(g_error, away));
  return {add(add(error, mul(mul(g, add(p, 1)), 4 * u)), mul(c.rows, in.element_least()))};
}

// --- max pools -------------------------------------------------------------------------------------------------------

// Calls f(output, input) for each element of each window of a plane of height x width.
template <class F> void in_windows(const PoolAttrs& a, const Tensor& x, const Tensor& y, const F& f) {
  const std::int64_t height = x.size(2);
  const std::int64_t width = x.size(3);
  for (std::int64_t o = 0; o < y.numel(); ++o) {
    const std::int64_t column = o % y.size(3);
    const std::int64_t row = o / y.size(3) % y.size(2);
    const std::int64_t plane = o / (y.size(2) * y.size(3));
    for (std::int64_t i = row * a.stride[0] - a.padding[0]; i < row * a.stride[0] - a.padding[0] + a.kernel[0]; ++i)
      for (std::int64_t j = column * a.stride[1] - a.padding[1]; j < column * a.stride[1] - a.padding[1] + a.kernel[1];
           ++j)
        if (i >= 0 && i < height && j >= 0 && j < width) f(o, (plane * height + i) * width + j);
  }
}

// The maximum, and 1 where another element of the window may be the largest.
Errors of_max_pool(const ExactOp& exact, ErrorKind, const Operands& in) {
  const auto& a = exact.op.attrs.get<PoolAttrs>();
  const Tensor e = in.error(0);
  const Tensor up = in.of(0, {add(exact.x[0], e)});
  const Tensor down = in.of(0, {sub(exact.x[0], e)});
  const Tensor highest = contiguous(add(exact.x[0], e));
  const Tensor least = contiguous(down);
  Tensor candidates = zeros(exact.y[0].sizes(), {.dtype = DType::f64});
  const double* const most = highest.data<double>();
  const double* const needed = least.data<double>();
  double* const count = candidates.data<double>();
  in_windows(a, exact.x[0], exact.y[0], [&](std::int64_t o, std::int64_t i) { count[o] += most[i] >= needed[o]; });
  const Tensor open = cast(gt(candidates, 1), DType::f64);
  return {maximum(sub(up, exact.y[0]), sub(exact.y[0], down)), open};
}

// Where another element of a window may be the largest, any has the gradient.
Errors of_max_pool_backward(const ExactOp& exact, ErrorKind, const Operands& in) {
  const auto& a = exact.op.attrs.get<PoolAttrs>();
  const Tensor known = in.of(0, {in.error(0), exact.x[1]});
  const Tensor either = contiguous(mul(add(abs(exact.x[0]), in.error(0)), gt(in.error(1), 0)));
  Tensor open = zeros(exact.y[0].sizes(), {.dtype = DType::f64});
  const double* const g = either.data<double>();
  double* const to = open.data<double>();
  in_windows(a, open, exact.x[0], [&](std::int64_t o, std::int64_t i) { to[i] += g[o]; });
  const double overlapping = static_cast<double>(a.kernel[0] * a.kernel[1]);
  return {add(add(known, open), mul(abs(exact.y[0]), overlapping * exact.units.sum))};
}

constexpr ToleranceRule kRules[] = {
    {OpId::softmax, of_softmax},
    {OpId::softmax_backward, of_softmax_backward},
    {OpId::log_softmax, of_log_softmax},
    {OpId::log_softmax_backward, of_log_softmax_backward},
    {OpId::layer_norm, of_norm_layer},
    {OpId::layer_norm_backward, of_norm_backward},
    {OpId::batch_norm, of_norm_layer},
    {OpId::batch_norm_backward, of_norm_backward},
    {OpId::rms_norm, of_norm_layer},
    {OpId::rms_norm_backward, of_norm_backward},
    {OpId::flash_attention, of_attention},
    {OpId::flash_attention_backward, of_attention_backward},
    {OpId::cross_entropy, of_cross_entropy},
    {OpId::cross_entropy_backward, of_cross_entropy_backward},
    {OpId::max_pool2d, of_max_pool},
    {OpId::max_pool2d_backward, of_max_pool_backward},
    {OpId::sgd_step_, of_sgd},
    {OpId::adam_step_, of_adam},
};

}  // namespace

std::span<const ToleranceRule> layer_rules() { return kRules; }

}  // namespace gradual::lab
