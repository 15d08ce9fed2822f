// Backward rules of the elementwise rows.
#include <cmath>
#include <numbers>

#include "../core/dispatch.h"
#include "../core/ops.h"
#include "rule.h"

namespace gradual {
namespace {

using C = RuleContext;

// The operand on side i of a binary op: the saved tensor or the scalar.
Operand operand(const C& c, const Tensor& saved) { return saved.defined() ? Operand(saved) : Operand(c.scalar()); }
Tensor saved_or_none(const C& c, int i) { return c.has_input(i) ? c.input(i) : Tensor(); }
Tensor mask_of(const Tensor& condition, const Tensor& g) { return cast(condition, g.dtype()); }

void add_rule(const C& c) {
  for (int i = 0; i < 2; ++i)
    if (c.needs(i)) c.set(i, c.grad());
}
void sub_rule(const C& c) {
  if (c.needs(0)) c.set(0, c.grad());
  if (c.needs(1)) c.set(1, -c.grad());
}
void mul_rule(const C& c) {
  if (c.needs(0)) {
    const Tensor b = saved_or_none(c, 1);
    c.set(0, c.grad() * operand(c, b));
  }
  if (c.needs(1)) {
    const Tensor a = saved_or_none(c, 0);
    c.set(1, c.grad() * operand(c, a));
  }
}
void div_rule(const C& c) {
  const Tensor b = saved_or_none(c, 1);
  if (c.needs(0)) c.set(0, c.grad() / operand(c, b));
  if (c.needs(1)) c.set(1, -c.grad() * (c.output(0) / b));
}
// d a^b: b a^(b-1) for a (0 where b is 0), a^b log a for b (0 where a is 0 and b is not negative).
void pow_rule(const C& c) {
  const Tensor a = saved_or_none(c, 0);
  const Tensor b = saved_or_none(c, 1);
  if (c.needs(0)) {
    if (b.defined()) {
      c.set(0, where(b == 0, 0, c.grad() * (b * pow(a, b - 1))));
    } else if (const double e = c.scalar(); e != 0) {
      c.set(0, c.grad() * (pow(a, e - 1) * e));
    } else {
      c.set(0, c.grad() * 0);
    }
  }
  if (c.needs(1)) {
    if (a.defined()) {
      const Tensor flat = logical_and(a == 0, b >= 0);
      c.set(1, c.grad() * where(flat, 0, c.output(0) * log(where(flat, 1, a))));
    } else {
      const Tensor slope = c.output(0) * std::log(c.scalar());
      c.set(1, c.grad() * (c.scalar() == 0 ? where(b >= 0, 0, slope) : slope));
    }
  }
}
// Equal operands share the gradient, as in PyTorch.
template <bool kMax> void extreme_rule(const C& c) {
  const Tensor a = saved_or_none(c, 0);
  const Tensor b = saved_or_none(c, 1);
  const Operand x = operand(c, a);
  const Operand y = operand(c, b);
  const Tensor& g = c.grad();
  const Tensor half = mask_of(eq(x, y), g) * 0.5;
  if (c.needs(0)) c.set(0, g * (mask_of(kMax ? gt(x, y) : lt(x, y), g) + half));
  if (c.needs(1)) c.set(1, g * (mask_of(kMax ? lt(x, y) : gt(x, y), g) + half));
}
void where_rule(const C& c) {
  const Tensor condition = c.input(0);
  if (c.needs(1)) c.set(1, where(condition, c.grad(), 0));
  if (c.needs(2)) c.set(2, where(condition, 0, c.grad()));
}

void neg_rule(const C& c) { c.set(0, -c.grad()); }
void abs_rule(const C& c) { c.set(0, c.grad() * sign(c.input(0))); }
void zero_rule(const C& c) { c.set(0, zeros_like(c.grad())); }  // not grad * 0: an Inf would give NaN
void exp_rule(const C& c) { c.set(0, c.grad() * c.output(0)); }
void log_rule(const C& c) { c.set(0, c.grad() / c.input(0)); }
void log1p_rule(const C& c) { c.set(0, c.grad() / (c.input(0) + 1)); }
void sqrt_rule(const C& c) { c.set(0, c.grad() / (c.output(0) * 2)); }
void rsqrt_rule(const C& c) {
  const Tensor y = c.output(0);
  c.set(0, c.grad() * (y * y * y * -0.5));
}
void reciprocal_rule(const C& c) { c.set(0, -c.grad() * square(c.output(0))); }
void square_rule(const C& c) { c.set(0, c.grad() * (c.input(0) * 2)); }
void sin_rule(const C& c) { c.set(0, c.grad() * cos(c.input(0))); }
void cos_rule(const C& c) { c.set(0, -c.grad() * sin(c.input(0))); }
void tanh_rule(const C& c) { c.set(0, c.grad() * (1 - square(c.output(0)))); }
void sigmoid_rule(const C& c) {
  const Tensor y = c.output(0);
  c.set(0, c.grad() * (y * (1 - y)));
}
void erf_rule(const C& c) { c.set(0, c.grad() * (exp(-square(c.input(0))) * (2 * std::numbers::inv_sqrtpi))); }
// Multiplying by a 0/1 mask would turn an overflowed gradient into NaN where the mask is 0; selecting does not.
void relu_rule(const C& c) { c.set(0, where(c.output(0) > 0, c.grad(), 0)); }
void leaky_relu_rule(const C& c) { c.set(0, where(c.input(0) > 0, c.grad(), c.grad() * c.scalar())); }
// exact: Phi(x) + x phi(x). tanh form (Hendrycks and Gimpel 2016): derivative of 0.5 x (1 + tanh u).
void gelu_rule(const C& c) {
  const Tensor x = c.input(0);
  if (!c.get<GeluAttrs>().tanh) {
    const Tensor cdf = erf(x * (1 / std::numbers::sqrt2)) * 0.5 + 0.5;
    const Tensor pdf = exp(square(x) * -0.5) * (std::numbers::inv_sqrtpi / std::numbers::sqrt2);
    c.set(0, c.grad() * (cdf + x * pdf));
    return;
  }
  const double k = std::sqrt(2 / std::numbers::pi);
  const Tensor t = tanh((x + x * square(x) * 0.044715) * k);
  const Tensor du = (square(x) * (3 * 0.044715) + 1) * k;
  c.set(0, c.grad() * ((t + 1) * 0.5 + x * (1 - square(t)) * du * 0.5));
}
void silu_rule(const C& c) {
  const Tensor x = c.input(0);
  const Tensor s = sigmoid(x);
  c.set(0, c.grad() * (s * (x * (1 - s) + 1)));
}
void softplus_rule(const C& c) { c.set(0, c.grad() * sigmoid(c.input(0))); }
void clamp_rule(const C& c) {
  const auto& a = c.get<ScalarAttrs>();
  const Tensor x = c.input(0);
  c.set(0, where(logical_and(x >= a.value, x <= a.high), c.grad(), 0));
}
void cast_rule(const C& c) { c.set(0, cast(c.grad(), c.dtype(0))); }
void clone_rule(const C& c) { c.set(0, c.grad()); }
void to_device_rule(const C& c) { c.set(0, to_device(c.grad(), c.grad().device())); }
void dropout_rule(const C& c) { c.set(0, dispatch1(OpId::dropout, {&c.grad()}, c.node().attrs, Loc::current())); }

// In place. add_: x += alpha y.
void add_in_place_rule(const C& c) {
  if (c.needs(0)) c.set(0, c.grad());
  if (c.inputs() > 1 && c.needs(1)) {
    const Tensor g = c.scalar() == 1 ? c.grad() : c.grad() * c.scalar();
    c.set(1, cast(g, c.dtype(1)));
  }
}
void mul_in_place_rule(const C& c) {
  if (c.needs(0)) {
    const Tensor b = saved_or_none(c, 1);
    c.set(0, c.grad() * (b.defined() ? Operand(cast(b, c.grad().dtype())) : Operand(c.scalar())));
  }
  if (c.needs(1)) c.set(1, cast(c.grad() * c.input(0), c.dtype(1)));
}
void copy_in_place_rule(const C& c) {
  if (c.needs(0)) c.set(0, zeros_like(c.grad()));
  if (c.needs(1)) c.set(1, cast(c.grad(), c.dtype(1)));
}

}  // namespace

void register_elementwise_rules() {
  set_rule(OpId::add, add_rule);
  set_rule(OpId::sub, sub_rule);
  set_rule(OpId::mul, mul_rule, {in(1), in(0)});
  set_rule(OpId::div, div_rule, {in(1), static_cast<std::uint16_t>(in(1) | out(0))});
  set_rule(OpId::pow, pow_rule,
           {static_cast<std::uint16_t>(in(0) | in(1)), static_cast<std::uint16_t>(in(0) | in(1) | out(0))});
  const std::uint16_t both = in(0) | in(1);
  set_rule(OpId::maximum, extreme_rule<true>, {both, both});
  set_rule(OpId::minimum, extreme_rule<false>, {both, both});
  set_rule(OpId::where, where_rule, {0, in(0), in(0)});

  set_rule(OpId::neg, neg_rule);
  set_rule(OpId::abs, abs_rule, {in(0)});
  set_rule(OpId::sign, zero_rule);
  set_rule(OpId::exp, exp_rule, {out(0)});
  set_rule(OpId::log, log_rule, {in(0)});
  set_rule(OpId::log1p, log1p_rule, {in(0)});
  set_rule(OpId::sqrt, sqrt_rule, {out(0)});
  set_rule(OpId::rsqrt, rsqrt_rule, {out(0)});
  set_rule(OpId::reciprocal, reciprocal_rule, {out(0)});
  set_rule(OpId::square, square_rule, {in(0)});
  set_rule(OpId::sin, sin_rule, {in(0)});
  set_rule(OpId::cos, cos_rule, {in(0)});
  set_rule(OpId::tanh, tanh_rule, {out(0)});
  set_rule(OpId::sigmoid, sigmoid_rule, {out(0)});
  set_rule(OpId::erf, erf_rule, {in(0)});
  set_rule(OpId::relu, relu_rule, {out(0)});
  set_rule(OpId::leaky_relu, leaky_relu_rule, {in(0)});
  set_rule(OpId::gelu, gelu_rule, {in(0)});
  set_rule(OpId::silu, silu_rule, {in(0)});
  set_rule(OpId::softplus, softplus_rule, {in(0)});
  set_rule(OpId::clamp, clamp_rule, {in(0)});
  set_rule(OpId::cast, cast_rule);
  set_rule(OpId::clone, clone_rule);
  set_rule(OpId::to_device, to_device_rule);
  set_rule(OpId::dropout, dropout_rule);

  set_rule(OpId::add_, add_in_place_rule);
  set_rule(OpId::mul_, mul_in_place_rule, {in(1), in(0)});
  set_rule(OpId::copy_, copy_in_place_rule);
  set_rule(OpId::fill_, zero_rule);
  for (OpId op : {OpId::unscale_, OpId::sgd_step_, OpId::adam_step_}) set_no_rule(op, "an update outside the graph");
  for (OpId op : {OpId::eq, OpId::ne, OpId::lt, OpId::le, OpId::gt, OpId::ge, OpId::logical_and, OpId::logical_or,
                  OpId::logical_xor, OpId::logical_not})
    set_no_rule(op, "a bool result");
}

}  // namespace gradual
