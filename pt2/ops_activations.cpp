// Activations.
#include <cmath>
#include <limits>

#include "../core/ops/derived_ops.h"
#include "ops_table.h"

namespace gradual::pt2 {
namespace {

template <Tensor (*f)(const Tensor&, Loc)> Value one(const Arguments& a) { return f(a.tensor(0), Loc::current()); }

Value gelu_row(const Arguments& a) { return gelu(a.tensor(0), a.text(1) == "tanh" ? Gelu::tanh : Gelu::exact); }
Value leaky_relu_row(const Arguments& a) { return leaky_relu(a.tensor(0), a.number(1)); }
// The slope of each channel (He et al. 2015).
Value prelu(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  Tensor slope = a.tensor(1);
  if (slope.numel() > 1 && x.dim() > 1) {
    Shape along = Shape::filled(x.dim() - 1, 1);
    along[0] = slope.numel();
    slope = reshape(slope, along);
  }
  return where(gt(x, 0), x, mul(x, slope));
}
// min(x, 0) inside exp, so that it never overflows where it is not chosen.
Tensor negative_part(const Tensor& x) { return where(gt(x, 0), 0, x); }
// self alpha scale input_scale
Value elu(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const Tensor below = mul(expm1(mul(negative_part(x), a.number(3))), a.number(1) * a.number(2));
  return where(gt(x, 0), mul(x, a.number(2)), below);
}
Value celu(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  return where(gt(x, 0), x, mul(expm1(div(negative_part(x), a.number(1))), a.number(1)));
}
// Klambauer et al. 2017.
Value selu(const Arguments& a) {
  constexpr double kAlpha = 1.6732632423543772848170429916717;
  constexpr double kScale = 1.0507009873554804934193349852946;
  const Tensor& x = a.tensor(0);
  return where(gt(x, 0), mul(x, kScale), mul(expm1(negative_part(x)), kAlpha * kScale));
}
Value hardtanh(const Arguments& a) { return clamp_strictly(a.tensor(0), a.number(1), a.number(2)); }
Value relu6(const Arguments& a) { return clamp_strictly(a.tensor(0), 0, 6); }
// Howard et al. 2019.
Tensor hard_gate(const Tensor& x) { return div(clamp_strictly(add(x, 3), 0, 6), 6); }
Value hardsigmoid(const Arguments& a) { return hard_gate(a.tensor(0)); }
// f(x) from low to high; below it is 0, and above x. There the operand is replaced: Inf times 0 would be NaN. NaN
// stays.
template <class F> Tensor between(const Tensor& x, double low, double high, const F& f) {
  const Tensor above = gt(x, high);
  const Tensor inner = where(lt(x, low), low, where(above, high, x));
  return where(above, x, f(inner));
}
Value hardswish(const Arguments& a) {
  return between(a.tensor(0), -3, 3, [](const Tensor& x) { return div(mul(x, clamp_strictly(add(x, 3), 0, 6)), 6); });
}
// log(1 + exp(beta x)) / beta, and x itself above the threshold.
Value softplus_row(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const double beta = a.number(1);
  const Tensor scaled = beta == 1 ? x : mul(x, beta);
  const Tensor soft = beta == 1 ? softplus(x) : div(softplus(scaled), beta);
  return where(gt(scaled, a.number(2)), x, soft);
}
Value mish(const Arguments& a) {
  return between(a.tensor(0), -1000, 1000, [](const Tensor& x) { return mul(x, tanh(softplus(x))); });
}
Value log_sigmoid(const Arguments& a) { return neg(softplus(neg(a.tensor(0)))); }
Value glu(const Arguments& a) {
  const std::int64_t n = a.tensor(0).size(a.dim(1));
  if (n < 2 || n % 2 != 0) a.fail(1, "a dim of even size");
  const std::vector<Tensor> halves = chunk(a.tensor(0), 2, a.dim(1));
  return mul(halves[0], sigmoid(halves[1]));
}
Value threshold(const Arguments& a) { return where(le(a.tensor(0), a.number(1)), a.number(2), a.tensor(0)); }
Value hardshrink(const Arguments& a) { return where(le(abs(a.tensor(0)), a.number(1)), 0, a.tensor(0)); }
Value softshrink(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const double by = a.number(1);
  return where(gt(x, by), sub(x, by), where(lt(x, -by), add(x, by), mul(x, 0)));
}
// The sign for Inf, in place of Inf / Inf.
Value softsign(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const Tensor infinite = isinf(x);
  const Tensor finite = where(infinite, 0, x);
  return where(infinite, sign(x), div(finite, add(abs(finite), 1)));
}
Value logit(const Arguments& a) {
  Tensor x = a.tensor(0);
  if (!a.none(1)) x = clamp(x, a.number(1), 1 - a.number(1));  // the bounds pass the gradient here
  return log(div(x, sub(1, x)));
}

constexpr OpRow kActivationRows[] = {
    {"aten.relu.default", "self", one<relu>},
    {"aten.silu.default", "self", one<silu>},
    {"aten.tanh.default", "self", one<tanh>},
    {"aten.sigmoid.default", "self", one<sigmoid>},
    {"aten.special_expit.default", "self", one<sigmoid>},
    {"aten.gelu.default", "self approximate='none'", gelu_row},
    {"aten.leaky_relu.default", "self negative_slope=0.01", leaky_relu_row},
    {"aten.prelu.default", "self weight", prelu},
    {"aten.elu.default", "self alpha=1 scale=1 input_scale=1", elu},
    {"aten.celu.default", "self alpha=1", celu},
    {"aten.selu.default", "self", selu},
    {"aten.relu6.default", "self", relu6},
    {"aten.hardtanh.default", "self min_val=-1 max_val=1", hardtanh},
    {"aten.hardsigmoid.default", "self", hardsigmoid},
    {"aten.hardswish.default", "self", hardswish},
    {"aten.softplus.default", "self beta=1 threshold=20", softplus_row},
    {"aten.mish.default", "self", mish},
    {"aten.log_sigmoid.default", "self", log_sigmoid},
    {"aten.glu.default", "self dim=-1", glu},
    {"aten.threshold.default", "self threshold value", threshold},
    {"aten.hardshrink.default", "self lambd=0.5", hardshrink},
    {"aten.softshrink.default", "self lambd=0.5", softshrink},
    {"aten.softsign.default", "self", softsign},
    {"aten.logit.default", "self eps=None", logit},
};

}  // namespace

std::span<const OpRow> activation_rows() { return kActivationRows; }

}  // namespace gradual::pt2
