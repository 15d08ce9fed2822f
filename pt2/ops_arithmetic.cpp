// Elementwise ops and comparisons.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "../core/ops/derived_ops.h"
#include "../core/support/throwf.h"
#include "ops_table.h"

namespace gradual::pt2 {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kPi = std::numbers::pi;

// Of a function that gives floats: integers and bool become floats before.
template <Tensor (*f)(const Tensor&, Loc)> Value of_float(const Arguments& a) {
  return f(floating(a, a.tensor(0)), Loc::current());
}
// Of a function that keeps the dtype.
template <Tensor (*f)(const Tensor&, Loc)> Value of_number(const Arguments& a) {
  return f(a.tensor(0), Loc::current());
}
// Rounding leaves integers as they are.
template <Tensor (*f)(const Tensor&, Loc)> Value rounding(const Arguments& a) {
  return a.tensor(0).is_floating() ? f(a.tensor(0), Loc::current()) : a.tensor(0);
}
template <BinaryFn f> Value two(const Arguments& a) { return binary(a, f); }

// Argument i as a tensor of this dtype.
Tensor as_tensor(const Arguments& a, int i, DType to) {
  if (a.is_tensor(i)) return cast(a.tensor(i), to);
  if (!is_floating(to)) return cast(from_data(std::vector<std::int64_t>{a.integer(i)}, {}), to).to(a.device());
  return full({}, a.number(i), TensorOptions{.dtype = to, .device = a.device()});
}

// self and other * alpha, in their common dtype.
template <BinaryFn f> Value with_alpha(const Arguments& a) {
  if (a.number(2) == 1) return binary(a, f);
  const DType to = result_type(a, {0, 1});
  const Tensor self = as_tensor(a, 0, to);
  if (!a.is_tensor(1)) return f(self, a.number(1) * a.number(2));
  return f(self, mul(cast(a.tensor(1), to), a.number(2)));
}

Value rsub(const Arguments& a) {
  const DType to = result_type(a, {0, 1});
  Tensor self = as_tensor(a, 0, to);
  if (a.number(2) != 1) self = mul(self, a.number(2));
  if (!a.is_tensor(1)) return sub(a.number(1), self);
  return sub(cast(a.tensor(1), to), self);
}

Value divide(const Arguments& a) { return floating_binary(a, div); }

// A rounded quotient, or what is left then. Masks count as integers.
template <BinaryFn f> Value rounded(const Arguments& a) {
  const DType common = result_type(a, {0, 1});
  const DType to = common == DType::bool_ ? DType::i64 : common;
  return f(as_tensor(a, 0, to), as_tensor(a, 1, to));
}

Value divide_mode(const Arguments& a) {
  if (a.none(2)) return divide(a);
  const std::string& mode = a.text(2);
  if (mode == "floor") return rounded<floor_divide>(a);
  if (mode == "trunc") return rounded<trunc_divide>(a);
  a.fail(2, "floor, trunc or none");
}

Value power(const Arguments& a) {
  if (!a.is_tensor(1) && a.is_tensor(0)) {
    const double e = a.number(1);
    const Tensor x = a.is_floating_number(1) ? floating(a, a.tensor(0)) : a.tensor(0);
    if (e == 1) return x;
    if (e == 2) return square(x);
    return pow(x, e);
  }
  return binary(a, pow);
}

// Arguments `low` and `high`, of which one may be none (-1: not an argument).
Value clamped(const Arguments& a, int low, int high) {
  DType to = result_type(a, {0});
  if (low >= 0) to = result_type(a, {0, low});
  if (high >= 0) to = low >= 0 ? result_type(a, {0, low, high}) : result_type(a, {0, high});
  const Tensor x = cast(a.tensor(0), to);
  const auto bound = [&](int i, double otherwise) {
    return i < 0 ? otherwise : a.optional_number(i).value_or(otherwise);
  };
  const double least = bound(low, -kInfinity);
  const double most = bound(high, kInfinity);
  return clamp_strictly(x, least, most);
}
Value clamp_range(const Arguments& a) { return clamped(a, 1, 2); }
Value clamp_low(const Arguments& a) { return clamped(a, 1, -1); }
Value clamp_high(const Arguments& a) { return clamped(a, -1, 1); }

// Bounds that are tensors. Where a bound is met, half of the gradient is the bound's.
Value clamp_tensor(const Arguments& a) {
  const DType to = result_type(a, {0, 1, 2});
  Tensor x = cast(a.tensor(0), to);
  if (!a.none(1)) x = maximum(x, cast(a.tensor(1), to));
  if (!a.none(2)) x = minimum(x, cast(a.tensor(2), to));
  return x;
}

// self + value * a op b.
template <BinaryFn f> Value addc(const Arguments& a) {
  const DType to = result_type(a, {0, 1, 2});
  if (!is_floating(to) && f == static_cast<BinaryFn>(div)) a.fail(1, "floating for a division");
  Tensor left = cast(a.tensor(1), to);
  if (a.number(3) != 1) left = mul(left, a.number(3));
  return add(cast(a.tensor(0), to), f(left, cast(a.tensor(2), to)));
}

// From the nearer end, so that a weight of 0 or 1 gives an end itself.
Value lerp(const Arguments& a) {
  const DType to = result_type(a, {0, 1, 2});
  const Tensor start = cast(a.tensor(0), to);
  const Tensor end = cast(a.tensor(1), to);
  const Tensor difference = sub(end, start);
  const auto from_start = [&](const Operand& w) { return add(start, mul(w, difference)); };
  const auto from_end = [&](const Operand& w) { return sub(end, mul(difference, sub(1, w))); };
  if (!a.is_tensor(2)) {
    const double w = a.number(2);
    return std::abs(w) < 0.5 ? from_start(w) : sub(end, mul(difference, 1 - w));
  }
  const Tensor w = cast(a.tensor(2), to);
  return where(lt(abs(w), 0.5), from_start(w), from_end(w));
}

// Ops on the bits of integers; of masks they are logical ones.
template <BinaryFn f> Value bitwise(const Arguments& a) {
  for (const int i : {0, 1})
    if (a.is_tensor(i) ? a.tensor(i).is_floating() : a.is_floating_number(i)) a.fail(i, "an integer or a bool");
  const DType to = result_type(a, {0, 1});
  return f(as_tensor(a, 0, to), as_tensor(a, 1, to));
}
Value bitwise_not(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  if (x.dtype() == DType::bool_) return logical_not(x);
  if (x.is_floating()) a.fail(0, "an integer or a bool");
  constexpr double kAllBits = -1;
  constexpr double kAllBitsOfByte = 255;
  return bitwise_xor(x, x.dtype() == DType::u8 ? kAllBitsOfByte : kAllBits);
}
Value angle_of(const Arguments& a) {
  const DType common = result_type(a, {0, 1});
  const DType to = is_floating(common) ? common : a.real();
  return atan2(as_tensor(a, 0, to), as_tensor(a, 1, to));
}

Value tangent(const Arguments& a) {
  const Tensor x = floating(a, a.tensor(0));
  return div(sin(x), cos(x));
}

// sin(pi x) / (pi x); 1, with the slope 0, at 0.
Value sinc(const Arguments& a) {
  const Tensor x = floating(a, a.tensor(0));
  const Tensor there = eq(x, 0);
  const Tensor angle = mul(where(there, 1, x), kPi);
  return where(there, 1, div(sin(angle), angle));
}
Value sinh(const Arguments& a) {
  const Tensor x = floating(a, a.tensor(0));
  return mul(sub(expm1(x), expm1(neg(x))), 0.5);
}
Value cosh(const Arguments& a) {
  const Tensor x = floating(a, a.tensor(0));
  return mul(add(exp(x), exp(neg(x))), 0.5);
}
Value fraction(const Arguments& a) { return sub(a.tensor(0), trunc(a.tensor(0))); }
Value same(const Arguments& a) { return a.tensor(0); }
Value round_decimals(const Arguments& a) {
  const double by = std::pow(10.0, a.number(1));
  return div(round(mul(a.tensor(0), by)), by);
}
// log(exp x + exp y): the larger one and what the other adds.
Value log_add_exp(const Arguments& a) {
  const DType to = result_type(a, {0, 1});
  const Tensor x = as_tensor(a, 0, to);
  const Tensor y = as_tensor(a, 1, to);
  const Tensor difference = sub(x, y);
  const Tensor apart = where(eq(x, y), 0, abs(difference));  // of equal infinities too
  return add(maximum(x, y), log1p(exp(neg(apart))));
}
// x log y, and 0 where x is 0 and y is not NaN. There the slope in x is log y, or 0 if that is not finite.
Value x_log_y(const Arguments& a) {
  const DType common = result_type(a, {0, 1});
  const DType to = is_floating(common) ? common : a.real();
  const Tensor x = as_tensor(a, 0, to);
  const Tensor y = as_tensor(a, 1, to);
  const Tensor without_log = logical_and(eq(x, 0), logical_or(le(y, 0), isinf(y)));
  return mul(x, log(where(without_log, 1, y)));
}
// The magnitude of self with the sign of other; -0 is negative.
Value copy_sign(const Arguments& a) {
  const DType common = result_type(a, {0, 1});
  const DType to = is_floating(common) ? common : a.real();
  const Tensor x = as_tensor(a, 0, to);
  const Tensor y = as_tensor(a, 1, to);
  const Tensor negative = logical_or(lt(y, 0), lt(reciprocal(y), 0));
  const Tensor other_side = ne(where(negative, ones_like(x), 0), where(lt(x, 0), ones_like(x), 0));
  const Tensor signed_x = where(other_side, neg(x), x);
  return where(eq(x, 0), signed_x.detach(), signed_x);  // PyTorch's gradient at 0 is 0
}
// The larger (smaller) one; a number where the other is NaN.
template <BinaryFn better> Value number_of_two(const Arguments& a) {
  const DType to = result_type(a, {0, 1});
  const Tensor x = as_tensor(a, 0, to);
  const Tensor y = as_tensor(a, 1, to);
  return where(isnan(y), x, where(isnan(x), y, better(x, y)));
}
Value hypotenuse(const Arguments& a) {
  const DType to = result_type(a, {0, 1});
  const Tensor x = as_tensor(a, 0, to);
  const Tensor y = as_tensor(a, 1, to);
  return norm(stack({expand(x, broadcast_shapes(x.sizes(), y.sizes(), "hypot")),
                     expand(y, broadcast_shapes(x.sizes(), y.sizes(), "hypot"))},
                    0),
              2, {0});
}
Value nan_to_num(const Arguments& a) {
  return gradual::nan_to_num(a.tensor(0), a.optional_number(1).value_or(0), a.optional_number(2), a.optional_number(3));
}

template <BinaryFn f> Value compare(const Arguments& a) { return binary(a, f); }

constexpr OpRow kArithmeticRows[] = {
    {"aten.add.Tensor", "self other alpha=1", with_alpha<add>},
    {"aten.add.Scalar", "self other alpha=1", with_alpha<add>},
    {"aten.sub.Tensor", "self other alpha=1", with_alpha<sub>},
    {"aten.sub.Scalar", "self other alpha=1", with_alpha<sub>},
    {"aten.subtract.Tensor", "self other alpha=1", with_alpha<sub>},
    {"aten.rsub.Tensor", "self other alpha=1", rsub},
    {"aten.rsub.Scalar", "self other alpha=1", rsub},
    {"aten.mul.Tensor", "self other", two<mul>},
    {"aten.mul.Scalar", "self other", two<mul>},
    {"aten.multiply.Tensor", "self other", two<mul>},
    {"aten.div.Tensor", "self other", divide},
    {"aten.div.Scalar", "self other", divide},
    {"aten.true_divide.Tensor", "self other", divide},
    {"aten.div.Tensor_mode", "self other rounding_mode", divide_mode},
    {"aten.div.Scalar_mode", "self other rounding_mode", divide_mode},
    {"aten.floor_divide.default", "self other", rounded<floor_divide>},
    {"aten.floor_divide.Scalar", "self other", rounded<floor_divide>},
    {"aten.remainder.Tensor", "self other", rounded<gradual::remainder>},
    {"aten.remainder.Scalar", "self other", rounded<gradual::remainder>},
    {"aten.remainder.Scalar_Tensor", "self other", rounded<gradual::remainder>},
    {"aten.fmod.Tensor", "self other", rounded<gradual::fmod>},
    {"aten.fmod.Scalar", "self other", rounded<gradual::fmod>},
    {"aten.pow.Tensor_Scalar", "self exponent", power},
    {"aten.pow.Tensor_Tensor", "self exponent", power},
    {"aten.pow.Scalar", "self exponent", power},
    {"aten.maximum.default", "self other", two<maximum>},
    {"aten.minimum.default", "self other", two<minimum>},
    {"aten.max.other", "self other", two<maximum>},
    {"aten.min.other", "self other", two<minimum>},
    {"aten.clamp.default", "self min=None max=None", clamp_range},
    {"aten.clamp.Tensor", "self min=None max=None", clamp_tensor},
    {"aten.clip.default", "self min=None max=None", clamp_range},
    {"aten.clamp_min.default", "self min", clamp_low},
    {"aten.clamp_max.default", "self max", clamp_high},
    {"aten.clamp_min.Tensor", "self min", two<maximum>},
    {"aten.clamp_max.Tensor", "self max", two<minimum>},
    {"aten.clip.Tensor", "self min=None max=None", clamp_tensor},
    {"aten.fmax.default", "self other", number_of_two<maximum>},
    {"aten.fmin.default", "self other", number_of_two<minimum>},
    {"aten.logaddexp.default", "self other", log_add_exp},
    {"aten.xlogy.Tensor", "self other", x_log_y},
    {"aten.xlogy.Scalar_Other", "self other", x_log_y},
    {"aten.xlogy.Scalar_Self", "self other", x_log_y},
    {"aten.copysign.Tensor", "self other", copy_sign},
    {"aten.copysign.Scalar", "self other", copy_sign},
    {"aten.hypot.default", "self other", hypotenuse},
    {"aten.addcmul.default", "self tensor1 tensor2 value=1", addc<mul>},
    {"aten.addcdiv.default", "self tensor1 tensor2 value=1", addc<div>},
    {"aten.lerp.Scalar", "self end weight", lerp},
    {"aten.lerp.Tensor", "self end weight", lerp},
    {"aten.neg.default", "self", of_number<neg>},
    {"aten.negative.default", "self", of_number<neg>},
    {"aten.positive.default", "self", same},
    {"aten.abs.default", "self", of_number<abs>},
    {"aten.sign.default", "self", of_number<sign>},
    {"aten.sgn.default", "self", of_number<sign>},
    {"aten.square.default", "self", of_number<square>},
    {"aten.floor.default", "self", rounding<floor>},
    {"aten.ceil.default", "self", rounding<ceil>},
    {"aten.round.default", "self", rounding<round>},
    {"aten.round.decimals", "self decimals=0", round_decimals},
    {"aten.trunc.default", "self", rounding<trunc>},
    {"aten.frac.default", "self", fraction},
    {"aten.exp.default", "self", of_float<exp>},
    {"aten.exp2.default", "self", of_float<exp2>},
    {"aten.expm1.default", "self", of_float<expm1>},
    {"aten.log.default", "self", of_float<log>},
    {"aten.log2.default", "self", of_float<log2>},
    {"aten.log1p.default", "self", of_float<log1p>},
    {"aten.sqrt.default", "self", of_float<sqrt>},
    {"aten.rsqrt.default", "self", of_float<rsqrt>},
    {"aten.reciprocal.default", "self", of_float<reciprocal>},
    {"aten.sin.default", "self", of_float<sin>},
    {"aten.cos.default", "self", of_float<cos>},
    {"aten.tan.default", "self", tangent},
    {"aten.sinh.default", "self", sinh},
    {"aten.cosh.default", "self", cosh},
    {"aten.erf.default", "self", of_float<erf>},
    {"aten.erfc.default", "self", of_float<gradual::erfc>},
    {"aten.special_erfc.default", "self", of_float<gradual::erfc>},
    {"aten.atan.default", "self", of_float<gradual::atan>},
    {"aten.asin.default", "self", of_float<gradual::asin>},
    {"aten.acos.default", "self", of_float<gradual::acos>},
    {"aten.asinh.default", "self", of_float<gradual::asinh>},
    {"aten.acosh.default", "self", of_float<gradual::acosh>},
    {"aten.atanh.default", "self", of_float<gradual::atanh>},
    {"aten.log10.default", "self", of_float<gradual::log10>},
    {"aten.sinc.default", "self", sinc},
    {"aten.special_expm1.default", "self", of_float<expm1>},
    {"aten.special_log1p.default", "self", of_float<log1p>},
    {"aten.nan_to_num.default", "self nan=None posinf=None neginf=None", nan_to_num},
    {"aten.eq.Tensor", "self other", compare<eq>},
    {"aten.eq.Scalar", "self other", compare<eq>},
    {"aten.ne.Tensor", "self other", compare<ne>},
    {"aten.ne.Scalar", "self other", compare<ne>},
    {"aten.lt.Tensor", "self other", compare<lt>},
    {"aten.lt.Scalar", "self other", compare<lt>},
    {"aten.le.Tensor", "self other", compare<le>},
    {"aten.le.Scalar", "self other", compare<le>},
    {"aten.gt.Tensor", "self other", compare<gt>},
    {"aten.gt.Scalar", "self other", compare<gt>},
    {"aten.ge.Tensor", "self other", compare<ge>},
    {"aten.ge.Scalar", "self other", compare<ge>},
    {"aten.greater.Tensor", "self other", compare<gt>},
    {"aten.less.Tensor", "self other", compare<lt>},
    {"aten.isnan.default", "self", of_number<isnan>},
    {"aten.isinf.default", "self", of_number<isinf>},
    {"aten.isfinite.default", "self", of_number<isfinite>},
    {"aten.logical_and.default", "self other", two<logical_and>},
    {"aten.logical_or.default", "self other", two<logical_or>},
    {"aten.logical_xor.default", "self other", two<logical_xor>},
    {"aten.logical_not.default", "self", of_number<logical_not>},
    {"aten.bitwise_and.Tensor", "self other", bitwise<gradual::bitwise_and>},
    {"aten.bitwise_and.Scalar", "self other", bitwise<gradual::bitwise_and>},
    {"aten.bitwise_or.Tensor", "self other", bitwise<gradual::bitwise_or>},
    {"aten.bitwise_or.Scalar", "self other", bitwise<gradual::bitwise_or>},
    {"aten.bitwise_xor.Tensor", "self other", bitwise<gradual::bitwise_xor>},
    {"aten.bitwise_not.default", "self", bitwise_not},
    {"aten.__and__.Tensor", "self other", bitwise<gradual::bitwise_and>},
    {"aten.__and__.Scalar", "self other", bitwise<gradual::bitwise_and>},
    {"aten.__or__.Tensor", "self other", bitwise<gradual::bitwise_or>},
    {"aten.__or__.Scalar", "self other", bitwise<gradual::bitwise_or>},
    {"aten.__xor__.Tensor", "self other", bitwise<gradual::bitwise_xor>},
    {"aten.__xor__.Scalar", "self other", bitwise<gradual::bitwise_xor>},
    {"aten.bitwise_xor.Scalar", "self other", bitwise<gradual::bitwise_xor>},
    {"aten.__lshift__.Scalar", "self other", bitwise<shift_left>},
    {"aten.__lshift__.Tensor", "self other", bitwise<shift_left>},
    {"aten.__rshift__.Scalar", "self other", bitwise<shift_right>},
    {"aten.__rshift__.Tensor", "self other", bitwise<shift_right>},
    {"aten.bitwise_left_shift.Tensor", "self other", bitwise<shift_left>},
    {"aten.bitwise_left_shift.Tensor_Scalar", "self other", bitwise<shift_left>},
    {"aten.bitwise_right_shift.Tensor", "self other", bitwise<shift_right>},
    {"aten.bitwise_right_shift.Tensor_Scalar", "self other", bitwise<shift_right>},
    {"aten.atan2.default", "self other", angle_of},
};

}  // namespace

std::span<const OpRow> arithmetic_rows() { return kArithmeticRows; }

}  // namespace gradual::pt2
