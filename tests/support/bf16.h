// Rounding to bf16 that shares no code with the library.
#pragma once

#include <bit>
#include <cstdint>

namespace gradual::testing {

// Finite x to bf16, to nearest even.
inline float bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000U);
}

}  // namespace gradual::testing
