// Stochastic rounding of f32 by additions, for most formats: the bits that round_bits gives, without shifts by the
// exponent of each element. For loops with the instructions of AVX2 or more.
#pragma once

#include <bit>
#include <cstdint>

#include "rounding_kernels.h"

namespace gradual::detail {

// A RoundingSpec in the form of these loops. An exponent is the bits of a power of two.
struct ChanceSpec {
  std::uint32_t lowest = 0;       // the exponent of the smallest normal value
  std::uint32_t beyond = 0;       // the exponent above that of the largest value; magnitudes are below it
  std::uint32_t to_aligner = 0;   // plus an exponent: the number whose last place is the format's step there
  std::uint32_t to_step = 0;      // an exponent minus it: the step
  std::uint32_t to_fraction = 0;  // minus a step: 2^random_bits / step
  int unused_bits = 0;            // of a random word
  explicit operator bool() const { return beyond != 0; }
};

// False: these loops do not serve the format. Its steps are far above the least numbers of f32, so that what a product
// rounded to f32 lacks is exact wherever it matters.
inline ChanceSpec chance_spec(const RoundingSpec<std::uint32_t>& s) {
  constexpr float kLeastQuantum = 0x1p-60F;
  constexpr int kMantissa = SourceBits<std::uint32_t>::kMantissa;
  constexpr std::uint32_t kTwice = std::uint32_t{1} << kMantissa;
  const std::uint32_t to_aligner = static_cast<std::uint32_t>(s.shift) << kMantissa;
  const bool aligned = s.shift > 0 && s.highest + to_aligner < SourceBits<std::uint32_t>::kInf;
  if (s.ordinary == 0 || !s.is_signed || !aligned || std::bit_cast<float>(s.quantum) < kLeastQuantum) return {};
  constexpr std::uint32_t kOne = std::bit_cast<std::uint32_t>(1.0F);
  return {.lowest = s.lowest,
          .beyond = s.highest + kTwice,
          .to_aligner = to_aligner,
          .to_step = static_cast<std::uint32_t>(kMantissa - s.shift) << kMantissa,
          .to_fraction = 2 * kOne + (static_cast<std::uint32_t>(s.random_bits) << kMantissa),
          .unused_bits = 32 - s.random_bits};
}

// The magnitude of near + error, rounded with an unlimited exponent. kExact: near + error is a product and `near` its
// nearest f32; else error is 0. The random bits are the upper ones of `word`.
//
// `near` is parted into the nearest multiple of the step, by adding and subtracting the aligner, and the part from
// there, in units of 2^-random_bits steps. Its floor, and that of error if the part has no bits below a unit, are the
// fraction that the random bits carry or not, modulo a step.
template <bool kExact>
[[gnu::always_inline]] inline std::uint32_t magnitude_by_chance(std::uint32_t near, float error, std::uint32_t word,
                                                                const ChanceSpec& s) {
  constexpr std::uint32_t kSign = SourceBits<std::uint32_t>::kSign;
  const std::uint32_t inside = kExact ? near - static_cast<std::uint32_t>(error < 0) : near;
  const std::uint32_t own = inside & SourceBits<std::uint32_t>::kInf;
  const std::uint32_t exponent = own > s.lowest ? own : s.lowest;
  const std::uint32_t step = exponent - s.to_step;
  const auto aligner = std::bit_cast<float>(exponent + s.to_aligner);
  const auto scale = std::bit_cast<float>(s.to_fraction - step);
  const auto value = std::bit_cast<float>(near);
  const float multiple = (value + aligner) - aligner;
  const float part = (value - multiple) * scale;
  const float whole = __builtin_floorf(part);
  const auto size = static_cast<std::uint32_t>(__builtin_fabsf(whole));
  std::uint32_t fraction = choose<std::uint32_t>(part < 0, 0 - size, size);
  bool below = part < 0;
  if constexpr (kExact) {
    const float rest = error * scale;
    const auto units = static_cast<std::uint32_t>(static_cast<std::int32_t>(__builtin_floorf(rest)));
    fraction += choose<std::uint32_t>(whole == part, units, 0);
    below = part + rest < 0;
  }
  fraction <<= s.unused_bits;
  const bool carries = fraction + word < fraction;
  const std::uint32_t move = choose<std::uint32_t>(carries == below, 0, step | choose<std::uint32_t>(below, kSign, 0));
  return std::bit_cast<std::uint32_t>(multiple + std::bit_cast<float>(move));
}

}  // namespace gradual::detail
