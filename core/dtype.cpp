#include "dtype.h"

#include <cmath>
#include <string>
#include <utility>

#include "error.h"

namespace gradual {

DType dtype_from_name(std::string_view text) {
  std::string known;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (text == name(dtype)) return dtype;
    known += (i == 0 ? "" : ", ") + std::string(name(dtype));
  }
  fail("unknown dtype '" + std::string(text) + "'; known are " + known);
}

namespace {

// Position in the promotion order; f16 and bf16 share one, and neither holds the other.
int promotion_rank(DType dtype) {
  switch (dtype) {
    case DType::bool_: return 0;
    case DType::u8: return 1;
    case DType::i32: return 2;
    case DType::i64: return 3;
    case DType::f16:
    case DType::bf16: return 4;
    case DType::f32: return 5;
    default: return 6;
  }
}

}  // namespace

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_f8(a) || is_f8(b)) {
    fail("promote: " + std::string(name(a)) + " with " + std::string(name(b)) +
         ": f8 tensors never promote; cast one operand to the dtype that is meant");
  }
  const int rank_a = promotion_rank(a);
  const int rank_b = promotion_rank(b);
  if (rank_a == rank_b) return DType::f32;  // f16 with bf16
  return rank_a > rank_b ? a : b;
}

FloatInfo float_info(DType dtype) {
  int exponent_bits = 0;
  int mantissa_bits = 0;
  switch (dtype) {
    case DType::f64: exponent_bits = 11, mantissa_bits = 52; break;
    case DType::f32: exponent_bits = 8, mantissa_bits = 23; break;
    case DType::f16: exponent_bits = 5, mantissa_bits = 10; break;
    case DType::bf16: exponent_bits = 8, mantissa_bits = 7; break;
    case DType::f8e4m3fn: exponent_bits = 4, mantissa_bits = 3; break;
    case DType::f8e5m2: exponent_bits = 5, mantissa_bits = 2; break;
    default: fail("float_info: " + std::string(name(dtype)) + " is not a floating dtype");
  }
  // IEEE formats keep the highest exponent for Inf and NaN. e4m3fn spends it on numbers, and only its last
  // code, all ones, is NaN: the largest number has that exponent and the mantissa 110.
  const bool has_inf = dtype != DType::f8e4m3fn;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double epsilon = std::ldexp(1.0, -mantissa_bits);
  const double max = has_inf ? std::ldexp(2.0 - epsilon, bias) : std::ldexp(2.0 - 2 * epsilon, bias + 1);
  const double min_normal = std::ldexp(1.0, 1 - bias);
  return {.max = max,
          .min_normal = min_normal,
          .min_subnormal = std::ldexp(1.0, 1 - bias - mantissa_bits),
          .epsilon = epsilon,
          .exponent_bits = exponent_bits,
          .mantissa_bits = mantissa_bits,
          .bias = bias,
          .has_inf = has_inf};
}

}  // namespace gradual
