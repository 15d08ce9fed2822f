// The arithmetic of rounding.h: one element at a time, for the CPU and for CUDA kernels, and blocks of elements.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "../support/host_device.h"
#include "rounding.h"

namespace gradual::detail {

// Constants of the bits of an f32 or f64 source.
template <class U> struct SourceBits {
  static constexpr bool kWide = sizeof(U) == 8;
  static constexpr int kMantissa = kWide ? 52 : 23;
  static constexpr U kSign = U{1} << (8 * sizeof(U) - 1);
  static constexpr U kHidden = U{1} << kMantissa;
  static constexpr U kInf = U{kWide ? 0x7ff : 0xff} << kMantissa;
  static constexpr U kQuiet = U{1} << (kMantissa - 1);
  using Value = std::conditional_t<kWide, double, float>;
  using Int = std::make_signed_t<U>;
};

// A format and a policy in the form that loops read. A loop writes values, as bits of the source's type, or codes. A
// "magnitude" is such a result without its sign.
template <class U> struct RoundingSpec {
  int shift;          // mantissa bits of the source minus those of the format
  int min_exponent;   // biased exponent of the smallest normal value
  int random_bits;    // for stochastic rounding
  U parity_moves;     // 1: without mantissa bits a code's last bit is its exponent's; else 0
  U lowest, highest;  // source bits of the smallest and the largest normal value's power of two
  U quantum;          // source bits of the smallest subnormal value
  U min_normal, max;  // magnitudes
  U flush_below;      // a smaller magnitude becomes zero
  U overflow, inf;    // results for finite values beyond max and for Inf: a magnitude, or NaN's bits
  U overflow_below;   // `overflow` for values below zero; only up and down have another one
  int sign_shift;     // right shift of the source's sign bit
  U zero_sign;        // the shifted sign bit if zero keeps its sign, else 0
  int nan_shift;      // a NaN's bits are shifted right by this,
  U nan_keeps, nan;   // masked with nan_keeps and combined with nan
  U nan_sign;         // the shifted sign bit if NaN keeps its sign, else 0
  U ordinary;         // sources up to this magnitude need rounding only; 0: any source may need more
  bool is_signed;     // false: take_source first replaces the source
  U below_zero;       // take_source's result for a source below zero
  U one = 1;          // g++ 12 does not vectorise the shift of a 64-bit constant
};

// The spec for values or codes of a format that has a zero. U: std::uint32_t or std::uint64_t. Error for a wrong
// number of random bits.
template <class U> RoundingSpec<U> rounding_spec(const Rounder& rounder, bool codes);
// Whether a finite number beyond the largest one becomes the largest one.
bool stays_finite(const Rounder& rounder, bool negative);
// The number of the loop that rounds the sources: a RoundingMode or, for floats, a faster RoundingLoop.
int rounding_loop(const Rounder& rounder, const RoundingSpec<std::uint32_t>& spec);
inline int rounding_loop(const Rounder& rounder, const RoundingSpec<std::uint64_t>&) {
  return static_cast<int>(rounder.rounding.mode);
}

// Counts of a loop. An element may add to several counts; CastCounts follow from their differences.
struct LoopCounts {
  std::uint32_t zeros = 0;
  std::uint32_t to_zero = 0;
  std::uint32_t below_normal = 0;
  std::uint32_t beyond = 0;
  std::uint32_t not_finite = 0;
  std::uint32_t nan = 0;
};

// A loop's number is its RoundingMode. Two more loops round to nearest even faster.
enum RoundingLoop : int {
  kAligned = 7,  // adds 2^shift times the value's power of two: the addition rounds, the sum's low bits are the result
  kShifted = 8,  // for f32's exponents and subnormal values: every result is a multiple of 2^shift
  kRoundingLoops,
  kByChance  // stochastic, for formats whose steps are at least 2^random_bits of the source's; on the CPU
};

// condition ? a : b by bits, so that loops vectorise.
template <class U> constexpr U choose(bool condition, U a, U b) { return b ^ ((a ^ b) & (U{0} - U{condition})); }

// (sig * 2^random_bits / 2^shift + random) / 2^random_bits; each division truncates. sig: a significand of the
// source.
template <class U> constexpr U round_by_chance(U sig, int shift, std::uint32_t random, int random_bits) {
  if constexpr (sizeof(U) == 8) {
    __extension__ using Wide = unsigned __int128;
    const Wide fixed = (static_cast<Wide>(sig) << random_bits) >> (shift < 127 ? shift : 127);
    return static_cast<U>((fixed + random) >> random_bits);
  } else {  // without wider integers, so that loops are fast
    // What lies below the point, aligned with the top of a word, and the random bits carry or not.
    constexpr int kMost = 31;
    const int within = shift < kMost ? shift : kMost;
    const int beyond = shift > kMost + 1 ? shift - kMost - 1 : 0;
    const U near = (sig << (kMost - within)) << 1;
    const U fraction = choose<U>(shift > kMost, sig >> (beyond < kMost ? beyond : kMost), near);
    const int unused = kMost + 1 - random_bits;
    const U kept = (fraction >> unused) << unused;
    return (sig >> within) + U{kept + (random << unused) < kept};
  }
}

// The magnitude rounded with an unlimited exponent; beyond the source's range the result has Inf's bits or larger ones.
// sig counts units in the source's last place, q units in the target's last place. The target has `shift` mantissa bits
// fewer, and a subnormal target has still fewer. From one power of two to the next, bits are linear in the value.
template <int loop, bool codes, class U>
constexpr U round_magnitude(U magnitude, bool negative, std::uint32_t random, const RoundingSpec<U>& s) {
  using Bits = SourceBits<U>;
  using Value = typename Bits::Value;
  if constexpr (loop == kShifted) {
    const U half = (U{1} << s.shift >> 1) - U{s.shift > 0};
    const U code = (magnitude + half + (magnitude >> s.shift & U{s.shift > 0})) >> s.shift;
    return codes ? code : code << s.shift;
  } else if constexpr (loop == kAligned) {
    U exponent = magnitude & Bits::kInf;
    exponent = exponent > s.lowest ? exponent : s.lowest;
    exponent = exponent < s.highest ? exponent : s.highest;
    const U aligner = exponent + (static_cast<U>(s.shift) << Bits::kMantissa);
    const Value sum = std::bit_cast<Value>(magnitude) + std::bit_cast<Value>(aligner);
    if constexpr (codes) return std::bit_cast<U>(sum) - aligner + ((exponent - s.lowest) >> s.shift);
    return std::bit_cast<U>(sum - std::bit_cast<Value>(aligner));
  } else {
    constexpr auto mode = loop == kByChance ? RoundingMode::stochastic : static_cast<RoundingMode>(loop);
    using Int = typename Bits::Int;  // one width for all integers, so that loops vectorise
    constexpr Int kDeepest = 8 * sizeof(U) - 1;
    const auto exponent = static_cast<Int>(magnitude >> Bits::kMantissa);
    const U sig = (magnitude & (Bits::kHidden - 1)) | choose<U>(exponent > 0, Bits::kHidden, 0);
    const Int above = (exponent > 1 ? exponent : 1) - s.min_exponent;
    const Int deep = s.shift + (above < 0 ? -above : 0);
    const Int shift = deep < kDeepest ? deep : kDeepest;
    const U mask = (s.one << shift) - 1;
    U q = sig >> shift;
    const U last = (q ^ (q & static_cast<U>(above) & s.parity_moves)) & 1;  // of the code
    if constexpr (mode == RoundingMode::nearest_even) q = (sig + (mask >> 1) + (mask & last)) >> shift;
    if constexpr (mode == RoundingMode::nearest_away) q = (sig + ((mask + 1) >> 1)) >> shift;
    if constexpr (mode == RoundingMode::up) q = (sig + (negative ? 0 : mask)) >> shift;
    if constexpr (mode == RoundingMode::down) q = (sig + (negative ? mask : 0)) >> shift;
    if constexpr (mode == RoundingMode::to_odd) q += static_cast<U>((sig & mask) != 0) & (last ^ 1);
    if constexpr (loop == kByChance) {  // round_by_chance() in the source's width
      const Int fine = deep - s.random_bits;
      q = ((sig >> (fine < kDeepest ? fine : kDeepest)) + random) >> s.random_bits;
    } else if constexpr (mode == RoundingMode::stochastic)
      q = round_by_chance(sig, static_cast<int>(deep), random, s.random_bits);
    if constexpr (codes) return q + (static_cast<U>(above > 0 ? above : 0) << (Bits::kMantissa - s.shift));
    const U rounded = choose<U>(deep > Bits::kMantissa + 1, s.quantum, magnitude + (q << shift) - sig);
    return choose<U>(q == 0, 0, rounded);
  }
}

// One element's bits rounded to bits of the source's type or to a code. `ordinary`: RoundingSpec::ordinary holds.
template <int loop, bool codes, bool count, bool ordinary, class U>
constexpr U round_bits(U bits, std::uint32_t random, const RoundingSpec<U>& s, LoopCounts& counts) {
  using Bits = SourceBits<U>;
  const U sign = bits & Bits::kSign;
  const U magnitude = bits ^ sign;
  const U moved = sign >> s.sign_shift;
  U r = round_magnitude<loop, codes>(magnitude, sign != 0, random, s);
  if constexpr (!ordinary) r = choose<U>(r < s.flush_below, 0, r);
  if constexpr (count) {
    counts.zeros += magnitude == 0;
    counts.to_zero += r == 0;
    counts.below_normal += r < s.min_normal;
  }
  if constexpr (ordinary) return r | moved;
  const bool beyond = r > s.max;
  if constexpr (count) {
    counts.beyond += beyond;
    counts.not_finite += magnitude >= Bits::kInf;
    counts.nan += magnitude > Bits::kInf;
  }
  constexpr bool by_sign = loop == static_cast<int>(RoundingMode::up) || loop == static_cast<int>(RoundingMode::down);
  r = choose(beyond, by_sign && sign != 0 ? s.overflow_below : s.overflow, r);
  r = choose(magnitude == Bits::kInf, s.inf, r);
  r |= choose<U>(r == 0, moved & s.zero_sign, moved);
  return choose<U>(magnitude > Bits::kInf, ((magnitude >> s.nan_shift) & s.nan_keeps) | (moved & s.nan_sign) | s.nan,
                   r);
}

// round_bits by the loop with this number, which is at least `loop`.
template <bool codes, bool count, int loop = 0, class U>
constexpr U round_by(int number, U bits, std::uint32_t random, const RoundingSpec<U>& s, LoopCounts& counts) {
  constexpr int kLoops = SourceBits<U>::kWide ? static_cast<int>(kAligned) : static_cast<int>(kRoundingLoops);
  if constexpr (loop + 1 < kLoops)
    if (number != loop) return round_by<codes, count, loop + 1>(number, bits, random, s, counts);
  return round_bits<loop, codes, count, false>(bits, random, s, counts);
}

// The bits to round instead of a source's: the same bits, or the magnitude for an unsigned format. A source below zero
// becomes NaN (overflow) or zero (underflow). Counts are corrected here, because round_bits counts the replacement.
template <bool count, class U> constexpr U take_source(U bits, const RoundingSpec<U>& s, LoopCounts& counts) {
  using Bits = SourceBits<U>;
  const U magnitude = bits & ~Bits::kSign;
  if (s.is_signed) return bits;
  if (bits <= Bits::kSign || magnitude > Bits::kInf) return magnitude;
  if constexpr (count) {
    const bool infinite = magnitude == Bits::kInf;
    if (s.below_zero != 0) {
      counts.nan -= 1;
      counts.not_finite -= !infinite;
    } else {
      counts.zeros -= 1;
      counts.to_zero -= infinite;
      counts.below_normal -= infinite;
      counts.beyond += infinite;
      counts.not_finite += infinite;
    }
  }
  return s.below_zero;
}

// A format of powers of two without sign and zero (e8m0fnu) in the form that loops read.
struct PowerSpec {
  // Of a format with a zero and exponents that reach further; its codes are 1 larger. Ties go up, as in ml_dtypes.
  RoundingSpec<std::uint64_t> wide;
  int mode, bias;  // the RoundingMode; the format's bias
  // The largest value's code; the codes for sources that are not above zero, finite ones beyond `most`, Inf and NaN.
  std::uint32_t most, below, above, inf, nan;
};
PowerSpec power_spec(const Rounder& rounder);

// The code of the power of two that x is rounded to. Sources below the smallest value become that value, so nothing
// underflows.
GRADUAL_HD inline std::uint32_t round_to_power(double x, std::uint32_t random, const PowerSpec& s, LoopCounts& counts) {
  const bool zero = x == 0;
  const bool nan = x != x;
  const bool finite = x - x == 0;
  counts.zeros += zero;
  counts.to_zero += zero;
  counts.below_normal += zero;
  counts.nan += nan;
  counts.not_finite += !finite;
  std::uint32_t code = nan ? s.nan : x > 0 ? s.inf : s.below;
  if (x > 0 && finite) {
    LoopCounts unused;
    const auto bits = round_by<true, false>(s.mode, std::bit_cast<std::uint64_t>(x), random, s.wide, unused);
    if (bits <= s.most + 1) return bits > 0 ? static_cast<std::uint32_t>(bits) - 1 : 0;
    code = s.above;
  }
  counts.beyond += !zero;
  return code;
}
// 2^e for -127 <= e <= 127, without a call of the C library.
GRADUAL_HD inline float power(int e) {
  return std::bit_cast<float>(e > -127 ? static_cast<std::uint32_t>(e + 127) << 23 : std::uint32_t{1} << 22);
}
GRADUAL_HD inline float power_of(std::uint32_t code, const PowerSpec& s) {
  return code > s.most ? std::numeric_limits<float>::quiet_NaN() : power(static_cast<int>(code) - s.bias);
}

constexpr std::int64_t kRoundingBlock = 1024;
// Rounds n sources, at most kRoundingBlock, by the loop with this number, which is at least `loop`: to `values` or, if
// `codes` is not null, to codes of `bytes` bytes. `random` holds one word per source for stochastic rounding, else it
// may be null. Counts are added to *counts unless that is null.
template <class U, int loop = 0, class T = typename SourceBits<U>::Value>
void round_block(int number, const RoundingSpec<U>& spec, const T* in, const std::uint32_t* random, T* values,
                 void* codes, int bytes, std::int64_t n, LoopCounts* counts);
// The same for the values of a table (format_table.h), on the CPU only.
template <class T>
void round_to_table(const Rounder& rounder, const T* in, const std::uint32_t* random, T* values, void* codes,
                    std::int64_t n, LoopCounts* counts);

}  // namespace gradual::detail
