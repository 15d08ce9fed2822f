// How errors of rows pass through ops: by singular values of matrices, and by the largest slopes of functions over all
// inputs within the errors, so that nothing of higher order is left out.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <vector>

#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "error_rows.h"
#include "judge_bounds.h"
#include "softmax_rows.h"
#include "tolerance_rules.h"

namespace gradual::lab {
namespace {

// What arrives at the result from the inputs' errors, as the norm of each row and of each element, and the op's own
// rounding of each element at any inputs within the errors.
struct Passed {
  Tensor rows, elements, own;
};

Tensor largest_of_rows(const Tensor& t) { return t.dim() == 0 ? reshape(t, {1}) : amax(t, {-1}, true); }
Tensor magnitudes(const Tensor& t) { return abs(finite(t)); }

// --- products --------------------------------------------------------------------------------------------------------

// a [.., m, k] b [.., k, n]; linear's second operand is b transposed.
Passed through_product(const ExactOp& exact, const Operands& in) {
  const bool linear = exact.op.op == OpId::linear;
  const Tensor& a = exact.x[0];
  const Tensor b = linear ? exact.x[1].transpose(0, 1) : exact.x[1];
  const Tensor b_columns = sqrt(sum(square(b), {-2}, true));
  const Tensor b_error = linear ? in.rows(1).transpose(0, 1) : in.columns(1);
  const Tensor a_error = in.rows(0);
  const Tensor a_rows = add(norm_of_rows(a), a_error);
  const Tensor bias_error =
      exact.x.size() > 2 && exact.x[2].defined() ? in.error(2) : zeros({1}, {.dtype = DType::f64});
  const Tensor whole_b_error = sqrt(sum(square(b_error), {-1}, true));
  Passed p;
  p.rows = add(mul(a_error, largest_singular_value(b)), mul(a_rows, whole_b_error));
  p.rows = add(p.rows, norm_of_rows(bias_error));
  const Tensor terms = add(mul(a_error, b_columns), mul(a_rows, b_error));
  p.elements = add(terms, bias_error);
  // The magnitudes of the terms grow by no more than that, by Cauchy's inequality.
  std::vector<Tensor> sizes;
  for (const Tensor& x : exact.x) sizes.push_back(x.defined() ? abs(x) : x);
  p.own = rounding_of_products(exact, in.of(0, sizes), p.elements, exact.y[0], 0);
  return p;
}

// --- one element at a time -------------------------------------------------------------------------------------------

// Of a function whose slope is at most this everywhere, computed with a few units of rounding.
Passed of_slope(const ExactOp& exact, const Operands& in, double slope, double units) {
  Passed p;
  p.rows = mul(in.rows(0), slope);
  p.elements = p.rows;
  const Tensor size = add(add(magnitudes(exact.x[0]), magnitudes(exact.y[0])), mul(in.error(0), 1 + slope));
  p.own = in.rounding(size, in.error(0), units);
  return p;
}

constexpr double kSlopeOfGelu = 1.13;
constexpr double kCurvatureOfGelu = 1.2;

Passed through_relu(const ExactOp& exact, const Operands& in) { return of_slope(exact, in, 1, 1); }
Passed through_gelu(const ExactOp& exact, const Operands& in) { return of_slope(exact, in, kSlopeOfGelu, 10); }
Passed through_copy(const ExactOp& exact, const Operands& in) {
  return {in.rows(0), in.rows(0), zeros_like(exact.y[0])};
}

// Both operands have the result's rows, or are numbers of the program.
bool have_rows(const ExactOp& exact) {
  for (std::size_t i = 0; i < 2; ++i) {
    const Tensor& x = exact.x[i];
    if (x.defined() && (x.dim() == 0 || exact.y[0].dim() == 0 || x.size(-1) != exact.y[0].size(-1))) return false;
  }
  return true;
}

Passed through_addition(const ExactOp&, const Operands& in) {
  Passed p;
  p.rows = add(in.rows(0), in.rows(1));
  p.elements = p.rows;
  const Tensor carried = add(in.error(0), in.error(1));
  const Tensor operands = add(magnitudes(in.value(0)), magnitudes(in.value(1)));
  p.own = in.rounding(add(operands, carried), carried, 1);
  return p;
}

Passed through_multiplication(const ExactOp&, const Operands& in) {
  const Tensor a = abs(in.value(0));
  const Tensor b = abs(in.value(1));
  Passed p;
  p.rows = add(mul(in.rows(0), add(largest_of_rows(b), in.rows(1))), mul(in.rows(1), largest_of_rows(a)));
  p.elements = p.rows;
  const Tensor size = mul(add(a, in.error(0)), add(b, in.error(1)));
  p.own = in.rounding(size, size, 2);
  return p;
}

// dy where y > 0, or where y may be.
Passed through_relu_gradient(const ExactOp& exact, const Operands& in) {
  const Tensor& y = exact.x[1];
  const Tensor open = logical_and(gt(add(y, in.error(1)), 0), le(sub(y, in.error(1)), 0));
  const Tensor either = where(open, add(abs(exact.x[0]), in.error(0)), 0);
  return {add(in.rows(0), norm_of_rows(either)), add(in.rows(0), either), zeros_like(exact.y[0])};
}

// dy f'(x).
Passed through_gelu_gradient(const ExactOp& exact, const Operands& in) {
  const Tensor g = abs(exact.x[0]);
  const Tensor carried = mul(mul(in.rows(1), kCurvatureOfGelu), largest_of_rows(g));
  Passed p;
  p.rows = add(mul(in.rows(0), kSlopeOfGelu), carried);
  p.elements = add(mul(in.rows(0), kSlopeOfGelu), mul(mul(in.error(1), kCurvatureOfGelu), g));
  const Tensor wide = add(g, in.error(0));
  const Tensor slope_units = add(add(abs(exact.x[1]), in.error(1)), 1 + kSlopeOfGelu);
  p.own = in.rounding(mul(wide, slope_units), wide, 6);
  return p;
}

// --- softmax ---------------------------------------------------------------------------------------------------------

// The gradient diag(p) - p p^T has singular values of at most 1/2, and its row i a norm of at most sqrt(2) p_i. On the
// way to x~, p_i grows by no more than exp(2 max |error|).
Passed through_softmax(const ExactOp& exact, const Operands& in) {
  constexpr double kJoins = 32;
  constexpr double kFunction = 16;
  const double u = exact.units.sum;
  const Tensor& p_of = exact.y[0];
  const Tensor most = minimum(largest_of_rows(in.error(0)), in.rows(0));
  Passed p;
  p.rows = mul(in.rows(0), 0.5);
  p.elements = mul(minimum(mul(mul(p_of, std::sqrt(2.0)), exp(mul(most, 2))), 0.5), in.rows(0));
  const Tensor x = exact.x[0];
  const Tensor size = add(add(largest_of_rows(magnitudes(x)), most), std::log(length(x, -1)));
  const Tensor relative = add(mul(size, 4 * u), gamma(length(x, -1) + kJoins, exact.units.sum) + kFunction * u);
  p.own = add(mul(add(p_of, p.elements), expm1(relative)), in.element_least());
  return p;
}

// J g with J = diag(y) - y y^T. Gershgorin's discs bound the singular values of J. Where y moves by d,
// (J~ - J) g~ = d (g~ - y g~) - y~ (d g~).
Passed through_softmax_gradient(const ExactOp& exact, const Operands& in) {
  const Tensor& g = exact.x[0];
  const Tensor& y = exact.x[1];
  const Tensor discs = mul(abs(y), add(sub(sum(abs(y), {-1}, true), mul(abs(y), 2)), 1));
  const Tensor centred = sub(g, sum(mul(g, y), {-1}, true));
  const Tensor y_rows = norm_of_rows(y);
  const Tensor g_rows = norm_of_rows(g);
  const Tensor g_error = in.rows(0);
  const Tensor y_error = in.rows(1);
  Tensor steepness = add(largest_of_rows(abs(centred)), mul(g_error, add(y_rows, 1)));
  steepness = add(steepness, mul(add(y_rows, y_error), add(g_rows, g_error)));
  Passed p;
  p.rows = add(mul(g_error, largest_of_rows(abs(discs))), mul(y_error, steepness));
  p.elements = p.rows;
  ExactOp near = exact;
  near.x = {add(abs(g), in.error(0)), add(abs(y), in.error(1))};
  near.error.assign(2, Tensor());
  near.rows.clear();
  p.own = error_of(near, ErrorKind::always)[0];
  return p;
}

// --- norms -----------------------------------------------------------------------------------------------------------

bool is_exact(const Tensor& error) { return !error.defined() || max(error).item() == 0; }
Tensor largest_weight(const NormParts& p) { return max(abs(p.weight)); }

Passed through_norm(const ExactOp& exact, const Operands& in) {
  const Units units = units_of_sums(exact);
  const NormNumbers n = norm_of(exact, in);
  const NearbyNorm near = nearby_norm(n, norm_parts(n, units), units);
  const Tensor moved = mul(near.parts.root, n.x_rows);
  Passed p;
  p.rows = mul(moved, largest_weight(near.parts));
  p.elements = mul(moved, near.parts.weight);
  p.own = add(norm_output_bound(near.numbers, near.parts, units), in.element_least());
  return p;
}

// r (g' - mean g' - x' mean(g' x')) of g' = g w, a projection of g' times r. The second derivative of the normalised
// row is symmetric in its arguments, so that its norm is that at equal ones (Banach 1938), which is at most
// max 3 t (1 - t^2) r^2 / sqrt(n) = 2 / sqrt(3) r^2 / sqrt(n).
Passed through_norm_gradient(const ExactOp& exact, const Operands& in) {
  const Units units = units_of_sums(exact);
  const NormNumbers n = norm_of(exact, in);
  const NearbyNorm near = nearby_norm(n, norm_parts(n, units), units);
  const Tensor& root = near.parts.root;
  const Tensor weight = largest_weight(near.parts);
  const Tensor g_error = mul(in.rows(0), weight);
  const Tensor curvature = mul(square(root), 2 / std::sqrt(3 * near.parts.terms));
  const Tensor turned = mul(mul(curvature, n.x_rows), add(norm_of_rows(mul(exact.x[0], near.parts.weight)), g_error));
  Passed p;
  p.rows = add(mul(root, g_error), turned);
  p.elements = p.rows;
  const Tensor g = add(abs(exact.x[0]), in.error(0));
  const Tensor dx = add(abs(exact.y[0]), p.rows);
  p.own = norm_input_gradient_bound(near.numbers, near.parts, g, zeros_like(g), dx, units);
  p.own = add(p.own, mul(mul(square(add(root, 1)), add(near.parts.normal, 1)), in.element_least()));
  return p;
}

// Weights without errors, one dim.
bool has_exact_weights(const ExactOp& exact, const Operands& in) {
  const NormNumbers n = norm_of(exact, in);
  return n.x_rows.defined() && is_exact(n.weight_error) && is_exact(n.bias_error);
}

bool is_matrix_product(const ExactOp& exact, const Operands&) { return exact.x[0].dim() > 1 && exact.x[1].dim() > 1; }
bool has_last_dim(const ExactOp& exact, const Operands&) { return is_along_last(exact.op); }
bool has_rows(const ExactOp& exact, const Operands&) { return exact.y[0].dim() > 0; }
bool have_equal_rows(const ExactOp& exact, const Operands&) { return have_rows(exact); }

struct RowRule {
  OpId op;
  Passed (*passed)(const ExactOp& exact, const Operands& in);
  bool (*holds)(const ExactOp& exact, const Operands& in);
};
constexpr RowRule kRules[] = {
    {OpId::linear, through_product, is_matrix_product},
    {OpId::matmul, through_product, is_matrix_product},
    {OpId::relu, through_relu, has_rows},
    {OpId::relu_backward, through_relu_gradient, has_rows},
    {OpId::gelu, through_gelu, has_rows},
    {OpId::gelu_backward, through_gelu_gradient, has_rows},
    {OpId::clone, through_copy, has_rows},
    {OpId::cast, through_copy, has_rows},
    {OpId::add, through_addition, have_equal_rows},
    {OpId::sub, through_addition, have_equal_rows},
    {OpId::mul, through_multiplication, have_equal_rows},
    {OpId::softmax, through_softmax, has_last_dim},
    {OpId::softmax_backward, through_softmax_gradient, has_last_dim},
    {OpId::layer_norm, through_norm, has_exact_weights},
    {OpId::rms_norm, through_norm, has_exact_weights},
    {OpId::layer_norm_backward, through_norm_gradient, has_exact_weights},
    {OpId::rms_norm_backward, through_norm_gradient, has_exact_weights},
};

// NaN of an infinite error times 0: nothing is known.
Tensor known(const Tensor& t) { return where(isnan(t), std::numeric_limits<double>::infinity(), t); }

}  // namespace

std::optional<RowErrors> row_errors_of(const ExactOp& exact) {
  const auto rule = std::ranges::find(kRules, exact.op.op, &RowRule::op);
  if (rule == std::end(kRules) || !exact.op.outputs[0].is_floating()) return {};
  const Operands in{exact};
  if (!rule->holds(exact, in)) return {};
  const Passed p = rule->passed(exact, in);
  const Tensor own = p.own.expand(exact.y[0].sizes());
  return RowErrors{known(add(p.rows, norm_of_rows(own))), known(add(p.elements, own))};
}

}  // namespace gradual::lab
