#pragma once

#include <cstdint>

#include "dtype.h"

// Contiguous conversions between float and the four narrow formats.
namespace gradual::detail {

constexpr bool is_narrow(DType dtype) { return dtype >= DType::f16 && dtype <= DType::f8e5m2; }

// `narrow` is the dtype of the codes.
void encode_array(DType narrow, const float* in, void* codes, std::int64_t n);
void decode_array(DType narrow, const void* codes, float* out, std::int64_t n);

}  // namespace gradual::detail
