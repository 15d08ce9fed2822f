// Elementwise ops, comparisons and products.
#include <cmath>
#include <limits>

#include "../core/ops/derived_ops.h"
#include "../core/support/throwf.h"
#include "ops_table.h"

namespace gradual::pt2 {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

// other * alpha, without a product where alpha is 1.
Operand scaled(const Arguments& a, int i, int alpha, Tensor& storage) {
  const double by = a.number(alpha);
  if (!a.is_tensor(i)) return {a.number(i) * by};
  if (by == 1) return {a.tensor(i)};
  storage = mul(a.tensor(i), by);
  return {storage};
}

template <BinaryFn f> Value with_alpha(const Arguments& a) {
  if (a.number(2) == 1) return binary(a, f);
  const DType to = result_type(a, 0, 1);
  Tensor product;
  const Operand other = scaled(a, 1, 2, product);
  const Tensor self =
      a.is_tensor(0) ? cast(a.tensor(0), to) : full({}, a.number(0), TensorOptions{.dtype = to, .device = a.device()});
  if (other.is_number()) return f(self, other);
  return f(self, cast(*other.tensor, to));
}

Value rsub(const Arguments& a) {
  const DType to = result_type(a, 0, 1);
  const Tensor self = cast(mul(a.tensor(0), a.number(2)), to);
  if (!a.is_tensor(1)) return sub(a.number(1), self);
  return sub(cast(a.tensor(1), to), self);
}

Value divide(const Arguments& a) { return floating_binary(a, div); }

Tensor toward_zero(const Tensor& x) { return trunc(x); }

// Quotients of integers are exact in f64 up to 2^53.
Tensor rounded_quotient(const Arguments& a, Tensor (*round_by)(const Tensor&)) {
  const DType to = result_type(a, 0, 1);
  if (is_floating(to)) return round_by(binary(a, div));
  const auto wide = [&](int i) {
    return a.is_tensor(i) ? cast(a.tensor(i), DType::f64) : full({}, a.number(i), DType::f64);
  };
  return cast(round_by(div(wide(0), wide(1))), to);
}

Value divide_mode(const Arguments& a) {
  if (a.none(2)) return divide(a);
  const std::string& mode = a.text(2);
  if (mode == "floor") return rounded_quotient(a, [](const Tensor& q) { return floor(q); });
  if (mode == "trunc") return rounded_quotient(a, toward_zero);
  a.fail(2, "floor, trunc or none");
}
Value floor_divide(const Arguments& a) {
  return rounded_quotient(a, [](const Tensor& q) { return floor(q); });
}
// x - floor(x / y) y, with the sign of y.
Value remainder(const Arguments& a) {
  const Tensor q = rounded_quotient(a, [](const Tensor& t) { return floor(t); });
  return sub(cast(a.tensor(0), q.dtype()),
             mul(q, a.is_tensor(1) ? Operand(cast(a.tensor(1), q.dtype())) : Operand(a.number(1))));
}
Value fmod(const Arguments& a) {
  const Tensor q = rounded_quotient(a, toward_zero);
  return sub(cast(a.tensor(0), q.dtype()),
             mul(q, a.is_tensor(1) ? Operand(cast(a.tensor(1), q.dtype())) : Operand(a.number(1))));
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

Value clamp_range(const Arguments& a) {
  return clamp(a.tensor(0), a.optional_number(1).value_or(-kInfinity), a.optional_number(2).value_or(kInfinity));
}
Value clamp_tensor(const Arguments& a) {
  Tensor x = a.tensor(0);
  if (!a.none(1)) x = maximum(x, a.tensor(1));
  if (!a.none(2)) x = minimum(x, a.tensor(2));
  return x;
}
Value clamp_low(const Arguments& a) { return clamp(a.tensor(0), a.number(1), kInfinity); }
Value clamp_high(const Arguments& a) { return clamp(a.tensor(0), -kInfinity, a.number(1)); }

// self + value * a op b.
template <BinaryFn f> Value addc(const Arguments& a) {
  Tensor t = f(a.tensor(1), a.tensor(2));
  if (a.number(3) != 1) t = mul(t, a.number(3));
  return add(a.tensor(0), t);
}

Value lerp(const Arguments& a) {
  const Tensor difference = sub(a.tensor(1), a.tensor(0));
  return add(a.tensor(0), mul(difference, a.operand(2)));
}

// Bitwise ops on masks; the library has none on integers.
bool mask(const Arguments& a, int i) {
  return a.is_tensor(i) ? a.tensor(i).dtype() == DType::bool_ : a[i].get<bool>() != nullptr;
}
template <BinaryFn f> Value bitwise(const Arguments& a) {
  for (const int i : {0, 1})
    if (!mask(a, i)) a.fail(i, "a bool; bitwise ops on integers are not supported");
  return f(a.operand(0), a.operand(1));
}
Value bitwise_not(const Arguments& a) {
  if (!mask(a, 0)) a.fail(0, "a bool; bitwise ops on integers are not supported");
  return logical_not(a.tensor(0));
}

Value tangent(const Arguments& a) {
  const Tensor x = floating(a, a.tensor(0));
  return div(sin(x), cos(x));
}
Value erfc(const Arguments& a) { return sub(1.0, erf(floating(a, a.tensor(0)))); }
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
Value nan_to_num(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const double largest = float_info(x.dtype()).max;
  const Tensor finite = where(isnan(x), a.optional_number(1).value_or(0), x);
  const Tensor below = where(eq(finite, kInfinity), a.optional_number(2).value_or(largest), finite);
  return where(eq(below, -kInfinity), a.optional_number(3).value_or(-largest), below);
}

// --- products --------------------------------------------------------------------------------------------------------

Value product(const Arguments& a) { return matmul(a.tensor(0), a.tensor(1)); }
// matmul with vectors, as torch.matmul has it.
Value matmul_any(const Arguments& a) {
  Tensor x = a.tensor(0);
  Tensor y = a.tensor(1);
  const bool row = x.dim() == 1;
  const bool column = y.dim() == 1;
  if (row) x = unsqueeze(x, 0);
  if (column) y = unsqueeze(y, 1);
  Tensor out = matmul(x, y);
  if (column) out = squeeze(out, -1);
  if (row) out = squeeze(out, column ? -1 : -2);
  return out;
}
// beta self + alpha (a b).
Value add_product(const Arguments& a) {
  Tensor out = matmul(a.tensor(1), a.tensor(2));
  if (a.number(4) != 1) out = mul(out, a.number(4));
  if (a.number(3) == 0) return out;
  const Tensor self = a.number(3) == 1 ? a.tensor(0) : mul(a.tensor(0), a.number(3));
  return add(self, out);
}
Value add_vector_product(const Arguments& a) {
  Tensor out = squeeze(matmul(a.tensor(1), unsqueeze(a.tensor(2), 1)), 1);
  if (a.number(4) != 1) out = mul(out, a.number(4));
  return add(mul(a.tensor(0), a.number(3)), out);
}
Value outer(const Arguments& a) { return mul(unsqueeze(a.tensor(0), 1), unsqueeze(a.tensor(1), 0)); }
Value einsum_row(const Arguments& a) { return einsum(a.text(0), a.tensors(1)); }

// Rows of self [S, in], sorted by expert, times the weight [E, in, out] of their expert; `offs` are the experts' ends.
Value grouped_product(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const Tensor& weight = a.tensor(1);
  std::vector<Tensor> parts;
  std::int64_t start = 0;
  std::int64_t expert = 0;
  for (const std::int64_t end : a.tensor(2).to_vector<std::int64_t>()) {
    if (end < start || end > x.size(0)) a.fail(2, "ends that do not fall, up to the number of rows");
    if (end > start) parts.push_back(matmul(narrow(x, 0, start, end - start), select(weight, 0, expert)));
    start = end;
    ++expert;
  }
  if (start < x.size(0)) parts.push_back(zeros({x.size(0) - start, weight.size(2)}, options_of(x)));
  return parts.size() == 1 ? parts[0] : cat(parts, 0);
}

template <BinaryFn f> Value compare(const Arguments& a) { return binary(a, f); }

constexpr OpRow kRows[] = {
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
    {"aten.floor_divide.default", "self other", floor_divide},
    {"aten.floor_divide.Scalar", "self other", floor_divide},
    {"aten.remainder.Tensor", "self other", remainder},
    {"aten.remainder.Scalar", "self other", remainder},
    {"aten.fmod.Tensor", "self other", fmod},
    {"aten.fmod.Scalar", "self other", fmod},
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
    {"aten.erfc.default", "self", erfc},
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
    {"aten.bitwise_and.Tensor", "self other", bitwise<logical_and>},
    {"aten.bitwise_and.Scalar", "self other", bitwise<logical_and>},
    {"aten.bitwise_or.Tensor", "self other", bitwise<logical_or>},
    {"aten.bitwise_or.Scalar", "self other", bitwise<logical_or>},
    {"aten.bitwise_xor.Tensor", "self other", bitwise<logical_xor>},
    {"aten.bitwise_not.default", "self", bitwise_not},
    {"aten.__and__.Tensor", "self other", bitwise<logical_and>},
    {"aten.__and__.Scalar", "self other", bitwise<logical_and>},
    {"aten.__or__.Tensor", "self other", bitwise<logical_or>},
    {"aten.__or__.Scalar", "self other", bitwise<logical_or>},
    {"aten.__xor__.Tensor", "self other", bitwise<logical_xor>},
    {"aten.matmul.default", "self other", matmul_any},
    {"aten.mm.default", "self mat2", product},
    {"aten.bmm.default", "self mat2", product},
    {"aten.mv.default", "self vec", matmul_any},
    {"aten.dot.default", "self tensor", matmul_any},
    {"aten.outer.default", "self vec2", outer},
    {"aten.addmm.default", "self mat1 mat2 beta=1 alpha=1", add_product},
    {"aten.baddbmm.default", "self batch1 batch2 beta=1 alpha=1", add_product},
    {"aten.addbmm.default", "self batch1 batch2 beta=1 alpha=1",
     [](const Arguments& a) -> Value {
       const Tensor out = sum(matmul(a.tensor(1), a.tensor(2)), {0});
       return add(mul(a.tensor(0), a.number(3)), mul(out, a.number(4)));
     }},
    {"aten.addmv.default", "self mat vec beta=1 alpha=1", add_vector_product},
    {"aten.einsum.default", "equation tensors path=None", einsum_row},
    {"transformers.grouped_mm_fallback.default", "input weight offs", grouped_product},
};

}  // namespace

std::span<const OpRow> arithmetic_rows() { return kRows; }

}  // namespace gradual::pt2
