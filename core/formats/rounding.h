// Rounding arrays of f32 and f64 to any Format: the one place that knows how. Rounding is done from the source's bits,
// once. The vector code is chosen at run time and gives the same bits as the portable code; arrays may be split freely.
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
  to_odd,  // what is not exact goes to the neighbour whose last bit is 1 (Boldo and Melquiond 2005)
  stochastic
};

struct Rounding {
  RoundingMode mode = RoundingMode::nearest_even;
  // stochastic: random bits for each element, 1 to 32. The distance to the lower neighbour is cut to as many bits of
  // the spacing, and compared: the probability of rounding up is too small by less than 2^-random_bits, and exact
  // where no bits were cut.
  int random_bits = 32;

  bool operator==(const Rounding&) const = default;
};
// "nearest-even", "nearest-away", "toward-zero", "up", "down", "to-odd", "stochastic", "stochastic:BITS".
std::string to_string(const Rounding& rounding);
Rounding rounding_from_name(std::string_view text);

// What becomes of values beyond the largest one, and of Inf and NaN, for implementations differ. A value overflows when
// it rounds, as if exponents went on, beyond the largest finite value: truncation alone does not saturate. In formats
// without Inf and NaN finite values and Inf always saturate. NaN keeps its sign and, in formats with IEEE's NaN, its
// upper bits, and becomes quiet. In an unsigned format what is below zero becomes NaN, or zero where it saturates or there is
// no NaN. In a format without zero, zero goes the same way, and the smallest value stands for it.
enum class Overflow : std::uint8_t {
  ieee,             // Inf, or NaN where there is no Inf; NaN without a code of its own is -0, or 0. As ml_dtypes casts
  saturate,         // +-max, Inf too; NaN without a code is max. As CUDA's __NV_SATFINITE: IEEE's NaN is all ones
  saturate_finite,  // +-max, but Inf stays Inf (NaN where there is none). As ml_dtypes casts what was clamped
};
std::string_view to_string(Overflow overflow);
Overflow overflow_from_name(std::string_view text);

// How often each exponent occurs among the sources of a cast: bins[i] counts 2^(i - 127) <= |x| < 2^(i - 126), i from 1
// to 254; bins[0] those below 2^-126 but not zero; bins[255] from 2^128 on, Inf and NaN. Zeros are in CastCounts.
struct ExponentHistogram {
  std::array<std::uint64_t, 256> bins{};
  void add(const float* values, std::int64_t n);
  ExponentHistogram& operator+=(const ExponentHistogram& other);
};

// Where the counts of a rounding are added; null members are not counted.
struct CastStats {
  CastCounts* counts = nullptr;
  ExponentHistogram* exponents = nullptr;
};

// One way to round to one format. Element i of a call draws its random bits from word first_element + i of the stream
// `key`. Overflow counts as overflow where it saturates too.
struct Rounder {
  Format format;
  Rounding rounding;
  Overflow overflow;
  RandomKey key = {};

  // The rounded values, as f32; in and out may be the same.
  void round(const float* in, float* out, std::int64_t n, std::int64_t first_element = 0, CastStats stats = {}) const;
  // The same of doubles (rounded once: never by way of f32).
  void round(const double* in, double* out, std::int64_t n, std::int64_t first_element = 0, CastStats stats = {}) const;
  // The codes, one in the smallest of 1, 2 and 4 bytes that holds it.
  void encode(const float* in, void* codes, std::int64_t n, std::int64_t first_element = 0, CastStats stats = {}) const;
  void encode(const double* in, void* codes, std::int64_t n, std::int64_t first_element = 0,
              CastStats stats = {}) const;
};
// Bytes of one code that is not packed.
inline int code_bytes(const Format& f) { return f.bits() <= 8 ? 1 : f.bits() <= 16 ? 2 : 4; }
// The values of codes as encode writes them; exact.
void decode(const Format& format, const void* codes, float* out, std::int64_t n);

}  // namespace gradual
