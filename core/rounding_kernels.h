// The inner loops of rounding.h, an element at a time, and their tables for each instruction set.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

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

// A format and a policy as the loop needs them. Magnitudes are the source's bits without the sign.
template <class U> struct RoundingSpec {
  int shift;          // mantissa bits that the source has more
  int min_exponent;   // biased exponent of the smallest normal value
  int random_bits;    // of stochastic rounding
  U min_normal, max;  // magnitudes
  U quantum;          // magnitude of the smallest subnormal value
  U flush_below;      // results below it become zero
  U overflow, inf;    // what finite values beyond max and what Inf become: magnitudes, or NaN's
  U zero_sign;        // the sign bit, where zero may keep it
  U nan, nan_keeps;   // NaN becomes its own bits masked by nan_keeps, with these
};

// How an exact f32 value becomes a code.
struct CodeSpec {
  int shift, sign_shift;
  std::uint32_t min_normal;  // f32 bits
  std::uint32_t aligner;     // 2^23 smallest subnormal values, as f32 bits: adding it leaves their number in the sum
  std::uint32_t bias;        // subtracted from a normal value's shifted bits
  std::uint32_t inf, nan;    // codes
  std::uint32_t nan_sign;    // the sign bit of a NaN's code, 0 where it has none
  std::uint32_t payload;     // the bits of a NaN's code that are the source's
};

struct LoopCounts {
  std::uint32_t zeros = 0, underflow = 0, subnormal = 0, overflow = 0, nan = 0, inf = 0;
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

// The magnitude rounded as if exponents went on upwards (to Inf's bits where it passes the source's range). sig counts
// units of the source's last place and q those of the target's, which has `shift` bits fewer, and still fewer where it
// is subnormal. Within a binade and up to the next one bits are linear in the value.
template <RoundingMode mode, class U>
constexpr U round_magnitude(U magnitude, bool negative, std::uint32_t random, const RoundingSpec<U>& s) {
  using Bits = SourceBits<U>;
  constexpr int kDeepest = 8 * static_cast<int>(sizeof(U)) - 1;
  const auto exponent = static_cast<int>(magnitude >> Bits::kMantissa);
  const U sig = (magnitude & (Bits::kHidden - 1)) | choose<U>(exponent > 0, Bits::kHidden, 0);
  const int below = s.min_exponent - (exponent > 1 ? exponent : 1);
  const int deep = s.shift + (below > 0 ? below : 0);
  const int shift = deep < kDeepest ? deep : kDeepest;
  const U mask = (U{1} << shift) - 1;
  U q = sig >> shift;
  if constexpr (mode == RoundingMode::nearest_even) q = (sig + (mask >> 1) + (q & mask & 1)) >> shift;
  if constexpr (mode == RoundingMode::nearest_away) q = (sig + ((mask + 1) >> 1)) >> shift;
  if constexpr (mode == RoundingMode::up) q = (sig + (negative ? 0 : mask)) >> shift;
  if constexpr (mode == RoundingMode::down) q = (sig + (negative ? mask : 0)) >> shift;
  if constexpr (mode == RoundingMode::to_odd) q |= static_cast<U>((sig & mask) != 0);
  if constexpr (mode == RoundingMode::stochastic) q = round_by_chance(sig, deep, random, s.random_bits);
  const U rounded = choose<U>(deep > Bits::kMantissa + 1, s.quantum, magnitude + (q << shift) - sig);
  return choose<U>(q == 0, 0, rounded);
}

// One element's bits rounded, as the source's type. Adds to counts where they are not null.
template <RoundingMode mode, bool count, class U>
constexpr U round_bits(U bits, std::uint32_t random, const RoundingSpec<U>& s, LoopCounts& counts) {
  using Bits = SourceBits<U>;
  const U sign = bits & Bits::kSign;
  const U magnitude = bits ^ sign;
  U r = round_magnitude<mode>(magnitude, sign != 0, random, s);
  r = choose<U>(r < s.flush_below, 0, r);
  const bool beyond = r > s.max;
  if constexpr (count) {
    counts.zeros += magnitude == 0;
    counts.underflow += (magnitude != 0) & (r == 0);
    counts.subnormal += (r != 0) & (r < s.min_normal);
    counts.overflow += beyond & (magnitude < Bits::kInf);
    counts.nan += magnitude > Bits::kInf;
    counts.inf += magnitude == Bits::kInf;
  }
  r = choose(beyond, s.overflow, r);
  r = choose(magnitude == Bits::kInf, s.inf, r);
  r |= choose<U>(r == 0, sign & s.zero_sign, sign);
  return choose<U>(magnitude > Bits::kInf, (bits & s.nan_keeps) | s.nan, r);
}

// The code of a value that the format holds.
constexpr std::uint32_t code_of(std::uint32_t bits, const CodeSpec& s) {
  constexpr std::uint32_t kInf = SourceBits<std::uint32_t>::kInf;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  const std::uint32_t sign = (bits & 0x80000000) >> s.sign_shift;
  const std::uint32_t small = choose(magnitude < s.min_normal, magnitude, 0u);
  const float sum = std::bit_cast<float>(small) + std::bit_cast<float>(s.aligner);
  std::uint32_t code =
      choose(magnitude < s.min_normal, std::bit_cast<std::uint32_t>(sum) - s.aligner, (magnitude >> s.shift) - s.bias);
  code = choose(magnitude == kInf, s.inf, code) | sign;
  return choose(magnitude > kInf, s.nan | (sign & s.nan_sign) | ((magnitude >> s.shift) & s.payload), code);
}

// n at most 1024; random is null unless the mode is stochastic. With counts or, where they are null, without.
struct RoundingKernels {
  using Spec = RoundingSpec<std::uint32_t>;
  using Values = void (*)(const Spec&, const float* in, const std::uint32_t* random, float* out, std::int64_t n,
                          LoopCounts* counts);
  using Codes = void (*)(const CodeSpec&, const float* in, void* out, std::int64_t n);
  Values values[7];  // by RoundingMode
  Codes codes[3];    // of 1, 2 and 4 bytes
};
const RoundingKernels& rounding_kernels(ConversionPath path);

}  // namespace gradual::detail
