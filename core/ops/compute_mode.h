// How contractions treat operands.
#pragma once

#include <bit>
#include <cstdint>

#include "../support/host_device.h"
#include "../support/scoped.h"

namespace gradual {

// f32: products of the operands as they are. tf32: operands rounded to 10 mantissa bits first (nearest, ties to even),
// as the tensor cores of NVIDIA's Ampere and later do; sums stay f32. f64 and narrower inputs are never touched.
enum class MatmulPrecision : std::uint8_t { f32, tf32 };

// What contractions called from this thread use; f32 unless a scope says otherwise.
MatmulPrecision& matmul_precision();

struct MatmulPrecisionScope : Scoped<MatmulPrecision> {
  explicit MatmulPrecisionScope(MatmulPrecision precision) : Scoped(matmul_precision(), precision) {}
};

// x rounded to TF32; NaN and Inf stay.
GRADUAL_HD inline float round_tf32(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0xfff + (bits >> 13 & 1)) & ~std::uint32_t{0x1fff};
  return std::bit_cast<float>((bits & 0x7f800000) == 0x7f800000 ? bits : rounded);
}

// Whether a GPU multiplies f8 operands by its instructions for f8, whose sums keep fewer bits than f32 (on Hopper about
// 14). Off unless a scope says otherwise: they are widened first, exactly, and sums are f32. The CPU always does that.
bool& fast_f8();

struct FastF8Scope : Scoped<bool> {
  explicit FastF8Scope(bool on) : Scoped(fast_f8(), on) {}
};

}  // namespace gradual
