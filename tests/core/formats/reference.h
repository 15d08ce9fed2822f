// Rounding to any Format a second time, from its definition and with nothing but integers: a float is an integer times
// a power of two, the values of a format in one binade are the multiples of another, and so rounding is a division with
// a remainder. Of gradual::Format only the fields are read.
#pragma once

#include <gradual/core/formats/rounding.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace reference {

using gradual::CastCounts;
using gradual::Format;
using gradual::NanEncoding;
using gradual::Overflow;
using gradual::RoundingMode;

// What a cast did to one element, as CastCounts tells them apart.
enum class Kind : std::uint8_t { zero, underflow, subnormal, normal, overflow, nan, inf };

struct Result {
  std::uint32_t code = 0;
  Kind kind = Kind::normal;
  bool operator==(const Result&) const = default;
};

// The random word of stochastic rounding, cut to its number of bits.
struct Chance {
  std::uint64_t random = 0;
  int bits = 32;
};

// Codes of one sign, in the order of their values: 0 and up to `largest`, Inf next where there is one, then NaNs.
struct Codes {
  std::uint32_t sign, largest, inf, nan, all_ones;
};

inline Codes codes_of(const Format& f) {
  Codes c{};
  const std::uint32_t count = 1u << (f.exponent_bits + f.mantissa_bits);
  c.sign = f.is_signed ? count : 0;
  c.all_ones = count - 1;
  c.largest = count - 1;
  if (f.nan == NanEncoding::ieee) {  // the highest exponent is Inf's and NaN's
    c.inf = count - (1u << f.mantissa_bits);
    c.largest = c.inf - 1;
    c.nan = c.inf + (1u << f.mantissa_bits) / 2;
  } else if (f.nan == NanEncoding::all_ones) {
    c.largest = count - 2;
    c.nan = count - 1;
  } else if (f.nan == NanEncoding::negative_zero) {
    c.nan = c.sign;
    if (f.has_inf) {
      c.inf = count - 1;
      c.largest = count - 2;
    }
  }
  return c;
}

// The value of a code; every one is exact in double.
inline double decode(const Format& f, std::uint32_t code) {
  const Codes c = codes_of(f);
  const std::uint32_t magnitude = code & c.all_ones;
  const double sign = code > c.all_ones ? -1 : 1;
  if (f.nan == NanEncoding::negative_zero && code == c.sign) return std::numeric_limits<double>::quiet_NaN();
  if (f.has_inf && magnitude == c.inf) return sign * std::numeric_limits<double>::infinity();
  if (magnitude > c.largest) return std::numeric_limits<double>::quiet_NaN();
  const auto exponent = static_cast<int>(magnitude >> f.mantissa_bits);
  const std::uint32_t one = 1u << f.mantissa_bits;
  const std::uint32_t fraction = magnitude % one;
  if (!f.has_zero) return std::ldexp(one + fraction, exponent - f.bias - f.mantissa_bits);
  if (exponent == 0) return f.subnormals ? sign * std::ldexp(fraction, 1 - f.bias - f.mantissa_bits) : sign * 0;
  return sign * std::ldexp(one + fraction, exponent - f.bias - f.mantissa_bits);
}

// |x| = significand * 2^exponent, exactly. Finite x.
struct Parts {
  std::uint64_t significand;
  int exponent;
};
inline Parts parts_of(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const auto field = static_cast<int>(bits >> 52 & 0x7ff);
  const std::uint64_t fraction = bits & 0xfffffffffffff;
  return field == 0 ? Parts{fraction, -1074} : Parts{fraction + (std::uint64_t{1} << 52), field - 1075};
}

// Whether `count` units and `rest` / 2^depth of one (0 < rest < 2^depth) become count + 1. `odd`: the last bit of the
// code that stands for `count` units.
template <RoundingMode mode> bool goes_up(bool odd, std::uint64_t rest, int depth, bool negative, Chance chance) {
  using enum RoundingMode;
  // twice the rest against 2^depth; a significand has at most 53 bits
  const bool above_half = depth < 62 && 2 * rest > std::uint64_t{1} << depth;
  const bool half = depth < 62 && 2 * rest == std::uint64_t{1} << depth;
  if constexpr (mode == nearest_even) return above_half || (half && odd);
  if constexpr (mode == nearest_away) return above_half || half;
  if constexpr (mode == up) return !negative;
  if constexpr (mode == down) return negative;
  if constexpr (mode == to_odd) return !odd;
  if constexpr (mode == stochastic) {
    // floor(rest / 2^depth * 2^bits): the distance cut to that many bits of the spacing
    const int shift = depth - chance.bits;
    const std::uint64_t distance = shift <= 0 ? rest << -shift : shift < 64 ? rest >> shift : 0;
    return distance + chance.random >= std::uint64_t{1} << chance.bits;
  }
  return false;
}

// IEEE 754, 7.4: what a finite number beyond the largest one becomes, the largest one or not.
template <RoundingMode mode> bool stays_finite(Overflow overflow, const Codes& c, bool negative) {
  if (overflow == Overflow::saturate || overflow == Overflow::saturate_finite) return true;
  if (overflow == Overflow::ml_dtypes) return false;
  using enum RoundingMode;
  return mode == toward_zero || (mode == up && negative) || (mode == down && !negative) ||
         (mode == to_odd && c.largest % 2 == 1);
}
inline bool passes_nan(Overflow o) { return o == Overflow::ieee || o == Overflow::ml_dtypes; }

// Where a format has neither sign, zero nor mantissa: powers of two from 2^-bias on (e8m0fnu).
template <RoundingMode mode> Result round_to_power(const Format& f, Overflow overflow, double x, Chance chance) {
  const Codes c = codes_of(f);
  const bool has_nan = f.nan != NanEncoding::none;
  const bool ieee = passes_nan(overflow) && has_nan;
  if (std::isnan(x)) return {has_nan ? c.nan : overflow == Overflow::saturate ? c.largest : 0, Kind::nan};
  if (x == 0) return {ieee ? c.nan : 0, Kind::zero};
  if (std::isinf(x)) {
    if (overflow != Overflow::saturate && has_nan) return {x > 0 || ieee ? c.nan : 0, Kind::inf};
    return {x > 0 ? c.largest : 0, Kind::inf};
  }
  if (x < 0) return {ieee ? c.nan : 0, Kind::overflow};
  const Parts p = parts_of(x);
  const int low_bit = static_cast<int>(std::bit_width(p.significand)) - 1;
  const std::uint64_t rest = p.significand - (std::uint64_t{1} << low_bit);
  const int up = rest != 0 && goes_up<mode>(true, rest, low_bit, false, chance) ? 1 : 0;
  const int code = std::max(low_bit + p.exponent + up + f.bias, 0);
  if (code <= static_cast<int>(c.largest)) return {static_cast<std::uint32_t>(code), Kind::normal};
  return {has_nan && !stays_finite<mode>(overflow, c, false) ? c.nan : c.largest, Kind::overflow};
}

template <RoundingMode mode> Result round(const Format& f, Overflow overflow, double x, Chance chance = {}) {
  if (!f.has_zero) return round_to_power<mode>(f, overflow, x, chance);
  const Codes c = codes_of(f);
  const bool negative = std::signbit(x);
  const bool saturates = overflow == Overflow::saturate;
  const std::uint32_t sign = negative ? c.sign : 0;
  const bool one_nan = f.nan == NanEncoding::negative_zero;
  const std::uint32_t nan_code = one_nan ? c.nan : c.nan + sign;
  if (std::isnan(x)) {
    if (f.nan == NanEncoding::none) return {saturates ? c.largest : f.has_negative_zero ? c.sign : 0, Kind::nan};
    if (f.nan != NanEncoding::ieee) return {nan_code, Kind::nan};
    const auto payload = std::bit_cast<std::uint64_t>(x) << 12 >> (64 - f.mantissa_bits);
    return {saturates ? c.all_ones + sign : nan_code | static_cast<std::uint32_t>(payload), Kind::nan};
  }
  if (!f.is_signed && x < 0) {
    const Kind kind = std::isinf(x) ? Kind::inf : Kind::overflow;
    if (passes_nan(overflow) && f.nan != NanEncoding::none) return {c.nan, kind};
    return {0, kind == Kind::inf ? kind : Kind::underflow};
  }
  const std::uint32_t largest = c.largest + sign;
  const std::uint32_t beyond = f.has_inf ? c.inf + sign : f.nan != NanEncoding::none ? nan_code : largest;
  if (std::isinf(x)) return {saturates ? largest : beyond, Kind::inf};
  const std::uint32_t zero = f.has_negative_zero ? sign : 0;
  if (x == 0) return {zero, Kind::zero};

  // Codes count the values upwards from zero; each binade has 2^mantissa_bits.
  const std::uint64_t one = std::uint64_t{1} << f.mantissa_bits;
  // The spacing around |x| is 2^unit: one of the binade's, or one of the subnormal values'.
  const Parts p = parts_of(x);
  const int lowest = 1 - f.bias;  // exponent of the smallest normal value
  const int binade = std::max(static_cast<int>(std::bit_width(p.significand)) - 1 + p.exponent, lowest);
  const int depth = binade - f.mantissa_bits - p.exponent;  // a unit is 2^depth of the significand's
  std::uint64_t count = depth <= 0 ? p.significand << -depth : depth < 64 ? p.significand >> depth : 0;
  if (depth > 0) {
    const std::uint64_t rest = depth < 64 ? p.significand - (count << depth) : p.significand;
    const bool odd = (count + static_cast<std::uint64_t>(binade - lowest) * one) % 2 == 1;
    if (rest != 0 && goes_up<mode>(odd, rest, depth, negative, chance)) ++count;
  }
  const std::uint64_t code = count + static_cast<std::uint64_t>(binade - lowest) * one;
  if (code > c.largest) return {stays_finite<mode>(overflow, c, negative) ? largest : beyond, Kind::overflow};
  if (code == 0 || (code < one && !f.subnormals)) return {zero, Kind::underflow};
  return {static_cast<std::uint32_t>(code) + sign, code < one ? Kind::subnormal : Kind::normal};
}

// The same with the mode as a number.
using RoundFunction = Result (*)(const Format&, Overflow, double, Chance);
inline RoundFunction round_function(RoundingMode mode) {
  using enum RoundingMode;
  static constexpr RoundFunction kAll[] = {round<nearest_even>, round<nearest_away>, round<toward_zero>, round<up>,
                                           round<down>,         round<to_odd>,       round<stochastic>};
  return kAll[static_cast<std::size_t>(mode)];
}

inline void count(Kind kind, CastCounts& counts) {
  ++counts.elements;
  counts.zeros += kind == Kind::zero;
  counts.underflow += kind == Kind::underflow;
  counts.subnormal += kind == Kind::subnormal;
  counts.overflow += kind == Kind::overflow;
  counts.nan += kind == Kind::nan;
  counts.inf += kind == Kind::inf;
}

inline std::vector<std::uint64_t> as_vector(const CastCounts& c) {
  return {c.elements, c.zeros, c.underflow, c.subnormal, c.overflow, c.nan, c.inf};
}

// A float's bits; all NaNs are one.
inline std::uint32_t value_bits(float value) {
  return std::isnan(value) ? 0x7fc00000 : std::bit_cast<std::uint32_t>(value);
}
inline std::uint32_t value_bits(const Format& f, std::uint32_t code) {
  return value_bits(static_cast<float>(decode(f, code)));
}

// value_bits of every code, looked up where there are few.
class ValueBits {
 public:
  explicit ValueBits(const Format& f) : format_(f) {
    for (std::uint32_t c = 0; f.bits() <= 16 && c < 1u << f.bits(); ++c) all_.push_back(value_bits(f, c));
  }
  std::uint32_t operator[](std::uint32_t code) const { return all_.empty() ? value_bits(format_, code) : all_[code]; }

 private:
  Format format_;
  std::vector<std::uint32_t> all_;
};

}  // namespace reference
