#include "tolerance_bounds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "../inspect/mirror.h"
#include "../inspect/numbers.h"
#include "error_rows.h"
#include "judge_bounds.h"
#include "tolerance_rules.h"

namespace gradual::lab {
namespace {

constexpr double kUnderflows = 4;  // numbers on the way of an operation that may each be too small for its dtype

FloatInfo info_of_elements(const RecordedOp& op) {
  return float_info(op.outputs[0].dtype == DType::f64 ? DType::f64 : DType::f32);
}

}  // namespace

Tensor Operands::of(std::size_t i, const std::vector<Tensor>& values) const {
  return run(exact.op, values)[static_cast<int>(i)];
}

Outputs run_in_f64(const RecordedOp& op, const std::vector<Tensor>& inputs) {
  const std::vector<const Tensor*> refs = pointers_to(inputs);
  return inspect::run_exactly({op.op, TensorRefs(refs.data(), static_cast<int>(refs.size())), &op.attrs, {}}, inputs);
}

Outputs Operands::run(const RecordedOp& op, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> copies;
  const bool in_place = op_info(op.op).kind == OpKind::InPlace;
  for (const Tensor& t : inputs) copies.push_back(in_place && t.defined() ? t.clone() : t);
  return run_in_f64(op, copies);
}

double Operands::element_unit() const { return info_of_elements(exact.op).epsilon / 2; }
double Operands::element_least() const { return kUnderflows * info_of_elements(exact.op).min_subnormal; }

Tensor Operands::rounding(const Tensor& size, const Tensor& carried, double units) const {
  const Tensor relative = mul(abs(finite(size)), units * element_unit());
  return add(relative, where(gt(add(abs(finite(size)), carried), 0), element_least(), 0));
}

Tensor Operands::error(std::size_t i) const {
  if (i < exact.error.size() && exact.error[i].defined()) return exact.error[i];
  return moves(exact.x[i]) ? zeros_like(exact.x[i]) : zeros({}, {.dtype = DType::f64});
}

Tensor Operands::rows(std::size_t i) const {
  if (i < exact.rows.size() && exact.rows[i].defined()) return exact.rows[i];
  const Tensor e = error(i);
  return e.dim() == 0 ? reshape(e, {1}) : norm_of_rows(e);
}

Tensor Operands::columns(std::size_t i) const {
  if (i < exact.columns.size() && exact.columns[i].defined()) return exact.columns[i];
  return sqrt(sum(square(error(i)), {-2}, true));
}

Tensor Operands::value(std::size_t i) const {
  if (exact.x[i].defined()) return exact.x[i];
  return full({}, exact.op.attrs.get<ScalarAttrs>().value, {.dtype = DType::f64});
}

namespace {

using Errors = std::array<Tensor, kMaxOutputs>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// --- sums of products ------------------------------------------------------------------------------------------------

double size_of_dim(const RecordedTensor& t, int dim) {
  return static_cast<double>(t.sizes[dim < 0 ? dim + t.sizes.size() : dim]);
}

// The number of terms of each sum.
double terms_of(const RecordedOp& op) {
  const RecordedTensor& a = op.inputs[0];
  const RecordedTensor& b = op.inputs[1];
  const auto count = [](const RecordedTensor& t) { return static_cast<double>(t.numel()); };
  const auto groups = [&] { return static_cast<double>(op.attrs.get<ConvAttrs>().groups); };
  const bool bias = op.inputs.size() > 2 && op.inputs[2].defined();
  switch (op.op) {
    case OpId::matmul: return size_of_dim(a, -1);
    case OpId::linear: return size_of_dim(a, -1) + (bias ? 1 : 0);
    case OpId::linear_backward_weight: return count(a) / size_of_dim(a, -1);
    case OpId::conv2d: return count(b) / size_of_dim(b, 0) + (bias ? 1 : 0);
    case OpId::conv2d_backward_input: return count(b) / size_of_dim(b, 1) / groups();
    case OpId::conv2d_backward_weight: return count(a) / size_of_dim(a, 1);
    default: return 0;
  }
}

std::vector<Tensor> map(const ExactOp& exact, const Operands& in, Tensor (*f)(const Tensor& x, const Tensor& e)) {
  std::vector<Tensor> all;
  for (std::size_t i = 0; i < exact.x.size(); ++i)
    all.push_back(moves(exact.x[i]) ? f(exact.x[i], in.error(i)) : exact.x[i]);
  return all;
}

Tensor magnitude(const Tensor& x, const Tensor&) { return abs(x); }
Tensor widened(const Tensor& x, const Tensor& e) { return add(abs(x), e); }

// The largest number of an accumulator's sums and products.
double range_of(const Accumulator& a) {
  if (a.f64) return float_info(DType::f64).max;
  return a.product ? std::min(a.format.max(), a.product->max()) : a.format.max();
}

// An error times a size, which may be infinite.
Tensor scaled(const Tensor& error, const Tensor& size) { return where(eq(error, 0), 0, mul(error, size)); }
Tensor scaled(const Tensor& error, double size) { return where(eq(error, 0), 0, mul(error, size)); }

// The error; infinite where a partial sum of this size may be beyond the range of its format in some order.
Tensor open_beyond_range(const Tensor& error, const Tensor& largest, const RecordedOp& op) {
  if (op.outputs[0].dtype == DType::f64) return error;
  const double range = op.accumulator ? range_of(*op.accumulator) : float_info(DType::f32).max;
  return where(gt(largest, range), kInfinity, error);
}

}  // namespace

// What roundings of higher order in u multiply the error of the first order by, of n terms. A sum that rounds to
// nearest once per addition errs by no more than n u whatever n u is (Jeannerod and Rump 2013): 2 suffices. Others by
// what (1 + r u)^n - 1 is more than r n u, with r roundings per addition.
double growth(const ExactOp& exact, double n) {
  const double of_nearest = 1 / (1 - std::min(0.5, 2 * n * exact.units.sum));
  const std::optional<Accumulator>& a = exact.op.accumulator;
  const bool nearest = !a || a->rounding.mode != RoundingMode::toward_zero;
  const double roundings = std::max(exact.roundings_per_addition, exact.roundings_per_product);
  if (nearest && exact.roundings_per_addition == 1) return of_nearest;
  const double x = n * roundings * exact.units.sum;
  return std::max(of_nearest, std::expm1(x) / x);
}

SmallOperands small_operands(const ExactOp& exact, std::size_t count) {
  const std::optional<Accumulator>& a = exact.op.accumulator;
  if (!a || a->f64 || !a->lowest || a->adds == GroupSum::exact || exact.op.outputs[0].dtype == DType::f64) return {};
  const Operands in{exact};
  const double least = std::ldexp(1.0, *a->lowest);
  const bool drops = a->adds == GroupSum::pairwise;
  std::vector<Tensor> sizes = exact.x;
  std::vector<Tensor> others = exact.x;
  for (std::size_t i = 0; i < exact.x.size(); ++i) {
    if (!moves(exact.x[i])) continue;
    sizes[i] = add(abs(exact.x[i]), in.error(i));
    others[i] = sizes[i];
    if (i >= count) continue;
    if (drops) others[i] = where(lt(sub(abs(exact.x[i]), in.error(i)), least), 0, sizes[i]);
    else others[i] = where(gt(sizes[i], 0), maximum(sizes[i], least), 0);
  }
  const Outputs before = in.run(exact.op, sizes);
  const Outputs after = in.run(exact.op, others);
  SmallOperands small;
  for (std::size_t k = 0; k < kMaxOutputs; ++k) {
    const int at = static_cast<int>(k);
    if (before[at].defined()) (drops ? small.dropped : small.more)[k] = abs(sub(after[at], before[at]));
  }
  return small;
}

Tensor rounding_of_products(const ExactOp& exact, const Tensor& sizes, const Tensor& passed, const Tensor& y,
                            std::size_t output) {
  const double n = terms_of(exact.op);
  const SmallOperands small = small_operands(exact, 2);
  const Tensor wide = add(sizes, passed);
  const Tensor partial = mul(add(add(wide, passed), abs(y)), 0.5);
  const auto with_more = [&](const Tensor& t) { return small.more[output].defined() ? add(t, small.more[output]) : t; };
  const Tensor of_additions = mul(with_more(partial), exact.roundings_per_addition * (n - 1));
  const Tensor of_terms = mul(with_more(wide), exact.roundings_per_product);
  const double underflow = n * exact.roundings_per_product * exact.units.least;
  Tensor error = add(scaled(add(of_additions, of_terms), exact.units.sum * growth(exact, n)), underflow);
  if (small.dropped[output].defined()) error = add(error, small.dropped[output]);
  return open_beyond_range(error, add(partial, error), exact.op);
}

namespace {

// Products may be rounded or not (a fused multiply-add), and the sums are added up in any tree of n - 1 additions. Each
// partial sum of terms t lies between -N and P, the sums of the negative and of the positive terms: its rounding errs
// by at most u max(P, N) = u (sum |t| + |sum t|) / 2. Roundings of single terms err by u |t| each.
Errors of_products(const ExactOp& exact, ErrorKind kind, const Operands& in) {
  const double n = terms_of(exact.op);
  const double u = exact.units.sum;
  const bool of_norms = kind == ErrorKind::of_norms;
  const auto sums = [&](Tensor (*f)(const Tensor& x, const Tensor& e)) {
    std::vector<Tensor> terms = map(exact, in, f);
    if (of_norms) terms[0] = full(terms[0].sizes(), max(terms[0]).item(), {.dtype = DType::f64});
    return in.run(exact.op, terms);
  };
  const Outputs sizes = sums(magnitude);
  const Outputs wide = sums(widened);
  Errors errors;
  for (int k = 0; k < kMaxOutputs; ++k) {
    if (!sizes[k].defined()) continue;
    const auto at = static_cast<std::size_t>(k);
    const Tensor passed = sub(wide[k], sizes[k]);
    if (!of_norms) {
      errors[at] = add(passed, rounding_of_products(exact, sizes[k], passed, exact.y[at], at));
      continue;
    }
    const double per_product = exact.roundings_per_product;
    const Tensor roundings = mul(wide[k], exact.roundings_per_addition * (n - 1) + per_product);
    errors[at] = add(add(passed, scaled(roundings, u * growth(exact, n))), n * per_product * exact.units.least);
  }
  return errors;
}

// --- sums ------------------------------------------------------------------------------------------------------------

double count_of(const Tensor& t) { return static_cast<double>(std::max<std::int64_t>(1, t.numel())); }

// The most elements of which a mean of a pool is, and the most means of which an element is a part.
double pooled(const RecordedOp& op) {
  const auto& a = op.attrs.get<PoolAttrs>();
  const bool adaptive = op.op == OpId::adaptive_avg_pool2d || op.op == OpId::adaptive_avg_pool2d_backward;
  if (!adaptive) return static_cast<double>(a.kernel[0] * a.kernel[1]);
  return std::max(size_of_dim(op.inputs[0], 2) * size_of_dim(op.inputs[0], 3),
                  size_of_dim(op.outputs[0], 2) * size_of_dim(op.outputs[0], 3));
}

// Sums and means of the first input's elements, each of which has a factor of at least 0.
Errors of_sums(const ExactOp& exact, ErrorKind, const Operands& in) {
  constexpr double kJoins = 2;  // of scaling
  std::vector<Tensor> values = exact.x;
  const std::size_t last = exact.op.op == OpId::scatter_add ? 2 : 0;
  const auto with = [&](const auto& f) {
    for (std::size_t i = 0; i <= last; i += 2) values[i] = f(i);
    return in.run(exact.op, values)[0];
  };
  const Tensor sizes = with([&](std::size_t i) { return abs(exact.x[i]); });
  const Tensor carried = with([&](std::size_t i) { return in.error(i); });
  const Tensor ones = with([&](std::size_t i) { return ones_like(exact.x[i]); });
  const bool divides = exact.op.op == OpId::mean;
  const bool pools = op_info(exact.op.op).kind == OpKind::Pooling;
  const double all = pools ? pooled(exact.op) : static_cast<double>(exact.x[0].numel()) / count_of(sizes);
  const Tensor n = divides || pools ? full({}, all, {.dtype = DType::f64}) : ones;
  const double u = exact.units.sum;
  const Tensor count = add(n, kJoins - 1);
  const Tensor roundings = mul(count, u * exact.roundings_per_addition);
  const SmallOperands small = small_operands(exact, 1);
  Tensor partial = mul(add(add(sizes, mul(carried, 2)), abs(exact.y[0])), 0.5);
  if (small.more[0].defined()) partial = add(partial, small.more[0]);
  const Tensor underflow = where(gt(partial, 0), mul(count, std::max(exact.units.least, in.element_least())), 0);
  const Tensor own = scaled(partial, mul(roundings, growth(exact, max(count).item())));
  Tensor error = add(add(carried, own), underflow);
  if (small.dropped[0].defined()) error = add(error, small.dropped[0]);
  const Tensor added = divides ? mul(partial, all) : partial;
  return {open_beyond_range(error, mul(added, add(mul(count, u), 1)), exact.op)};
}

// A norm of a sum is at most the sum of the norms. Squares may underflow.
Errors of_norm(const ExactOp& exact, ErrorKind, const Operands& in) {
  const Tensor carried = in.of(0, {in.error(0)});
  const double n = static_cast<double>(exact.x[0].numel());
  const double underflow = n * std::max(exact.units.least, in.element_least());
  const Tensor& y = exact.y[0];
  const Tensor of_squares = div(full({}, underflow, {.dtype = DType::f64}), add(sqrt(add(square(y), underflow)), y));
  return {add(add(carried, of_squares), mul(add(y, carried), gamma(n + 4, exact.units.sum)))};
}

// --- one element at a time -------------------------------------------------------------------------------------------

// Of functions that rise or fall everywhere, between x - e and x + e.
Errors of_monotone(const ExactOp& exact, ErrorKind, const Operands& in) {
  constexpr double kFunction = 8;  // units of rounding
  const Tensor e = in.error(0);
  const Tensor up = distance(in.of(0, {add(exact.x[0], e)}), exact.y[0]);
  const Tensor down = distance(in.of(0, {sub(exact.x[0], e)}), exact.y[0]);
  const bool function = op_info(exact.op.op).kind == OpKind::Transcendental;
  const Tensor carried = maximum(up, down);
  if (exact.op.op == OpId::relu) return {add(carried, mul(abs(finite(exact.y[0])), in.element_unit()))};
  return {add(carried, in.rounding(exact.y[0], carried, function ? kFunction : 1))};
}

// The same of functions whose second derivative is at most 1.2: GELU and SiLU, which have a minimum.
Errors of_smooth(const ExactOp& exact, ErrorKind kind, const Operands& in) {
  constexpr double kHalfCurvature = 0.6;
  Tensor error = of_monotone(exact, kind, in)[0];
  error = add(error, mul(square(in.error(0)), kHalfCurvature));
  // x Phi(x) errs by the units of its factors, x itself.
  return {add(error, in.rounding(exact.x[0], in.error(0), 2))};
}

Errors of_lipschitz(const ExactOp& exact, ErrorKind, const Operands& in) {
  return {add(in.error(0), mul(abs(finite(exact.y[0])), in.element_unit()))};
}

Errors of_square(const ExactOp& exact, ErrorKind, const Operands& in) {
  const Tensor e = in.error(0);
  const Tensor carried = scaled(e, add(mul(abs(exact.x[0]), 2), e));
  return {add(carried, in.rounding(exact.y[0], carried, 1))};
}

// An operation on f32 may be part of a fused multiply-add, and its result then stay unrounded. x + a y rounds a and
// the product.
Errors of_addition(const ExactOp& exact, ErrorKind, const Operands& in) {
  const bool tensors = exact.x[0].defined() && exact.x[1].defined();
  const double number = tensors ? 0 : std::abs(exact.op.attrs.get<ScalarAttrs>().value);
  const double factor = exact.op.op == OpId::add_ && tensors ? exact.op.attrs.get<ScalarAttrs>().value : 1;
  Tensor second = mul(in.error(1), std::abs(factor));
  if (std::abs(factor) != 1) second = add(second, in.rounding(mul(exact.x[1], factor), second, 2));
  const Tensor own = mul(add(abs(finite(exact.y[0])), number), in.element_unit());
  return {add(add(in.error(0), second), own)};
}

Errors of_product(const ExactOp& exact, ErrorKind, const Operands& in) {
  const Tensor a = in.value(0);
  const Tensor b = in.value(1);
  const Tensor carried = add(scaled(in.error(0), add(abs(b), in.error(1))), scaled(in.error(1), abs(a)));
  return {add(carried, in.rounding(exact.y[0], carried, 2))};
}

Errors of_quotient(const ExactOp& exact, ErrorKind, const Operands& in) {
  const Tensor b = in.value(1);
  const Tensor least = maximum(sub(abs(b), in.error(1)), 0);  // 0 leaves every quotient open
  const Tensor of_operands = add(in.error(0), scaled(in.error(1), abs(exact.y[0])));
  const Tensor carried = where(eq(of_operands, 0), 0, div(of_operands, least));
  return {add(carried, in.rounding(exact.y[0], carried, 3))};
}

Errors of_larger(const ExactOp&, ErrorKind, const Operands& in) { return {maximum(in.error(0), in.error(1))}; }

Errors of_comparison(const ExactOp& exact, ErrorKind, const Operands& in) {
  const Tensor away = abs(sub(cast(in.value(0), DType::f64), cast(in.value(1), DType::f64)));
  const Tensor reach = add(in.error(0), in.error(1));
  const Tensor open = logical_and(le(away, reach), gt(reach, 0));
  return {cast(open, DType::f64).expand(exact.y[0].sizes())};
}

Errors of_where(const ExactOp& exact, ErrorKind, const Operands& in) {
  const Tensor chosen = where(exact.x[0], in.error(1), in.error(2));
  const Tensor other = add(abs(sub(in.value(1), in.value(2))), add(in.error(1), in.error(2)));
  return {where(gt(in.error(0), 0), other, chosen)};
}

// dy where y > 0; where y may be on either side, too.
Errors of_relu_backward(const ExactOp& exact, ErrorKind, const Operands& in) {
  const Tensor& y = exact.x[1];
  const Tensor open = logical_and(gt(add(y, in.error(1)), 0), le(sub(y, in.error(1)), 0));
  const Tensor either = add(abs(exact.x[0]), in.error(0));
  return {where(open, either, where(gt(y, 0), in.error(0), 0))};
}

// dy f'(x) with |f''| of at most 1.2.
Errors of_gelu_backward(const ExactOp& exact, ErrorKind, const Operands& in) {
  constexpr double kCurvature = 1.2;
  const double u = in.element_unit();
  const Tensor slope = abs(in.of(0, {ones_like(exact.x[0]), exact.x[1]}));
  const Tensor slope_error = add(mul(in.error(1), kCurvature), mul(add(slope, add(abs(exact.x[1]), 1)), 4 * u));
  Tensor error = mul(in.error(0), add(slope, slope_error));
  error = add(error, mul(abs(exact.x[0]), slope_error));
  return {add(error, in.rounding(exact.y[0], error, 1))};
}

// --- movement --------------------------------------------------------------------------------------------------------

Errors of_movement(const ExactOp& exact, ErrorKind, const Operands& in) {
  if (!exact.op.outputs[0].is_floating()) return {};
  std::vector<Tensor> errors = exact.x;
  for (std::size_t i = 0; i < errors.size(); ++i)
    if (moves(errors[i])) errors[i] = in.error(i);
  const Tensor moved = in.of(0, errors);
  if (exact.op.op == OpId::pad && exact.op.attrs.get<PadAttrs>().value != 0) {
    const Tensor zero = in.of(0, {zeros_like(exact.x[0])});
    return {sub(moved, zero)};
  }
  return {moved};
}

Errors of_dropout(const ExactOp& exact, ErrorKind kind, const Operands& in) {
  const Tensor carried = of_movement(exact, kind, in)[0];
  return {add(carried, in.rounding(exact.y[0], carried, 2))};
}

Errors of_copy(const ExactOp& exact, ErrorKind, const Operands& in) {
  return {in.error(1).expand(exact.y[0].sizes()).clone()};
}

Errors of_nothing(const ExactOp&, ErrorKind, const Operands&) { return {}; }

constexpr ToleranceRule kRules[] = {
    {OpId::matmul, of_products},
    {OpId::linear, of_products},
    {OpId::linear_backward_weight, of_products},
    {OpId::conv2d, of_products},
    {OpId::conv2d_backward_input, of_products},
    {OpId::conv2d_backward_weight, of_products},
    {OpId::sum, of_sums},
    {OpId::mean, of_sums},
    {OpId::index_add, of_sums},
    {OpId::scatter_add, of_sums},
    {OpId::avg_pool2d, of_sums},
    {OpId::avg_pool2d_backward, of_sums},
    {OpId::adaptive_avg_pool2d, of_sums},
    {OpId::adaptive_avg_pool2d_backward, of_sums},
    {OpId::norm, of_norm},
    {OpId::exp, of_monotone},
    {OpId::exp2, of_monotone},
    {OpId::expm1, of_monotone},
    {OpId::log, of_monotone},
    {OpId::log2, of_monotone},
    {OpId::log1p, of_monotone},
    {OpId::sqrt, of_monotone},
    {OpId::rsqrt, of_monotone},
    {OpId::tanh, of_monotone},
    {OpId::sigmoid, of_monotone},
    {OpId::erf, of_monotone},
    {OpId::softplus, of_monotone},
    {OpId::leaky_relu, of_monotone},
    {OpId::relu, of_monotone},
    {OpId::gelu, of_smooth},
    {OpId::silu, of_smooth},
    {OpId::neg, of_lipschitz},
    {OpId::abs, of_lipschitz},
    {OpId::clamp, of_lipschitz},
    {OpId::square, of_square},
    {OpId::add, of_addition},
    {OpId::sub, of_addition},
    {OpId::add_, of_addition},
    {OpId::mul, of_product},
    {OpId::mul_, of_product},
    {OpId::div, of_quotient},
    {OpId::maximum, of_larger},
    {OpId::minimum, of_larger},
    {OpId::eq, of_comparison},
    {OpId::ne, of_comparison},
    {OpId::lt, of_comparison},
    {OpId::le, of_comparison},
    {OpId::gt, of_comparison},
    {OpId::ge, of_comparison},
    {OpId::where, of_where},
    {OpId::relu_backward, of_relu_backward},
    {OpId::gelu_backward, of_gelu_backward},
    {OpId::cast, of_movement},
    {OpId::to_device, of_movement},
    {OpId::clone, of_movement},
    {OpId::slice_backward, of_movement},
    {OpId::cat, of_movement},
    {OpId::gather, of_movement},
    {OpId::index_select, of_movement},
    {OpId::pad, of_movement},
    {OpId::tril, of_movement},
    {OpId::dropout, of_dropout},
    {OpId::copy_, of_copy},
    {OpId::fill_, of_nothing},
    {OpId::one_hot, of_nothing},
    {OpId::batch_norm_update_, of_nothing},  // of running statistics: no part of the step
    {OpId::unscale_, of_nothing},            // StepValues writes its results
};

const ToleranceRule* rule_of(OpId op) {
  const auto found = std::ranges::find(kRules, op, &ToleranceRule::op);
  if (found != std::end(kRules)) return &*found;
  const std::span<const ToleranceRule> others = layer_rules();
  const auto other = std::ranges::find(others, op, &ToleranceRule::op);
  return other == others.end() ? nullptr : &*other;
}

}  // namespace

std::array<Tensor, kMaxOutputs> error_of(const ExactOp& exact, ErrorKind kind) {
  const ToleranceRule* const rule = rule_of(exact.op.op);
  if (!rule)
    throwf("{} in '{}' has no bound of rounding; compose the layer of other ops, or leave it out",
           to_string(exact.op.op), exact.op.module);
  const inspect::Unseen unseen;
  std::array<Tensor, kMaxOutputs> errors = rule->errors(exact, kind, Operands{exact});
  if (kind != ErrorKind::of_norms) return errors;
  for (Tensor& e : errors)
    if (e.defined()) e = full(e.sizes(), max(e).item(), {.dtype = DType::f64});
  return errors;
}

double roundings_of(const RecordedOp& op) {
  const double terms = op.inputs.size() < 2 || !op.inputs[0].defined() || !op.inputs[1].defined() ? 0 : terms_of(op);
  return terms == 0 ? 0 : terms * static_cast<double>(op.outputs[0].numel());
}

}  // namespace gradual::lab
