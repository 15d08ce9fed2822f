// Rounds arrays of f32 and f64 to any Format; no other file implements this rounding. Each element is rounded once,
// from the bits of its source. The vector code is chosen at run time and gives the bits of the portable code. Arrays
// may be split anywhere.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "../support/generator.h"
#include "convert.h"
#include "format.h"

namespace gradual {

enum class RoundingMode : std::uint8_t {
  nearest_even,
  nearest_away,  // ties away from zero
  toward_zero,
  up,      // towards +Inf
  down,    // towards -Inf
  to_odd,  // an inexact value becomes the neighbour whose last bit is 1 (Boldo and Melquiond 2005)
  stochastic
};
template <>
inline constexpr std::string_view kEnumNames<RoundingMode>[] = {"nearest-even", "nearest-away", "toward-zero", "up",
                                                                "down",         "to-odd",       "stochastic"};

struct Rounding {
  RoundingMode mode = RoundingMode::nearest_even;
  // For stochastic rounding: random bits per element, 1 to 32. The distance to the lower neighbour, in units of the
  // spacing, is truncated to this many bits and compared with the random number. The probability of rounding up is too
  // small by less than 2^-random_bits, and exact if the truncation loses nothing.
  int random_bits = 32;

  bool operator==(const Rounding&) const = default;
};
// Error if stochastic rounding has no 1 to 32 random bits.
void check_valid(const Rounding& rounding);
// "nearest-even", "nearest-away", "toward-zero", "up", "down", "to-odd", "stochastic" or "stochastic:BITS".
std::string to_string(const Rounding& rounding);
// The inverse of to_string(). Error that lists the names for any other text.
Rounding rounding_from_name(std::string_view text);

// What values beyond the largest one, Inf and NaN become; implementations differ. A value overflows if it rounds, with
// an unlimited exponent, beyond the largest finite value. In formats without Inf and NaN, finite values and Inf always
// saturate. NaN becomes quiet and keeps its sign and, in formats with IEEE's NaN,
// its upper bits. In an unsigned format a value below zero becomes NaN; it becomes zero if the policy saturates or the
// format has no NaN. In a format without zero, zero follows the same rule, and the smallest value replaces zero.
enum class Overflow : std::uint8_t {
  // IEEE 754, 7.4: Inf, or NaN without Inf, to nearest and by chance. Directed rounding gives max if it rounds toward
  // it: toward-zero always, up below zero, down above zero. To odd gives max if its code is odd. Inf stays Inf, or
  // becomes NaN. NaN in a format without NaN becomes -0, or 0 without -0.
  ieee,
  // +-max, also for Inf. NaN in a format without NaN becomes max; IEEE's NaN becomes all ones. CUDA's __NV_SATFINITE.
  saturate,
  // +-max for finite values; Inf stays Inf, or becomes NaN without Inf. As ml_dtypes casts clamped values.
  saturate_finite,
  // As ieee to nearest, under every rounding: truncation alone does not saturate. As ml_dtypes casts.
  ml_dtypes
};
template <>
inline constexpr std::string_view kEnumNames<Overflow>[] = {"ieee", "saturate", "saturate-finite", "ml-dtypes"};
Overflow overflow_from_name(std::string_view text);

// How often each exponent occurs among the sources of a cast. bins[i], i from 1 to 254, counts
// 2^(i - 127) <= |x| < 2^(i - 126). bins[0] counts nonzero values below 2^-126. bins[255] counts values from 2^128 on,
// Inf and NaN. CastCounts counts zeros.
struct ExponentHistogram {
  std::array<std::uint64_t, 256> bins{};
  void add(const float* values, std::int64_t n);
  void add(const double* values, std::int64_t n);
  ExponentHistogram& operator+=(const ExponentHistogram& other);
};

// Where a rounding adds its counts. A null member is not counted.
struct CastStats {
  CastCounts* counts = nullptr;
  ExponentHistogram* exponents = nullptr;
};

// One way to round to one format. Element i of a call takes its random bits from word first_element + i of the stream
// `key`. A saturated value counts as overflow too.
struct Rounder {
  Format format;
  Rounding rounding;
  Overflow overflow;
  RandomKey key = {};

  // Rounds n values to n values of the same type. Doubles are rounded once, never by way of f32. `in` may be `out`.
  void round(const float* in, float* out, std::int64_t n, std::int64_t first_element = 0, CastStats stats = {}) const;
  void round(const double* in, double* out, std::int64_t n, std::int64_t first_element = 0, CastStats stats = {}) const;
  // Rounds n values to n codes of code_bytes(format) bytes.
  void encode(const float* in, void* codes, std::int64_t n, std::int64_t first_element = 0, CastStats stats = {}) const;
  void encode(const double* in, void* codes, std::int64_t n, std::int64_t first_element = 0,
              CastStats stats = {}) const;
};
// Bytes of one code that is not packed: the smallest of 1, 2 and 4 that holds it.
inline int code_bytes(const Format& f) { return f.bits() <= 8 ? 1 : f.bits() <= 16 ? 2 : 4; }
// The exact values of n codes that Rounder::encode wrote.
void decode(const Format& format, const void* codes, float* out, std::int64_t n);

}  // namespace gradual
