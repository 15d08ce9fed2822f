// Compute modes of contractions.
#pragma once

#include <bit>
#include <cstdint>

#include "../support/host_device.h"
#include "../support/scoped.h"

namespace gradual {

// f32: operands are used unchanged. tf32: operands are first rounded to 10 mantissa bits (nearest, ties to even), as in
// the tensor cores of NVIDIA's Ampere and later; sums stay f32. No effect on f64 and on inputs narrower than f32.
enum class MatmulPrecision : std::uint8_t { f32, tf32 };

// The mode of contractions called from this thread; f32 unless a scope sets another.
inline constexpr auto matmul_precision = per_thread<MatmulPrecision, struct OfMatmul>;

using MatmulPrecisionScope = ScopeOf<MatmulPrecision, matmul_precision>;

// x rounded to TF32; NaN and Inf stay.
GRADUAL_HD inline float round_tf32(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0xfff + (bits >> 13 & 1)) & ~std::uint32_t{0x1fff};
  return std::bit_cast<float>((bits & 0x7f800000) == 0x7f800000 ? bits : rounded);
}

// True: a GPU multiplies f8 operands by its f8 instructions, whose sums keep fewer bits than f32 (on Hopper about 14).
// False (the default): operands are widened exactly and sums are f32. The CPU always does the latter.
inline constexpr auto fast_f8 = per_thread<bool, struct FastF8>;

using FastF8Scope = ScopeOf<bool, fast_f8>;

}  // namespace gradual
