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

// f32 to f16 or bf16, or back, by stores that bypass the caches. `out` is aligned to 64 bytes, and its size is a
// multiple of 64. The caller calls cpu::stream_end() (streaming_store.h) afterwards. Returns false, and writes nothing,
// for other dtypes and for processors without AVX2.
bool convert_streamed(DType src, const void* in, DType dst, void* out, std::int64_t n);

}  // namespace gradual::detail
