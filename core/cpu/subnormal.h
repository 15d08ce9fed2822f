// Products with subnormal numbers, for processors that multiply them slowly.
#pragma once

#include <bit>
#include <cstdint>

namespace gradual::cpu {

// Intel processors multiply subnormal numbers in microcode.
inline bool subnormals_are_slow() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

inline bool is_subnormal(std::uint32_t bits) { return (bits << 1) - 1 < 0xffffff; }  // of a float

// True if any of n floats is subnormal. N is an integer or a std::integral_constant.
template <class N> bool any_subnormal(const float* x, N n) {
  std::uint32_t found = 0;
  for (std::int64_t i = 0; i < n; ++i) found |= is_subnormal(std::bit_cast<std::uint32_t>(x[i])) ? 1 : 0;
  return found != 0;
}

// rate * x for rates from 0 to 1, with the bits of the float product. A subnormal x is an integer multiple of 2^-149. A
// double holds rate times that integer exactly. Adding 2^52 rounds it to an integer in the last bits of the sum; these
// are the bits of the result.
struct TimesSubnormal {
  float operator()(float rate, float x) const {
    constexpr std::uint32_t kSign = 1U << 31;
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t mask = is_subnormal(bits) ? ~0U : 0;
    const auto whole = static_cast<double>(static_cast<std::int32_t>(bits & mask & ~kSign));
    const auto product = static_cast<std::uint32_t>(std::bit_cast<std::uint64_t>(rate * whole + 0x1p52));
    return std::bit_cast<float>(product | (bits & mask & kSign) |
                                std::bit_cast<std::uint32_t>(rate * std::bit_cast<float>(bits & ~mask)));
  }
};

}  // namespace gradual::cpu
