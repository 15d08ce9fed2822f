#include "convert_kernels.h"

#include "float_types.h"
#include "multiversion.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gradual::detail {
namespace {

// vcvtneps2bf16 is not used for bf16: it treats subnormal numbers as zero.
template <class T> void encode_loop(const float* in, void* codes, std::int64_t n) {
  vectorized([=] {
    const float* __restrict from = in;
    auto* __restrict to = static_cast<T*>(codes);
    for (std::int64_t i = 0; i < n; ++i) to[i] = T(from[i]);
  });
}
template <class T> void decode_loop(const void* codes, float* out, std::int64_t n) {
  vectorized([=] {
    const auto* __restrict from = static_cast<const T*>(codes);
    float* __restrict to = out;
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(from[i]);
  });
}

// f16 has instructions of its own.
#if defined(__x86_64__)
[[gnu::target("avx2,f16c")]] void encode_f16c(const float* in, Half* codes, std::int64_t n) {
  constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), kNearestEven);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), half);
  }
  for (; i < n; ++i) codes[i] = Half(in[i]);
}
[[gnu::target("avx512f,f16c")]] void encode_avx512(const float* in, Half* codes, std::int64_t n) {
  constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i half = _mm512_cvtps_ph(_mm512_loadu_ps(in + i), kNearestEven);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), half);
  }
  encode_f16c(in + i, codes + i, n - i);
}
[[gnu::target("avx2,f16c")]] void decode_f16c(const Half* codes, float* out, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(half));
  }
  for (; i < n; ++i) out[i] = static_cast<float>(codes[i]);
}
void encode_half(const float* in, void* codes, std::int64_t n) {
  if (cpu_isa() == CpuIsa::avx512) encode_avx512(in, static_cast<Half*>(codes), n);
  else if (cpu_isa() == CpuIsa::avx2) encode_f16c(in, static_cast<Half*>(codes), n);
  else encode_loop<Half>(in, codes, n);
}
void decode_half(const void* codes, float* out, std::int64_t n) {
  if (cpu_isa() >= CpuIsa::avx2) decode_f16c(static_cast<const Half*>(codes), out, n);
  else decode_loop<Half>(codes, out, n);
}
#else
constexpr auto encode_half = encode_loop<Half>;
constexpr auto decode_half = decode_loop<Half>;
#endif

// f16, bf16, f8e4m3fn, f8e5m2 are 0 to 3.
constexpr std::size_t narrow_index(DType dtype) {
  return static_cast<std::size_t>(dtype) - static_cast<std::size_t>(DType::f16);
}

}  // namespace

void encode_array(DType narrow, const float* in, void* codes, std::int64_t n) {
  static constexpr decltype(&encode_half) kLoops[] = {encode_half, encode_loop<BFloat16>, encode_loop<Float8E4M3FN>,
                                                      encode_loop<Float8E5M2>};
  kLoops[narrow_index(narrow)](in, codes, n);
}

void decode_array(DType narrow, const void* codes, float* out, std::int64_t n) {
  static constexpr decltype(&decode_half) kLoops[] = {decode_half, decode_loop<BFloat16>, decode_loop<Float8E4M3FN>,
                                                      decode_loop<Float8E5M2>};
  kLoops[narrow_index(narrow)](codes, out, n);
}

}  // namespace gradual::detail
