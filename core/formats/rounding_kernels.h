// The inner loops of rounding.h, an element at a time, and their table.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "../support/host_device.h"
#include "rounding.h"

namespace gradual::detail {

// The bits of an f32 or f64 source.
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

// A format and a policy as a loop needs them. "Magnitudes" are those of what the loop writes: the bits of values, as the
// source's type and without sign, or codes without sign.
template <class U> struct RoundingSpec {
  int shift;          // mantissa bits that the source has more
  int min_exponent;   // biased exponent of the smallest normal value
  int random_bits;    // of stochastic rounding
  U lowest, highest;  // exponents of the smallest and largest normal value in place, the rest of the bits zero
  U quantum;          // bits of the smallest subnormal value
  U min_normal, max;  // magnitudes
  U flush_below;      // results below it become zero
  U overflow, inf;    // what finite values beyond max and what Inf become: magnitudes, or NaN's
  int sign_shift;     // how far the sign bit goes down
  U zero_sign;        // the sign bit then, where zero may keep it
  int nan_shift;      // how far a NaN's bits go down,
  U nan_keeps, nan;   // are masked, and get these bits
  U nan_sign;         // the sign bit where NaN keeps it
  U ordinary;         // sources up to this magnitude need nothing but rounding; 0: all may
  bool is_signed;     // else the source is first what take_source makes of it:
  U below_zero;       // this where it is below zero
  U one = 1;          // g++ 12 does not vectorise the shift of a constant of 64 bits
};

// The spec for values or codes of a format that has a zero. U: std::uint32_t or std::uint64_t.
template <class U> RoundingSpec<U> rounding_spec(const Rounder& rounder, bool codes);
// The loop that sources are rounded by: a RoundingMode or, for floats, a quicker RoundingLoop.
int rounding_loop(const Rounder& rounder, const RoundingSpec<std::uint32_t>& spec);
inline int rounding_loop(const Rounder& rounder, const RoundingSpec<std::uint64_t>&) {
  return static_cast<int>(rounder.rounding.mode);
}

// What is left to do once a loop has counted: every magnitude counts for all of them.
struct LoopCounts {
  std::uint32_t zeros = 0, to_zero = 0, below_normal = 0, beyond = 0, not_finite = 0, nan = 0;
};

// How a loop rounds: by the modes' numbers, and two quicker ways to nearest even.
enum RoundingLoop : int {
  kAligned = 7,  // adding 2^shift times the value's power of two leaves its units in the sum, rounded by the processor
  kShifted = 8,  // f32's exponents and subnormal values: every code is a multiple of 2^shift
  kRoundingLoops
};

// a where the condition holds, else b: by bits, so that loops vectorise.
template <class U> constexpr U choose(bool condition, U a, U b) { return b ^ ((a ^ b) & (U{0} - U{condition})); }

// (sig * 2^random_bits / 2^shift + random) / 2^random_bits, each division cut to an integer.
template <class U> constexpr U round_by_chance(U sig, int shift, std::uint32_t random, int random_bits) {
  __extension__ using Wide = std::conditional_t<sizeof(U) == 8, unsigned __int128, std::uint64_t>;
  const int most = 8 * static_cast<int>(sizeof(Wide)) - 1;
  const Wide fixed = (static_cast<Wide>(sig) << random_bits) >> (shift < most ? shift : most);
  return static_cast<U>((fixed + random) >> random_bits);
}

// The magnitude rounded as if exponents went on upwards (to Inf's bits and above where it passes the source's range).
// sig counts units of the source's last place and q those of the target's, which has `shift` bits fewer, and still
// fewer where it is subnormal. Within a binade and up to the next one bits are linear in the value.
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
    constexpr auto mode = static_cast<RoundingMode>(loop);
    using Int = typename Bits::Int;  // all of one width, so that loops vectorise
    constexpr Int kDeepest = 8 * sizeof(U) - 1;
    const auto exponent = static_cast<Int>(magnitude >> Bits::kMantissa);
    const U sig = (magnitude & (Bits::kHidden - 1)) | choose<U>(exponent > 0, Bits::kHidden, 0);
    const Int above = (exponent > 1 ? exponent : 1) - s.min_exponent;
    const Int deep = s.shift + (above < 0 ? -above : 0);
    const Int shift = deep < kDeepest ? deep : kDeepest;
    const U mask = (s.one << shift) - 1;
    U q = sig >> shift;
    if constexpr (mode == RoundingMode::nearest_even) q = (sig + (mask >> 1) + (q & mask & 1)) >> shift;
    if constexpr (mode == RoundingMode::nearest_away) q = (sig + ((mask + 1) >> 1)) >> shift;
    if constexpr (mode == RoundingMode::up) q = (sig + (negative ? 0 : mask)) >> shift;
    if constexpr (mode == RoundingMode::down) q = (sig + (negative ? mask : 0)) >> shift;
    if constexpr (mode == RoundingMode::to_odd) q |= static_cast<U>((sig & mask) != 0);
    if constexpr (mode == RoundingMode::stochastic)
      q = round_by_chance(sig, static_cast<int>(deep), random, s.random_bits);
    if constexpr (codes) return q + (static_cast<U>(above > 0 ? above : 0) << (Bits::kMantissa - s.shift));
    const U rounded = choose<U>(deep > Bits::kMantissa + 1, s.quantum, magnitude + (q << shift) - sig);
    return choose<U>(q == 0, 0, rounded);
  }
}

// One element's bits rounded, as the source's type or as a code.
template <int loop, bool codes, bool count, bool ordinary, class U>
constexpr U round_bits(U bits, std::uint32_t random, const RoundingSpec<U>& s, LoopCounts& counts) {
  using Bits = SourceBits<U>;
  const U sign = bits & Bits::kSign;
  const U magnitude = bits ^ sign;
  const U moved = sign >> s.sign_shift;
  U r = round_magnitude<loop, codes>(magnitude, sign != 0, random, s);
  if constexpr (ordinary) {
    if constexpr (count) {
      counts.zeros += magnitude == 0;
      counts.to_zero += r == 0;
      counts.below_normal += r < s.min_normal;
    }
    return r | moved;
  }
  r = choose<U>(r < s.flush_below, 0, r);
  const bool beyond = r > s.max;
  if constexpr (count) {
    counts.zeros += magnitude == 0;
    counts.to_zero += r == 0;
    counts.below_normal += r < s.min_normal;
    counts.beyond += beyond;
    counts.not_finite += magnitude >= Bits::kInf;
    counts.nan += magnitude > Bits::kInf;
  }
  r = choose(beyond, s.overflow, r);
  r = choose(magnitude == Bits::kInf, s.inf, r);
  r |= choose<U>(r == 0, moved & s.zero_sign, moved);
  return choose<U>(magnitude > Bits::kInf, ((magnitude >> s.nan_shift) & s.nan_keeps) | (moved & s.nan_sign) | s.nan,
                   r);
}

// The same by a loop that is known at run time.
template <bool codes, bool count, class U, int... loops>
constexpr U round_by(int loop, U bits, std::uint32_t random, const RoundingSpec<U>& s, LoopCounts& counts,
                     std::integer_sequence<int, loops...>) {
  U rounded = 0;
  (void)((loop == loops && (rounded = round_bits<loops, codes, count, false>(bits, random, s, counts), true)) || ...);
  return rounded;
}
template <bool codes, bool count, class U>
constexpr U round_by(int loop, U bits, std::uint32_t random, const RoundingSpec<U>& s, LoopCounts& counts) {
  constexpr int kLoops = SourceBits<U>::kWide ? static_cast<int>(kAligned) : static_cast<int>(kRoundingLoops);
  return round_by<codes, count>(loop, bits, random, s, counts, std::make_integer_sequence<int, kLoops>{});
}

// What is rounded in the place of a source: itself, or in an unsigned format its magnitude. Numbers below zero become NaN
// (overflow), or zero (underflow); counts are corrected beforehand for what round_bits will take that for.
template <bool count, class U> constexpr U take_source(U bits, const RoundingSpec<U>& s, LoopCounts& counts) {
  using Bits = SourceBits<U>;
  const U magnitude = bits & ~Bits::kSign;
  if (s.is_signed) return bits;
  if (bits <= Bits::kSign || magnitude > Bits::kInf) return magnitude;
  if constexpr (count) {
    const bool infinite = magnitude == Bits::kInf;
    if (s.below_zero != 0) {
      counts.nan -= 1, counts.not_finite -= !infinite;
    } else {
      counts.zeros -= 1;
      counts.to_zero -= infinite, counts.below_normal -= infinite;
      counts.beyond += infinite, counts.not_finite += infinite;
    }
  }
  return s.below_zero;
}

// A format of powers of two without sign and zero (e8m0fnu) as a loop needs it.
template <class U> struct PowerSpec {
  using Value = typename SourceBits<U>::Value;
  RoundingSpec<U> unit;        // rounds a significand of [1, 2)
  int loop, bias;              // of `unit`; of the format
  Value low, high;             // the smallest and the largest value
  Value below, above;          // what is not above zero becomes, and what rounds beyond `high`,
  Value inf, nan;              // Inf and NaN
  std::uint32_t nan_code = 0;  // of NaN, where one of these is it
};
template <class U> PowerSpec<U> power_spec(const Rounder& rounder);

// One element rounded to a power of two: the significand is rounded as that of a number in [1, 2). Small ones become the
// smallest value: there is no underflow.
template <class U>
GRADUAL_HD typename SourceBits<U>::Value round_to_power(typename SourceBits<U>::Value x, std::uint32_t random,
                                                        const PowerSpec<U>& s, LoopCounts& counts) {
  using Bits = SourceBits<U>;
  using Value = typename Bits::Value;
  const U magnitude = std::bit_cast<U>(x) & ~Bits::kSign;
  const bool zero = magnitude == 0, finite = magnitude < Bits::kInf;
  const bool nan = magnitude > Bits::kInf;
  counts.zeros += zero, counts.to_zero += zero, counts.below_normal += zero;
  counts.nan += nan, counts.not_finite += !finite;
  if (!(x > 0)) {
    counts.beyond += !zero;
    return nan ? s.nan : s.below;
  }
  Value value = s.inf;
  if (finite) {
    int exponent = 0;
    LoopCounts unused;
    const U significand = std::bit_cast<U>(std::frexp(x, &exponent) * 2);
    const U rounded = round_by<false, false>(s.loop, significand, random, s.unit, unused);
    value = std::ldexp(std::bit_cast<Value>(rounded), exponent - 1);
    if (value <= s.high) return value < s.low ? s.low : value;
    value = s.above;
  }
  counts.beyond += 1;
  return value;
}
template <class U> GRADUAL_HD std::uint32_t power_code(typename SourceBits<U>::Value value, const PowerSpec<U>& s) {
  return value != value ? s.nan_code : static_cast<std::uint32_t>(std::ilogb(value) + s.bias);
}

constexpr std::int64_t kRoundingBlock = 1024;

// n at most kRoundingBlock; random is null unless the mode is stochastic. With counts or, where they are null, without.
struct RoundingKernels {
  using Spec = RoundingSpec<std::uint32_t>;
  using Values = void (*)(const Spec&, const float* in, const std::uint32_t* random, float* out, std::int64_t n,
                          LoopCounts* counts);
  using Codes = void (*)(const Spec&, const float* in, const std::uint32_t* random, void* out, int bytes,
                         std::int64_t n, LoopCounts* counts);
  Values values[kRoundingLoops];
  Codes codes[kRoundingLoops];
  // Adds to bins[e] how many of n floats, at most kExponentBlock, have the biased exponent e; zeros are in bins[0] too.
  void (*exponents)(const float* in, std::int64_t n, std::uint64_t* bins);
};
constexpr std::int64_t kExponentBlock = 8192;
extern const RoundingKernels kRoundingKernels;

}  // namespace gradual::detail
