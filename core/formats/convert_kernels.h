#pragma once

#include <cstdint>

#include "../support/multiversion.h"
#include "cast_element.h"

// Conversions of contiguous arrays, element by element.
namespace gradual::detail {

template <class To, class From> void cast_array(const From* in, To* out, std::int64_t n) {
  vectorized([=] {
    const From* __restrict from = in;
    To* __restrict to = out;
    for (std::int64_t i = 0; i < n; ++i) to[i] = cast_element<To>(from[i]);
  });
}
#if defined(__x86_64__)
// The same, by the instructions that processors have for f16 and bf16.
void cast_array(const float* in, Half* codes, std::int64_t n);
void cast_array(const Half* codes, float* out, std::int64_t n);
void cast_array(const float* in, BFloat16* codes, std::int64_t n);
void cast_array(const BFloat16* codes, float* out, std::int64_t n);
#endif

// n floats to codes of the dtype `narrow` by stores that bypass the caches. `codes` is aligned to 64 bytes, n is a
// multiple of 32, and the caller calls cpu::stream_end() (stream.h) afterwards. Returns false, and writes nothing, if
// this processor has no such stores for the dtype.
bool encode_streamed(DType narrow, const float* in, void* codes, std::int64_t n);

}  // namespace gradual::detail
