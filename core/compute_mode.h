// How contractions treat f32 operands.
#pragma once

#include <cstdint>

namespace gradual {

// f32: products of the operands as they are. tf32: operands rounded to 10 mantissa bits first (nearest, ties to even),
// as the tensor cores of NVIDIA's Ampere and later do; sums stay f32. f64 and narrower inputs are never touched.
enum class MatmulPrecision : std::uint8_t { f32, tf32 };

// What contractions called from this thread use; f32 unless a scope says otherwise.
MatmulPrecision& matmul_precision();

class MatmulPrecisionScope {
 public:
  explicit MatmulPrecisionScope(MatmulPrecision precision) : saved_(matmul_precision()) {
    matmul_precision() = precision;
  }
  ~MatmulPrecisionScope() { matmul_precision() = saved_; }
  MatmulPrecisionScope(const MatmulPrecisionScope&) = delete;
  MatmulPrecisionScope& operator=(const MatmulPrecisionScope&) = delete;

 private:
  MatmulPrecision saved_;
};

}  // namespace gradual
