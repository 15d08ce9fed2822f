#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "dtype.h"

// The narrow floating dtypes as bit patterns, and the conversions of one value. convert.h converts arrays, with the
// same bits.
//
// Conversion to a narrow dtype rounds once, to nearest, ties to even. A value that rounds beyond the largest one
// becomes Inf, or NaN in f8e4m3fn, which has no Inf. A NaN stays NaN, becomes quiet, and keeps its sign and the upper
// bits of its payload that fit. The standard NaN thus becomes 7e00, 7fc0, 7f and 7e in f16, bf16, f8e4m3fn and f8e5m2.
// Conversion from a narrow dtype is exact. A signalling NaN of f16 or f8e5m2 becomes quiet, as with the F16C
// instructions. bf16 is the upper half of a float, so its NaNs keep all bits.
namespace gradual {

namespace detail {

constexpr std::int32_t kFloatInfBits = 0x7f800000;
constexpr std::int32_t kFloatQuietBit = 0x00400000;

// The layout of a narrow format: its exponent and mantissa bits, and whether the highest exponent is Inf and NaN.
template <int kExponent, int kMantissa, bool kInfinite> struct Layout {
  static constexpr bool kHasInf = kInfinite;
  static constexpr int kShift = 23 - kMantissa;  // a float's mantissa bits minus the format's
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr bool kFloatRange = kExponent == 8;  // bf16 has a float's exponents, also those of subnormal values
  static constexpr int kSignShift = kExponent + kMantissa;
  static constexpr std::uint32_t kSignBit = 1u << kSignShift;
  static constexpr std::int32_t kMantissaMask = (1 << kMantissa) - 1;
  static constexpr std::int32_t kQuietBit = 1 << (kMantissa - 1);
  static constexpr std::int32_t kRebias = (127 - kBias) << kMantissa;
  // The code of Inf, or of the only NaN.
  static constexpr std::int32_t kOverflowCode = kHasInf ? ((1 << kExponent) - 1) << kMantissa : (1 << kSignShift) - 1;
  // Bits of floats: the smallest normal value, the smallest subnormal value, and 2^23 times the latter. If kAligner is
  // added to a value below kMinNormal, the sum's last place is one quantum: the addition rounds to nearest even, and
  // the sum's lowest bits are the code.
  static constexpr std::int32_t kMinNormal = (128 - kBias) << 23;
  static constexpr std::int32_t kQuantum = kFloatRange ? 0 : (128 - kBias - kMantissa) << 23;
  static constexpr std::int32_t kAligner = kQuantum + (23 << 23);
};

// condition ? a : b by bits. With a conditional expression the compiler could move the float arithmetic of one side
// into a branch, and the loop around it would not vectorise.
constexpr std::int32_t select(bool condition, std::int32_t a, std::int32_t b) {
  return b ^ ((a ^ b) & -static_cast<std::int32_t>(condition));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
template <class L> inline constexpr bool kIsHalf = std::is_same_v<L, Layout<5, 10, true>>;
// A GPU has instructions for f16 with the same rounding. Their results for NaN are unspecified, so a NaN is built here
// from its sign, exponent and payload.
__device__ inline std::uint32_t encode_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  std::uint32_t code;  // two codes, the upper one 0; the instruction for a single code is slower
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(code) : "f"(0.0f), "f"(value));
  return value != value ? ((bits >> 16) & 0x8000) | 0x7e00 | ((bits >> 13) & 0x3ff) : code;
}
__device__ inline float decode_half(std::uint32_t code) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<std::uint16_t>(code)));
  const std::uint32_t nan = ((code << 16) & 0x80000000) | 0x7fc00000 | ((code << 13) & 0x7fe000);
  return value != value ? std::bit_cast<float>(nan) : value;
}
#endif

// encode and decode compare signed integers or floats only, because every vector instruction set can compare those.
template <class L> constexpr std::uint32_t encode(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (kIsHalf<L>)
    if (!std::is_constant_evaluated()) return encode_half(value);
#endif
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if constexpr (L::kFloatRange) {  // a carry out of the mantissa gives the next power of two, or Inf
    const std::uint32_t rounded = bits + ((1u << (L::kShift - 1)) - 1) + ((bits >> L::kShift) & 1);
    const std::uint32_t quiet = bits | kFloatQuietBit;
    return (value != value ? quiet : rounded) >> L::kShift;
  }
  const auto magnitude = static_cast<std::int32_t>(bits & 0x7fffffff);
  const std::uint32_t odd = (bits >> L::kShift) & 1;
  const std::uint32_t rounded = (bits & 0x7fffffff) + ((1u << (L::kShift - 1)) - 1) + odd;
  std::int32_t code = static_cast<std::int32_t>(rounded >> L::kShift) - L::kRebias;
  const float sum = std::bit_cast<float>(magnitude) + std::bit_cast<float>(L::kAligner);
  const std::int32_t subnormal = std::bit_cast<std::int32_t>(sum) - L::kAligner;
  code = select(magnitude < L::kMinNormal, subnormal, code);
  code = code < L::kOverflowCode ? code : L::kOverflowCode;
  const std::int32_t payload = L::kHasInf ? L::kQuietBit | ((magnitude >> L::kShift) & L::kMantissaMask) : 0;
  code = select(magnitude > kFloatInfBits, L::kOverflowCode | payload, code);
  return static_cast<std::uint32_t>(code) | ((bits >> 31) * L::kSignBit);
}

template <class L> constexpr float decode(std::uint32_t code) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (kIsHalf<L>)
    if (!std::is_constant_evaluated()) return decode_half(code);
#endif
  if constexpr (L::kFloatRange) return std::bit_cast<float>(code << L::kShift);
  const auto magnitude = static_cast<std::int32_t>(code & (L::kSignBit - 1));
  const float subnormal = static_cast<float>(magnitude) * std::bit_cast<float>(L::kQuantum);
  std::int32_t bits = (magnitude + L::kRebias) << L::kShift;
  bits = select(magnitude <= L::kMantissaMask, std::bit_cast<std::int32_t>(subnormal), bits);
  const std::int32_t payload = L::kHasInf ? (magnitude & L::kMantissaMask) << L::kShift : kFloatQuietBit;
  const std::int32_t quiet = select(payload != 0, kFloatQuietBit, 0);
  bits = select(magnitude >= L::kOverflowCode, kFloatInfBits | payload | quiet, bits);
  const std::uint32_t sign = (code & L::kSignBit) << (31 - L::kSignShift);
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) | sign);
}

// A NaN of f64 as f32, and of f32 as f64. The result is quiet and has the sign and the upper bits of the payload, as on
// CPUs. The result of a GPU's own conversion is unspecified.
constexpr float nan_as_f32(double nan) {
  const auto bits = std::bit_cast<std::uint64_t>(nan);
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits >> 32 & 0x80000000) | 0x7fc00000 |
                              static_cast<std::uint32_t>(bits >> 29 & 0x003fffff));
}
constexpr double nan_as_f64(float nan) {
  const std::uint64_t bits = std::bit_cast<std::uint32_t>(nan);
  return std::bit_cast<double>((bits & 0x80000000) << 32 | 0x7ff8000000000000 | (bits & 0x003fffff) << 29);
}

// A double rounded to odd: truncated to a float, whose last bit is set if the truncation is not exact. Rounding the
// result to a format at least two bits narrower gives the same as rounding the double itself (Boldo and Melquiond,
// "When double rounding is odd", 2005). Rounding to nearest even twice does not.
constexpr float round_to_odd(double value) {
  const float nearest = value != value ? nan_as_f32(value) : static_cast<float>(value);
  const double size = value < 0 ? -value : value;
  const double rounded = value < 0 ? -nearest : nearest;
  // above: the truncation is the float before it
  const bool above = rounded > size;
  const bool below = rounded < size;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(nearest) - above) | (above | below));
}

}  // namespace detail

// One code of a narrow dtype. Dtypes differ in the layout and in the bytes of a code.
template <DType kType, class Bits, class Layout> struct NarrowFloat {
  static constexpr DType kDType = kType;
  Bits bits;

  NarrowFloat() = default;
  explicit constexpr NarrowFloat(float value) : bits(static_cast<Bits>(detail::encode<Layout>(value))) {}
  explicit constexpr operator float() const { return detail::decode<Layout>(bits); }
  static constexpr NarrowFloat from_double(double value) { return NarrowFloat(detail::round_to_odd(value)); }
};

// IEEE binary16: largest value 65504, smallest 2^-24.
using Half = NarrowFloat<DType::f16, std::uint16_t, detail::Layout<5, 10, true>>;
// bfloat16, the upper half of a float: largest value 0x1.fep127, smallest 2^-133.
using BFloat16 = NarrowFloat<DType::bf16, std::uint16_t, detail::Layout<8, 7, true>>;
// OCP E4M3: largest value 448, smallest 2^-9, no Inf, NaN only as 7f and ff.
using Float8E4M3FN = NarrowFloat<DType::f8e4m3fn, std::uint8_t, detail::Layout<4, 3, false>>;
// OCP E5M2: largest value 57344, smallest 2^-16, with Inf.
using Float8E5M2 = NarrowFloat<DType::f8e5m2, std::uint8_t, detail::Layout<5, 2, true>>;

}  // namespace gradual
