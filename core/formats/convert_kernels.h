#pragma once

#include <cstdint>

#include "dtype.h"

// Contiguous conversions between float and the four narrow formats.
namespace gradual::detail {

constexpr bool is_narrow(DType dtype) { return dtype >= DType::f16 && dtype <= DType::f8e5m2; }

// `narrow` is the dtype of the codes.
void encode_array(DType narrow, const float* in, void* codes, std::int64_t n);
void decode_array(DType narrow, const void* codes, float* out, std::int64_t n);
// encode_array by stores that pass the caches, in lines that are whole in a register. False where this processor or format
// has none: nothing is written then. `codes` is at 64 bytes and n a multiple of 32; cpu::stream_end() (stream.h) comes after.
bool encode_streamed(DType narrow, const float* in, void* codes, std::int64_t n);

}  // namespace gradual::detail
