// Compute modes of contractions.
#pragma once

#include <bit>
#include <cstdint>

#include "../support/host_device.h"
#include "../support/scoped.h"
#include "../tensor/modes.h"

namespace gradual {

// The mode of contractions called from this thread; f32 unless a scope sets another.
inline MatmulPrecision& matmul_precision() { return modes().matmul_precision; }

using MatmulPrecisionScope = ScopeOf<MatmulPrecision, matmul_precision>;

// x rounded to TF32; NaN and Inf stay.
GRADUAL_HD inline float round_tf32(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0xfff + (bits >> 13 & 1)) & ~std::uint32_t{0x1fff};
  return std::bit_cast<float>((bits & 0x7f800000) == 0x7f800000 ? bits : rounded);
}

// True: a GPU multiplies f8 operands by its f8 instructions, whose sums keep fewer bits than f32 (on Hopper about 14).
// False (the default): operands are widened exactly and sums are f32. The CPU always does the latter.
inline bool& fast_f8() { return modes().fast_f8; }

using FastF8Scope = ScopeOf<bool, fast_f8>;

}  // namespace gradual
