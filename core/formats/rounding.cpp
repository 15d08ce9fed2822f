#include "rounding.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>

#include "../support/message_text.h"
#include "../support/philox.h"
#include "../support/throwf.h"
#include "rounding_kernels.h"

namespace gradual::detail {
namespace {

template <class U> U bits_of(double value) {
  return std::bit_cast<U>(static_cast<typename SourceBits<U>::Value>(value));
}

// A correction by take_source may make a difference of counts negative.
void add_counts(const LoopCounts& c, std::int64_t n, CastCounts& total) {
  const auto wide = [](std::uint32_t count) {
    return static_cast<std::uint64_t>(std::int64_t{std::bit_cast<std::int32_t>(count)});
  };
  total += {static_cast<std::uint64_t>(n), wide(c.zeros), wide(c.to_zero - c.zeros), wide(c.below_normal - c.to_zero),
            wide(c.beyond - c.not_finite), wide(c.nan),   wide(c.not_finite - c.nan)};
}

// Rounds n sources to powers of two without sign and zero.
template <class T>
void round_powers(const PowerSpec& spec, const T* in, const std::uint32_t* random, T* values, void* codes,
                  std::int64_t n, LoopCounts& counts) {
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t code = round_to_power(in[i], random ? random[i] : 0, spec, counts);
    if (codes) static_cast<std::uint8_t*>(codes)[i] = static_cast<std::uint8_t>(code);
    else values[i] = power_of(code, spec);
  }
}

// Rounds to values or, if `codes` is not null, to codes.
template <class T>
void round_all(const Rounder& r, const T* in, T* values, void* codes, std::int64_t n, std::int64_t first_element,
               CastStats stats) {
  using U = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  const bool powers = !r.format.has_zero;
  const bool table = r.format.table != nullptr;
  if (table) check_valid(r.rounding);
  const RoundingSpec<U> spec = powers || table ? RoundingSpec<U>{} : rounding_spec<U>(r, codes != nullptr);
  const PowerSpec power = powers ? power_spec(r) : PowerSpec{};
  std::uint32_t words[kRoundingBlock];
  T copy[kRoundingBlock];
  if (stats.exponents) stats.exponents->add(in, n);
  for (std::int64_t first = 0; first < n; first += kRoundingBlock) {
    const std::int64_t count = std::min(kRoundingBlock, n - first);
    const T* from = in + first;
    const std::uint32_t* random = nullptr;
    if (r.rounding.mode == RoundingMode::stochastic) {
      philox_fill(r.key.seed, r.key.stream, static_cast<std::uint64_t>(first_element + first), words, count);
      for (std::int64_t i = 0; i < count; ++i) words[i] >>= 32 - r.rounding.random_bits;
      random = words;
    }
    LoopCounts counts;
    if (!r.format.is_signed && !powers && !table) {
      for (std::int64_t i = 0; i < count; ++i)
        copy[i] = std::bit_cast<T>(take_source<true>(std::bit_cast<U>(from[i]), spec, counts));
      from = copy;
    } else if (in == values) {
      from = std::copy_n(from, count, copy) - count;
    }
    T* to = values ? values + first : nullptr;
    void* codes_to = codes ? static_cast<std::uint8_t*>(codes) + first * code_bytes(r.format) : nullptr;
    if (powers) round_powers(power, from, random, to, codes_to, count, counts);
    else if (table) round_to_table(r, from, random, to, codes_to, count, stats.counts ? &counts : nullptr);
    else
      round_block(rounding_loop(r, spec), spec, from, random, to, codes_to, code_bytes(r.format), count,
                  stats.counts ? &counts : nullptr);
    if (stats.counts) add_counts(counts, count, *stats.counts);
  }
}

}  // namespace

bool stays_finite(const Rounder& r, bool negative) {
  if (r.overflow != Overflow::ieee) return r.overflow != Overflow::ml_dtypes;
  switch (r.rounding.mode) {
    case RoundingMode::toward_zero: return true;
    case RoundingMode::up: return negative;
    case RoundingMode::down: return !negative;
    case RoundingMode::to_odd: return r.format.max_code() % 2 == 1;
    default: return false;
  }
}

template <class U> RoundingSpec<U> rounding_spec(const Rounder& r, bool codes) {
  check_valid(r.rounding);
  if (r.format.table) throwf("{} is a table of values: accumulators and GPUs round to none", to_string(r.format));
  using Bits = SourceBits<U>;
  const Format& f = r.format;
  const bool saturates = r.overflow == Overflow::saturate;
  const bool has_nan = f.nan != NanEncoding::none;
  RoundingSpec<U> s{};
  s.shift = Bits::kMantissa - f.mantissa_bits;
  s.lowest = bits_of<U>(f.min_normal());
  s.highest = std::max(s.lowest, bits_of<U>(f.max()) & Bits::kInf);
  s.min_exponent = static_cast<int>(s.lowest >> Bits::kMantissa);
  s.random_bits = r.rounding.random_bits;
  s.parity_moves = f.mantissa_bits == 0 ? 1 : 0;
  s.quantum = bits_of<U>(std::ldexp(1.0, 1 - f.bias - f.mantissa_bits));
  U sign = Bits::kSign;
  U inf = Bits::kInf;
  if (codes) {
    sign = f.sign_bit();
    inf = f.inf_code().value_or(0);
    s.sign_shift = 8 * static_cast<int>(sizeof(U)) - f.bits();
    s.min_normal = U{1} << f.mantissa_bits;
    s.max = f.max_code();
    s.nan = f.nan_code().value_or(0);
    s.nan_shift = s.shift;
    s.nan_keeps = f.nan == NanEncoding::ieee ? s.min_normal - 1 : 0;
    if (saturates) s.nan |= s.nan_keeps;  // CUDA's NaN: all ones
    s.nan_sign = f.nan == NanEncoding::negative_zero ? 0 : sign;
  } else {
    s.min_normal = s.lowest;
    s.max = bits_of<U>(f.max());
    s.nan = Bits::kInf | Bits::kQuiet;
    s.nan_keeps = ~U{0};
    s.nan_sign = sign;
  }
  s.flush_below = f.subnormals ? 0 : s.min_normal;
  s.zero_sign = f.has_negative_zero ? sign : 0;
  s.ordinary = f.subnormals && f.has_negative_zero ? bits_of<U>(f.max()) : 0;
  s.is_signed = f.is_signed;
  const bool passes = r.overflow == Overflow::ieee || r.overflow == Overflow::ml_dtypes;
  s.below_zero = passes && has_nan ? Bits::kInf | Bits::kQuiet : 0;
  const U beyond = f.has_inf ? inf : has_nan ? s.nan : s.max;
  s.overflow = stays_finite(r, false) ? s.max : beyond;
  s.overflow_below = stays_finite(r, true) ? s.max : beyond;
  s.inf = saturates ? s.max : beyond;
  if (!has_nan) {
    s.nan_keeps = 0;
    s.nan_sign = 0;
    s.nan = saturates ? s.max : s.zero_sign;
  }
  return s;
}

PowerSpec power_spec(const Rounder& r) {
  const bool saturates = r.overflow == Overflow::saturate;
  const bool has_nan = r.format.nan != NanEncoding::none;
  const bool passes = r.overflow == Overflow::ieee || r.overflow == Overflow::ml_dtypes;
  const std::uint32_t most = r.format.max_code();
  const std::uint32_t nan = r.format.nan_code().value_or(saturates ? most : 0);
  Rounder wide = r;
  wide.format = {.exponent_bits = 9, .bias = r.format.bias + 1, .nan = NanEncoding::all_ones};
  RoundingSpec<std::uint64_t> spec = rounding_spec<std::uint64_t>(wide, true);
  spec.parity_moves = 0;
  return {.wide = spec,
          .mode = static_cast<int>(r.rounding.mode),
          .bias = r.format.bias,
          .most = most,
          .below = passes && has_nan ? nan : 0,
          .above = has_nan && !stays_finite(r, false) ? nan : most,
          .inf = has_nan && !saturates ? nan : most,
          .nan = nan};
}

template RoundingSpec<std::uint32_t> rounding_spec(const Rounder&, bool);
template RoundingSpec<std::uint64_t> rounding_spec(const Rounder&, bool);

int rounding_loop(const Rounder& r, const RoundingSpec<std::uint32_t>& spec) {
  if (r.rounding.mode == RoundingMode::nearest_even) {
    const std::uint32_t aligner = spec.highest + (static_cast<std::uint32_t>(spec.shift) << 23);
    if (spec.min_exponent == 1) return kShifted;
    // An addition sees the last bit of the significand, which is always 1 without mantissa bits.
    const bool has_mantissa = spec.shift < SourceBits<std::uint32_t>::kMantissa;
    if (spec.shift > 0 && has_mantissa && aligner < SourceBits<std::uint32_t>::kInf) return kAligned;
  }
  return static_cast<int>(r.rounding.mode);
}

}  // namespace gradual::detail

namespace gradual {

void check_valid(const Rounding& r) {
  if (r.mode == RoundingMode::stochastic && (r.random_bits < 1 || r.random_bits > 32))
    throwf("stochastic rounding takes 1 to 32 random bits, not {}", r.random_bits);
}

std::string to_string(const Rounding& r) {
  std::string text(to_string(r.mode));
  if (r.mode == RoundingMode::stochastic && r.random_bits != 32) text += ":" + std::to_string(r.random_bits);
  return text;
}

Rounding rounding_from_name(std::string_view text) {
  std::vector<std::string> names;
  for (const std::string_view known : kEnumNames<RoundingMode>) {
    if (text == known) return {.mode = static_cast<RoundingMode>(names.size())};
    names.emplace_back(known);
  }
  constexpr std::string_view kPrefix = "stochastic:";
  if (text.starts_with(kPrefix)) {
    const std::string_view digits = text.substr(kPrefix.size());
    int bits = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
    if (error == std::errc() && end == digits.data() + digits.size() && bits >= 1 && bits <= 32)
      return {.mode = RoundingMode::stochastic, .random_bits = bits};
    throwf("rounding '{}': stochastic: must be followed by the number of random bits, 1 to 32", text);
  }
  names.emplace_back("stochastic:BITS");
  throwf("no rounding '{}'; there are {}{}", text, join(names), did_you_mean(text, names));
}

Overflow overflow_from_name(std::string_view text) {
  std::vector<std::string> names;
  for (const std::string_view known : kEnumNames<Overflow>) {
    if (text == known) return static_cast<Overflow>(names.size());
    names.emplace_back(known);
  }
  throwf("no overflow policy '{}'; there are {}{}", text, join(names), did_you_mean(text, names));
}

void Rounder::round(const float* in, float* out, std::int64_t n, std::int64_t first_element, CastStats stats) const {
  detail::round_all(*this, in, out, nullptr, n, first_element, stats);
}

void Rounder::round(const double* in, double* out, std::int64_t n, std::int64_t first_element, CastStats stats) const {
  detail::round_all(*this, in, out, nullptr, n, first_element, stats);
}

void Rounder::encode(const float* in, void* codes, std::int64_t n, std::int64_t first_element, CastStats stats) const {
  // Plain casts to f16 and bf16 have faster loops.
  const bool plain = rounding.mode == RoundingMode::nearest_even && overflow == Overflow::ieee && !stats.counts;
  const std::optional<DType> dtype = plain ? dtype_of_format(format) : std::nullopt;
  if (!dtype || !is_half(*dtype)) return detail::round_all<float>(*this, in, nullptr, codes, n, first_element, stats);
  cast_and_store(*dtype, in, codes, 1, n);
  if (stats.exponents) stats.exponents->add(in, n);
}

void Rounder::encode(const double* in, void* codes, std::int64_t n, std::int64_t first_element, CastStats stats) const {
  detail::round_all<double>(*this, in, nullptr, codes, n, first_element, stats);
}

void decode(const Format& f, const void* codes, float* out, std::int64_t n) {
  const int bytes = code_bytes(f);
  if (bytes == 1) {
    float values[256];
    const std::uint32_t mask = (1u << f.bits()) - 1;
    for (std::uint32_t c = 0; c <= mask; ++c) values[c] = f.decode(c);
    for (std::int64_t i = 0; i < n; ++i) out[i] = values[static_cast<const std::uint8_t*>(codes)[i] & mask];
    return;
  }
  if (const auto dtype = dtype_of_format(f)) return fetch_and_cast(*dtype, codes, 1, out, n);
  for (std::int64_t i = 0; i < n; ++i)
    out[i] = f.decode(bytes == 2 ? static_cast<const std::uint16_t*>(codes)[i]
                                 : static_cast<const std::uint32_t*>(codes)[i]);
}

}  // namespace gradual
