#include "rounding.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "error.h"
#include "nearest.h"
#include "philox.h"
#include "rounding_kernels.h"

namespace gradual {
namespace {

using detail::CodeSpec;
using detail::LoopCounts;
using detail::RoundingSpec;
using detail::SourceBits;

constexpr std::int64_t kBlock = 1024;

template <class U> U bits_of(double value) {
  return std::bit_cast<U>(static_cast<typename SourceBits<U>::Value>(value));
}

template <class U> RoundingSpec<U> spec_of(const Rounder& r) {
  using Bits = SourceBits<U>;
  const Format& f = r.format;
  RoundingSpec<U> s{};
  s.shift = Bits::kMantissa - f.mantissa_bits;
  s.min_exponent = static_cast<int>(bits_of<U>(f.min_normal()) >> Bits::kMantissa);
  s.random_bits = r.rounding.random_bits;
  s.min_normal = bits_of<U>(f.min_normal());
  s.max = bits_of<U>(f.max());
  s.quantum = bits_of<U>(std::ldexp(1.0, 1 - f.bias - f.mantissa_bits));
  s.flush_below = f.subnormals ? 0 : s.min_normal;
  const bool has_nan = f.nan != NanEncoding::none;
  const U nan = Bits::kInf | Bits::kQuiet;
  const U beyond = f.has_inf ? Bits::kInf : has_nan ? nan : s.max;
  s.overflow = r.overflow == Overflow::ieee ? beyond : s.max;
  s.inf = r.overflow == Overflow::saturate ? s.max : beyond;
  s.zero_sign = f.has_negative_zero ? Bits::kSign : 0;
  s.nan_keeps = has_nan ? ~U{0} : 0;
  if (has_nan) s.nan = Bits::kQuiet;
  else s.nan = r.overflow == Overflow::saturate ? s.max : s.zero_sign;
  return s;
}

CodeSpec code_spec(const Rounder& r) {
  const Format& f = r.format;
  CodeSpec s{};
  s.shift = 23 - f.mantissa_bits;
  s.sign_shift = 32 - f.bits();
  s.min_normal = bits_of<std::uint32_t>(f.min_normal());
  s.aligner = bits_of<std::uint32_t>(std::ldexp(1.0, 24 - f.bias - f.mantissa_bits));
  s.bias = static_cast<std::uint32_t>(127 - f.bias) << f.mantissa_bits;
  s.inf = f.inf_code().value_or(0);
  s.nan = f.nan_code().value_or(0);
  if (f.nan == NanEncoding::ieee) {
    s.payload = (1u << f.mantissa_bits) - 1;
    if (r.overflow == Overflow::saturate) s.nan |= s.payload;  // CUDA's NaN: all ones
  }
  s.nan_sign = f.nan == NanEncoding::negative_zero ? 0 : f.sign_bit();
  return s;
}

void add_counts(const LoopCounts& c, std::int64_t n, CastCounts& total) {
  total += {static_cast<std::uint64_t>(n), c.zeros, c.underflow, c.subnormal, c.overflow, c.nan, c.inf};
}

// One block of f32 by the vector loop.
void round_block(const Rounder& r, const RoundingSpec<std::uint32_t>& spec, const float* in,
                 const std::uint32_t* random, float* out, std::int64_t n, CastCounts* counts) {
  LoopCounts c;
  detail::rounding_kernels(conversion_path())
      .values[static_cast<int>(r.rounding.mode)](spec, in, random, out, n, counts ? &c : nullptr);
  if (counts) add_counts(c, n, *counts);
}

template <RoundingMode mode>
void round_doubles(const RoundingSpec<std::uint64_t>& spec, const double* in, const std::uint32_t* random, double* out,
                   std::int64_t n, LoopCounts& c) {
  for (std::int64_t i = 0; i < n; ++i)
    out[i] = std::bit_cast<double>(
        detail::round_bits<mode, true>(std::bit_cast<std::uint64_t>(in[i]), random ? random[i] : 0, spec, c));
}

void round_block(const Rounder& r, const RoundingSpec<std::uint64_t>& spec, const double* in,
                 const std::uint32_t* random, double* out, std::int64_t n, CastCounts* counts) {
  using enum RoundingMode;
  static constexpr decltype(&round_doubles<nearest_even>) kLoops[] = {
      round_doubles<nearest_even>, round_doubles<nearest_away>, round_doubles<toward_zero>, round_doubles<up>,
      round_doubles<down>,         round_doubles<to_odd>,       round_doubles<stochastic>};
  LoopCounts c;
  kLoops[static_cast<int>(r.rounding.mode)](spec, in, random, out, n, c);
  if (counts) add_counts(c, n, *counts);
}

// Powers of two without sign and zero (e8m0fnu): the significand is rounded as that of a number in [1, 2).
template <class T>
void round_powers(const Rounder& r, const T* in, const std::uint32_t* random, T* out, std::int64_t n,
                  CastCounts* counts) {
  using U = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  Rounder unit = r;
  unit.format = {.exponent_bits = 8, .bias = 127, .nan = NanEncoding::all_ones};
  const RoundingSpec<U> spec = spec_of<U>(unit);
  constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
  const bool saturates = r.overflow == Overflow::saturate;
  const T low = static_cast<T>(r.format.min_normal()), high = static_cast<T>(r.format.max());
  CastCounts c{.elements = static_cast<std::uint64_t>(n)};
  for (std::int64_t i = 0; i < n; ++i) {
    const T x = in[i];
    c.zeros += x == 0, c.nan += std::isnan(x), c.inf += std::isinf(x);
    if (std::isnan(x)) {
      out[i] = x;
    } else if (!(x > 0)) {  // saturating goes to the smallest value
      out[i] = r.overflow == Overflow::ieee ? kNan : low;
      c.overflow += x < 0 && !std::isinf(x);
    } else if (std::isinf(x)) {
      out[i] = saturates ? high : kNan;
    } else {
      int exponent = 0;
      const T significand = std::frexp(x, &exponent) * 2;
      T rounded = 0;
      round_block(unit, spec, &significand, random ? random + i : nullptr, &rounded, 1, nullptr);
      const T value = std::ldexp(rounded, exponent - 1);
      c.overflow += value > high;
      out[i] = value > high ? (r.overflow == Overflow::ieee ? kNan : high) : std::max(value, low);
    }
  }
  if (counts) *counts += c;
}

// The sources of an unsigned format: negative numbers become NaN (overflow), or zero where it saturates or there is no
// NaN (underflow). `counts` is corrected beforehand for what the loop will take the new sources for.
template <class T> void drop_negatives(const Rounder& r, const T* in, T* out, std::int64_t n, CastCounts* counts) {
  const bool to_nan = r.overflow == Overflow::ieee && r.format.nan != NanEncoding::none;
  std::uint64_t dropped = 0, infinite = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const bool drop = in[i] < 0;
    dropped += drop, infinite += drop && std::isinf(in[i]);
    out[i] = !drop ? std::abs(in[i]) : to_nan ? std::numeric_limits<T>::quiet_NaN() : T{0};
  }
  if (!counts) return;
  counts->inf += infinite;
  (to_nan ? counts->overflow : counts->underflow) += dropped - infinite;
  (to_nan ? counts->nan : counts->zeros) -= dropped;
}

void add_exponents(const float* in, std::int64_t n, ExponentHistogram& exponents) { exponents.add(in, n); }
// Floats in the same bins.
void add_exponents(const double* in, std::int64_t n, ExponentHistogram& exponents) {
  float narrow[kBlock];
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint64_t magnitude = std::bit_cast<std::uint64_t>(in[i]) << 1;
    const auto exponent =
        std::clamp(static_cast<std::int64_t>(magnitude >> 53) - 1023 + 127, std::int64_t{0}, std::int64_t{255});
    narrow[i] = std::bit_cast<float>(magnitude == 0 ? 0 : static_cast<std::uint32_t>(exponent << 23) + 1);
  }
  exponents.add(narrow, n);
}

void check_rounder(const Rounder& r) {
  if (r.rounding.mode == RoundingMode::stochastic && (r.rounding.random_bits < 1 || r.rounding.random_bits > 32))
    fail(fmt::format("stochastic rounding takes 1 to 32 random bits, not {}", r.rounding.random_bits));
}

// body(first, rounded, count) for every block; `rounded` holds the block's rounded values. They stand in `out` where
// that is given (and is not the source).
template <class T, class F>
void for_rounded(const Rounder& r, const T* in, T* out, std::int64_t n, std::int64_t first_element, CastStats stats,
                 const F& body) {
  using U = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  check_rounder(r);
  const RoundingSpec<U> spec = r.format.has_zero ? spec_of<U>(r) : RoundingSpec<U>{};
  const bool random = r.rounding.mode == RoundingMode::stochastic;
  std::uint32_t words[kBlock];
  T source[kBlock], buffer[kBlock];
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const std::int64_t count = std::min(kBlock, n - first);
    const T* from = in + first;
    T* rounded = out ? out + first : buffer;
    if (random) {
      const auto element = static_cast<std::uint64_t>(first_element + first);
      philox_fill(r.key.seed, r.key.stream, element, words, count);
      if (r.rounding.random_bits < 32)
        for (std::int64_t i = 0; i < count; ++i) words[i] >>= 32 - r.rounding.random_bits;
    }
    if (!r.format.is_signed && r.format.has_zero) {
      drop_negatives(r, from, source, count, stats.counts);
      from = source;
    }
    if (stats.exponents) add_exponents(in + first, count, *stats.exponents);
    if (r.format.has_zero) round_block(r, spec, from, random ? words : nullptr, rounded, count, stats.counts);
    else round_powers(r, from, random ? words : nullptr, rounded, count, stats.counts);
    body(first, rounded, count);
  }
}

template <class T>
void round_all(const Rounder& r, const T* in, T* out, std::int64_t n, std::int64_t first_element, CastStats stats) {
  if (in != out) return for_rounded(r, in, out, n, first_element, stats, [](std::int64_t, const T*, std::int64_t) {});
  for_rounded<T>(
      r, in, nullptr, n, first_element, stats,
      [&](std::int64_t first, const T* rounded, std::int64_t count) { std::copy_n(rounded, count, out + first); });
}

// A narrow storage dtype's plain cast has instructions and loops of its own.
bool is_plain_cast(const Rounder& r, CastStats stats) {
  return r.rounding.mode == RoundingMode::nearest_even && r.overflow == Overflow::ieee && !stats.counts &&
         !stats.exponents && r.format.bits() <= 16 && dtype_of_format(r.format);
}

template <class T>
void encode_all(const Rounder& r, const T* in, void* codes, std::int64_t n, std::int64_t first_element,
                CastStats stats) {
  if constexpr (sizeof(T) == 4)
    if (is_plain_cast(r, stats)) return store_from_float(*dtype_of_format(r.format), in, codes, 1, n);
  const CodeSpec spec = r.format.has_zero ? code_spec(r) : CodeSpec{};
  const int bytes = code_bytes(r.format);
  const auto& kernels = detail::rounding_kernels(conversion_path());
  float narrow[kBlock];
  for_rounded<T>(
      r, in, nullptr, n, first_element, stats, [&](std::int64_t first, const T* rounded, std::int64_t count) {
        auto* to = static_cast<std::uint8_t*>(codes) + first * bytes;
        const float* values = narrow;
        if constexpr (sizeof(T) == 4) values = rounded;
        else std::copy_n(rounded, count, narrow);  // exact
        if (r.format.has_zero) {
          kernels.codes[bytes / 2](spec, values, to, count);
        } else {
          for (std::int64_t i = 0; i < count; ++i)
            to[i] = std::isnan(values[i]) ? 0xff : static_cast<std::uint8_t>(std::ilogb(values[i]) + r.format.bias);
        }
      });
}

constexpr std::string_view kModes[] = {"nearest-even", "nearest-away", "toward-zero", "up",
                                       "down",         "to-odd",       "stochastic"};
constexpr std::string_view kOverflows[] = {"ieee", "saturate", "saturate-finite"};

}  // namespace

std::string name(const Rounding& r) {
  std::string text(kModes[static_cast<int>(r.mode)]);
  if (r.mode == RoundingMode::stochastic && r.random_bits != 32) text += ":" + std::to_string(r.random_bits);
  return text;
}

Rounding rounding_from_name(std::string_view text) {
  for (int i = 0; i < 7; ++i)
    if (text == kModes[i]) return {.mode = static_cast<RoundingMode>(i)};
  constexpr std::string_view kPrefix = "stochastic:";
  if (text.starts_with(kPrefix)) {
    const std::string_view digits = text.substr(kPrefix.size());
    int bits = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
    if (error == std::errc() && end == digits.data() + digits.size() && bits >= 1 && bits <= 32)
      return {.mode = RoundingMode::stochastic, .random_bits = bits};
    fail(fmt::format("rounding '{}': after stochastic: stands the number of random bits, 1 to 32", text));
  }
  std::vector<std::string> names(std::begin(kModes), std::end(kModes));
  names.emplace_back("stochastic:BITS");
  fail(fmt::format("no rounding '{}'; there are {}{}", text, join(names), did_you_mean(text, names)));
}

std::string_view name(Overflow overflow) { return kOverflows[static_cast<int>(overflow)]; }

Overflow overflow_from_name(std::string_view text) {
  for (int i = 0; i < 3; ++i)
    if (text == kOverflows[i]) return static_cast<Overflow>(i);
  const std::vector<std::string> names(std::begin(kOverflows), std::end(kOverflows));
  fail(fmt::format("no overflow policy '{}'; there are {}{}", text, join(names), did_you_mean(text, names)));
}

void ExponentHistogram::add(const float* values, std::int64_t n) {
  // Neighbours often share an exponent: eight tables, so that increments of one bin do not wait for each other.
  std::uint32_t tables[8][256] = {};
  std::uint8_t exponents[kBlock];
  std::uint64_t zeros = 0;
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const std::int64_t count = std::min(kBlock, n - first);
    std::uint32_t none = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(values[first + i]) & 0x7fffffff;
      exponents[i] = static_cast<std::uint8_t>(magnitude >> 23);
      none += magnitude == 0;
    }
    zeros += none;
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
      std::uint64_t eight = 0;
      std::memcpy(&eight, exponents + i, 8);
      for (int k = 0; k < 8; ++k) ++tables[k][(eight >> (8 * k)) & 0xff];
    }
    for (; i < count; ++i) ++tables[0][exponents[i]];
  }
  for (std::size_t b = 0; b < 256; ++b)
    for (const auto& table : tables) bins[b] += table[b];
  bins[0] -= zeros;
}

ExponentHistogram& ExponentHistogram::operator+=(const ExponentHistogram& other) {
  for (std::size_t i = 0; i < bins.size(); ++i) bins[i] += other.bins[i];
  return *this;
}

void Rounder::round(const float* in, float* out, std::int64_t n, std::int64_t first_element, CastStats stats) const {
  round_all(*this, in, out, n, first_element, stats);
}

void Rounder::round(const double* in, double* out, std::int64_t n, std::int64_t first_element, CastStats stats) const {
  round_all(*this, in, out, n, first_element, stats);
}

void Rounder::encode(const float* in, void* codes, std::int64_t n, std::int64_t first_element, CastStats stats) const {
  encode_all(*this, in, codes, n, first_element, stats);
}

void Rounder::encode(const double* in, void* codes, std::int64_t n, std::int64_t first_element, CastStats stats) const {
  encode_all(*this, in, codes, n, first_element, stats);
}

void decode(const Format& f, const void* codes, float* out, std::int64_t n) {
  const int bytes = code_bytes(f);
  if (bytes == 1) {
    float values[256];
    for (std::uint32_t c = 0; c < (1u << f.bits()); ++c) values[c] = f.decode(c);
    const std::uint32_t mask = (1u << f.bits()) - 1;
    for (std::int64_t i = 0; i < n; ++i) out[i] = values[static_cast<const std::uint8_t*>(codes)[i] & mask];
    return;
  }
  for (std::int64_t i = 0; i < n; ++i)
    out[i] = f.decode(bytes == 2 ? static_cast<const std::uint16_t*>(codes)[i]
                                 : static_cast<const std::uint32_t*>(codes)[i]);
}

}  // namespace gradual
