// How contractions treat f32 operands.
#pragma once

#include <cstdint>

#include "scoped.h"

namespace gradual {

// f32: products of the operands as they are. tf32: operands rounded to 10 mantissa bits first (nearest, ties to even),
// as the tensor cores of NVIDIA's Ampere and later do; sums stay f32. f64 and narrower inputs are never touched.
enum class MatmulPrecision : std::uint8_t { f32, tf32 };

// What contractions called from this thread use; f32 unless a scope says otherwise.
MatmulPrecision& matmul_precision();

struct MatmulPrecisionScope : Scoped<MatmulPrecision> {
  explicit MatmulPrecisionScope(MatmulPrecision precision) : Scoped(matmul_precision(), precision) {}
};

}  // namespace gradual
