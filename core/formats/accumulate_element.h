// One addition of a sum whose partial sums are rounded to a format. CPU and CUDA kernels share it
// (core/formats/accumulator.h).
#pragma once

#include <bit>
#include <cstdint>

#include "../support/host_device.h"
#include "rounding_kernels.h"

namespace gradual::detail {

using SumSpec = RoundingSpec<std::uint64_t>;

inline SumSpec sum_spec(const Format& format, const Rounding& rounding) {
  return rounding_spec<std::uint64_t>({.format = format, .rounding = rounding, .overflow = Overflow::ml_dtypes}, false);
}

// The bits of a + b rounded to odd in f64. A later rounding to at most 51 bits gives the rounding of the exact sum
// (Boldo and Melquiond 2005). TwoSum (Knuth, TAOCP 2, 4.2.2) gives the exact error of a + b. If a + b is Inf or NaN the
// error is NaN and the sum stays.
GRADUAL_HD inline std::uint64_t sum_to_odd(double a, double b) {
  const double sum = a + b;
  const double of_b = sum - a;
  const double error = (a - (sum - of_b)) + (b - of_b);
  const auto bits = std::bit_cast<std::uint64_t>(sum);
  const auto inexact = static_cast<std::uint64_t>(error < 0) | static_cast<std::uint64_t>(error > 0);
  const std::uint64_t too_far = (bits ^ std::bit_cast<std::uint64_t>(error)) >> 63;  // rounded away from zero
  return (bits - (inexact & too_far)) | inexact;
}

// sum + term, rounded once. `loop` is the number of a RoundingMode, or kAligned for nearest even. `random`: of
// stochastic rounding, its random_bits.
template <int loop>
GRADUAL_HD double add_rounded(const SumSpec& spec, double sum, double term, std::uint32_t random = 0) {
  LoopCounts none;
  return std::bit_cast<double>(round_bits<loop, false, false, false>(sum_to_odd(sum, term), random, spec, none));
}

}  // namespace gradual::detail
