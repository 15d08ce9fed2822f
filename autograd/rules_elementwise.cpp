// Backward rules of the elementwise ops.
#include <cmath>
#include <numbers>

#include "../core/ops/ops.h"
#include "rule.h"

namespace gradual {
namespace {

using C = RuleContext;

// An operand of a binary op: the saved tensor, or the number.
Operand operand(const C& c, const Tensor& saved) { return saved.defined() ? Operand(saved) : Operand(c.scalar()); }

void same(const C& c) {
  for (int i = 0; i < c.inputs(); ++i) c.set(i, c.grad());
}
void zero(const C& c) { c.set(0, zeros_like(c.grad())); }  // not grad * 0: an Inf would give NaN
void product(const C& c) {
  if (c.needs(0) && c.needs(1)) c.set(0, c.grad() * operand(c, c.optional_input(1)));
  else if (c.needs(0)) c.set(0, c.take_grad() * operand(c, c.optional_input(1)));
  if (c.needs(1)) c.set(1, c.take_grad() * operand(c, c.optional_input(0)));
}
// d a^b: b a^(b-1) for a (0 where b is 0), a^b log a for b (0 where a is 0 and b is not negative).
void pow_rule(const C& c) {
  const Tensor a = c.optional_input(0);
  const Tensor b = c.optional_input(1);
  if (c.needs(0) && b.defined()) {
    const Tensor flat = b == 0;
    const Tensor base = c.create_graph() ? where(flat, 1, a) : a;  // 0^-2 would make the second derivative NaN
    c.set(0, where(flat, 0, c.grad() * (b * pow(base, b - 1))));
  } else if (c.needs(0)) {
    const double e = c.scalar();
    if (e == 0) zero(c);
    else c.set(0, c.grad() * (pow(a, e - 1) * e));
  }
  if (c.needs(1) && a.defined()) {
    const Tensor flat = logical_and(a == 0, b >= 0);
    c.set(1, where(flat, 0, c.grad() * (c.output(0) * log(where(flat, 1, a)))));
  } else if (c.needs(1)) {
    const Tensor g = c.grad() * (c.output(0) * std::log(c.scalar()));
    c.set(1, c.scalar() == 0 ? where(b >= 0, 0, g) : g);
  }
}
// The angle of the point (x, y) has the slopes x / r^2 and -y / r^2. They are computed at the scale of the larger of
// |x| and |y|, where r^2 neither overflows nor vanishes. At infinity they are 0, their limit.
void angle(const C& c) {
  const auto coordinate = [&](int i) {
    const Tensor saved = c.optional_input(i);
    return saved.defined() ? saved : full({}, c.scalar(), options_of(c.grad()));
  };
  const Tensor y = coordinate(0);
  const Tensor x = coordinate(1);
  const Tensor size = detached(maximum(abs(y), abs(x)));
  const Tensor v = y / size;
  const Tensor u = x / size;
  const Tensor far = size == INFINITY;
  const auto gradient = [&](const Tensor& part) {  // of a coordinate, from the other one
    return where(far, 0, c.grad() * (part / (square(u) + square(v))) / size);
  };
  if (c.needs(0)) c.set(0, gradient(u));
  if (c.needs(1)) c.set(1, -gradient(v));
}
template <Tensor (*quotient)(const Operand&, const Operand&)> void rest_of(const C& c) {
  c.set(0, c.grad());
  if (!c.needs(1)) return;
  const Tensor a = c.optional_input(0);
  const Tensor b = c.optional_input(1);
  c.set(1, -(c.grad() * quotient(operand(c, a), operand(c, b))));
}
// Equal operands share the gradient, as in PyTorch. If one is NaN, the result is NaN, and both get the gradient. Uses
// selection, not multiplication by 0 and 1, which would turn an Inf into NaN.
template <bool kMax> void extreme(const C& c) {
  const Tensor& g = c.grad();
  const Tensor half = g * 0.5;
  for (int i : {0, 1}) {
    if (!c.needs(i)) continue;
    const Tensor mine = c.input(i);
    const Tensor other = c.optional_input(1 - i);
    const Tensor loses = kMax ? lt(mine, operand(c, other)) : gt(mine, operand(c, other));
    c.set(i, where(loses, 0, where(eq(mine, operand(c, other)), half, g)));
  }
}
// s (x (1 - s) + 1) with s = sigmoid(x). For x = Inf the product is 0, its limit.
Tensor silu_slope(const Tensor& x) {
  const double most = float_info(x.dtype()).max;
  const Tensor s = sigmoid(x);
  return s * (clamp(x, -most, most) * (1 - s) + 1);
}
// 2/sqrt(pi) exp(-x^2). Beyond 30 it and its derivative are 0.
Tensor erf_slope(const C& c) {
  const Tensor x = c.create_graph() ? where(abs(c.input(0)) > 30, 30, c.input(0)) : c.input(0);
  return exp(-square(x)) * (2 * std::numbers::inv_sqrtpi);
}

// 1 / sqrt(1 + x^2). Where x^2 could overflow, 1 adds nothing to it, and the result is 1 / |x|.
Tensor inverse_root(const Tensor& x) {
  const Tensor size = abs(x);
  const Tensor far = size > 4 / std::sqrt(float_info(x.dtype()).epsilon);
  return where(far, reciprocal(where(far, size, 1)), rsqrt(square(where(far, 0, x)) + 1));
}
// 1 - x^2.
Tensor from_one(const Tensor& x) { return (1 - x) * (1 + x); }
// 1 / (1 - x^2). Its derivative at Inf is 0.
Tensor atanh_slope(const C& c) {
  const double most = float_info(c.input(0).dtype()).max;
  const Tensor x = c.create_graph() ? where(abs(c.input(0)) > most, most, c.input(0)) : c.input(0);
  return reciprocal(from_one(x));
}

void register_binary() {
  set_rule(OpId::add, {}, same);
  set_rule(OpId::sub, {}, [](const C& c) {
    c.set(0, c.grad());
    if (c.needs(1)) c.set(1, -c.grad());
  });
  set_rule(OpId::mul, {in(1), in(0)}, product);
  set_rule(OpId::div, {in(1), in(1) | out(0)}, [](const C& c) {
    const Tensor b = c.optional_input(1);
    if (c.needs(0)) c.set(0, c.grad() / operand(c, b));
    if (c.needs(1)) c.set(1, -c.grad() * (c.output(0) / b));
  });
  set_rule(OpId::pow, {in(0) | in(1), in(0) | in(1) | out(0)}, pow_rule);
  set_rule(OpId::maximum, {in(0) | in(1), in(0) | in(1)}, extreme<true>);
  set_rule(OpId::minimum, {in(0) | in(1), in(0) | in(1)}, extreme<false>);
  set_rule(OpId::atan2, {in(0) | in(1), in(0) | in(1)}, angle);
  // a - q b: the quotient q is constant between its steps.
  set_rule(OpId::remainder, {0, in(0) | in(1)}, rest_of<floor_divide>);
  set_rule(OpId::fmod, {0, in(0) | in(1)}, rest_of<trunc_divide>);
  for (const OpId steps : {OpId::floor_divide, OpId::trunc_divide})
    set_rule(steps, {}, [](const C& c) {
      zero(c);
      if (c.needs(1)) c.set(1, zeros_like(c.grad()));
    });
  set_rule(OpId::where, {0, in(0), in(0)}, [](const C& c) {
    if (c.needs(1)) c.set(1, where(c.input(0), c.grad(), 0));
    if (c.needs(2)) c.set(2, where(c.input(0), 0, c.grad()));
  });
  set_rule(OpId::add_, {}, [](const C& c) {  // x += alpha y
    c.set(0, c.grad());
    if (c.needs(1)) c.set(1, c.scalar() == 1 ? c.grad() : c.grad() * c.scalar());
  });
  set_rule(OpId::mul_, {in(1), in(0)}, product);
  set_rule(OpId::copy_, {}, [](const C& c) {
    zero(c);
    c.set(1, c.grad());
  });
  set_rule(OpId::fill_, {}, zero);
}

void register_unary() {
  set_rule(OpId::neg, {}, [](const C& c) { c.set(0, -c.grad()); });
  set_rule(OpId::abs, {in(0)}, [](const C& c) { c.set(0, c.take_grad() * sign(c.input(0))); });
  for (const OpId steps : {OpId::sign, OpId::floor, OpId::ceil, OpId::round, OpId::trunc}) set_rule(steps, {}, zero);
  set_rule(OpId::exp, {out(0)}, [](const C& c) { c.set(0, c.take_grad() * c.output(0)); });
  set_rule(OpId::exp2, {out(0)}, [](const C& c) { c.set(0, c.take_grad() * (c.output(0) * std::numbers::ln2)); });
  // Not the output plus 1, in which the small slopes of the left tail would be lost.
  set_rule(OpId::expm1, {in(0)}, [](const C& c) { c.set(0, c.take_grad() * exp(c.input(0))); });
  set_rule(OpId::log2, {in(0)}, [](const C& c) { c.set(0, c.take_grad() / (c.input(0) * std::numbers::ln2)); });
  set_rule(OpId::log, {in(0)}, [](const C& c) { c.set(0, c.take_grad() / c.input(0)); });
  set_rule(OpId::log1p, {in(0)}, [](const C& c) { c.set(0, c.take_grad() / (c.input(0) + 1)); });
  set_rule(OpId::log10, {in(0)}, [](const C& c) { c.set(0, c.take_grad() * (1 / std::numbers::ln10) / c.input(0)); });
  // (1 - x) (1 + x) rather than 1 - x^2, which loses the digits near 1.
  set_rule(OpId::asin, {in(0)}, [](const C& c) { c.set(0, c.take_grad() * rsqrt(from_one(c.input(0)))); });
  set_rule(OpId::acos, {in(0)}, [](const C& c) { c.set(0, -c.take_grad() * rsqrt(from_one(c.input(0)))); });
  set_rule(OpId::atan, {in(0)}, [](const C& c) { c.set(0, c.take_grad() * square(inverse_root(c.input(0)))); });
  set_rule(OpId::asinh, {in(0)}, [](const C& c) { c.set(0, c.take_grad() * inverse_root(c.input(0))); });
  set_rule(OpId::acosh, {in(0)}, [](const C& c) {
    const Tensor x = c.input(0);
    c.set(0, c.take_grad() * (rsqrt(x - 1) * rsqrt(x + 1)));
  });
  set_rule(OpId::atanh, {in(0)}, [](const C& c) { c.set(0, c.take_grad() * atanh_slope(c)); });
  set_rule(OpId::sqrt, {out(0)}, [](const C& c) { c.set(0, c.take_grad() / (c.output(0) * 2)); });
  set_rule(OpId::rsqrt, {out(0)},
           [](const C& c) { c.set(0, c.take_grad() * (square(c.output(0)) * -0.5 * c.output(0))); });
  set_rule(OpId::reciprocal, {out(0)}, [](const C& c) { c.set(0, -c.grad() * square(c.output(0))); });
  set_rule(OpId::square, {in(0)}, [](const C& c) { c.set(0, c.take_grad() * (c.input(0) * 2)); });
  set_rule(OpId::sin, {in(0)}, [](const C& c) { c.set(0, c.take_grad() * cos(c.input(0))); });
  set_rule(OpId::cos, {in(0)}, [](const C& c) { c.set(0, -c.grad() * sin(c.input(0))); });
  set_rule(OpId::tanh, {out(0)}, [](const C& c) { c.set(0, c.take_grad() * (1 - square(c.output(0)))); });
  set_rule(OpId::sigmoid, {out(0)}, [](const C& c) { c.set(0, c.take_grad() * (c.output(0) * (1 - c.output(0)))); });
  set_rule(OpId::erf, {in(0)}, [](const C& c) { c.set(0, c.take_grad() * erf_slope(c)); });
  set_rule(OpId::erfc, {in(0)}, [](const C& c) { c.set(0, -(c.take_grad() * erf_slope(c))); });
  // Selection: multiplying by a 0/1 mask would turn an Inf in the gradient into NaN where the mask is 0.
  set_rule(OpId::relu, {out(0)}, [](const C& c) { c.set(0, times_slope(c, OpId::relu_backward, {}, c.output(0))); });
  set_rule(OpId::relu_backward, {in(1), 0}, [](const C& c) {
    if (c.needs(0)) c.set(0, times_slope(c, OpId::relu_backward, {}, c.input(1)));
  });
  set_rule(OpId::leaky_relu, {in(0)},
           [](const C& c) { c.set(0, where(c.input(0) > 0, c.grad(), c.grad() * c.scalar())); });
  set_rule(OpId::gelu, {in(0)}, [](const C& c) { c.set(0, gelu_gradient(c, c.input(0))); });
  set_rule(OpId::silu, {in(0)}, [](const C& c) { c.set(0, c.take_grad() * silu_slope(c.input(0))); });
  set_rule(OpId::softplus, {in(0)}, [](const C& c) { c.set(0, c.take_grad() * sigmoid(c.input(0))); });
  // The bounds pass the gradient, so that a number which clamp has put there can leave.
  set_rule(OpId::clamp, {in(0)}, [](const C& c) {
    const auto& a = c.get<ScalarAttrs>();
    c.set(0, where(logical_and(c.input(0) >= a.value, c.input(0) <= a.high), c.take_grad(), 0));
  });
  for (const OpId copies : {OpId::cast, OpId::clone, OpId::to_device}) set_rule(copies, {}, same);
  // The gradient of dropout draws the same numbers again.
  set_rule(OpId::dropout, {}, [](const C& c) { c.set(0, call_row(OpId::dropout, c.node().attrs, c.grad())[0]); });
  set_rule(OpId::dropout_add, {}, [](const C& c) {
    if (c.needs(0)) c.set(0, call_row(OpId::dropout, c.node().attrs, cast(c.grad(), c.dtype(0)))[0]);
    c.set(1, c.grad());
  });
}

}  // namespace

void register_elementwise_rules() {
  register_binary();
  register_unary();
  set_no_rule({OpId::bitwise_and, OpId::bitwise_or, OpId::bitwise_xor, OpId::shift_left, OpId::shift_right},
              "integers have no gradient");
  set_no_rule({OpId::unscale_, OpId::sgd_step_, OpId::adam_step_}, "an update outside the graph");
}

}  // namespace gradual
