#pragma once

#include <cstdint>

#include "dtype.h"

// Conversions of contiguous arrays between float and the four narrow dtypes.
namespace gradual::detail {

constexpr bool is_narrow(DType dtype) { return dtype >= DType::f16 && dtype <= DType::f8e5m2; }

// n floats to codes of the dtype `narrow`, and back.
void encode_array(DType narrow, const float* in, void* codes, std::int64_t n);
void decode_array(DType narrow, const void* codes, float* out, std::int64_t n);
// encode_array by stores that bypass the caches. `codes` is aligned to 64 bytes, n is a multiple of 32, and the caller
// calls cpu::stream_end() (stream.h) afterwards. Returns false, and writes nothing, if this processor has no such
// stores for the dtype.
bool encode_streamed(DType narrow, const float* in, void* codes, std::int64_t n);

}  // namespace gradual::detail
