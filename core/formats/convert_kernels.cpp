#include "convert_kernels.h"

#include "../support/multiversion.h"
#include "float_types.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gradual::detail {
namespace {

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

// Kernels of f16, for which processors have instructions, and of bf16.
#if defined(__x86_64__)
constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
[[gnu::target("avx2,f16c")]] void encode_f16c(const float* in, Half* codes, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), kNearestEven);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), half);
  }
  for (; i < n; ++i) codes[i] = Half(in[i]);
}
// Rounds 16 floats to bf16 codes, as NarrowFloat does.
[[gnu::target("avx512f,avx512bw")]] inline __m256i bf16_of(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(kFloatQuietBit));
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
}
[[gnu::target("avx512f,avx512bw")]] inline __m512i bf16_line(__m512 a, __m512 b) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(bf16_of(a)), bf16_of(b), 1);
}
// By the bf16 instruction. It takes subnormal numbers for zeros, so vectors that have some are rounded without it.
[[gnu::target("avx512f,avx512bw,avx512dq,avx512bf16")]] inline __m512i bf16_line_bf16(__m512 a, __m512 b) {
  constexpr int kSubnormal = 0x20;
  const __mmask16 subnormal = _mm512_fpclass_ps_mask(a, kSubnormal) | _mm512_fpclass_ps_mask(b, kSubnormal);
  if (__builtin_expect(subnormal != 0, 0)) return bf16_line(a, b);
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
}
[[gnu::target("avx512f")]] void decode_bf16(const BFloat16* codes, float* out, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i upper = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
    _mm512_storeu_si512(out + i, _mm512_slli_epi32(_mm512_cvtepu16_epi32(upper), 16));
  }
  for (; i < n; ++i) out[i] = static_cast<float>(codes[i]);
}

enum class Line : std::uint8_t { f16, bf16, bf16_by_instruction };
// Rounds n floats, a multiple of 32, to codes of 16 bits, a line of 64 bytes at a time.
template <Line kLine, bool kStream>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512bf16,f16c")]] void encode_lines(const float* in, char* codes,
                                                                               std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 32) {
    const __m512 a = _mm512_loadu_ps(in + i), b = _mm512_loadu_ps(in + i + 16);
    __m512i line;
    if constexpr (kLine == Line::f16)
      line = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(a, kNearestEven)),
                                _mm512_cvtps_ph(b, kNearestEven), 1);
    else if constexpr (kLine == Line::bf16) line = bf16_line(a, b);
    else line = bf16_line_bf16(a, b);
    if constexpr (kStream) _mm512_stream_si512(reinterpret_cast<__m512i*>(codes + 2 * i), line);
    else _mm512_storeu_si512(codes + 2 * i, line);
  }
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
  if (cpu_isa() < CpuIsa::avx2) return encode_loop<Half>(in, codes, n);
  const std::int64_t lines = cpu_isa() >= CpuIsa::avx512 ? n / 32 * 32 : 0;
  if (lines > 0) encode_lines<Line::f16, false>(in, static_cast<char*>(codes), lines);
  encode_f16c(in + lines, static_cast<Half*>(codes) + lines, n - lines);
}
void decode_half(const void* codes, float* out, std::int64_t n) {
  if (cpu_isa() >= CpuIsa::avx2) decode_f16c(static_cast<const Half*>(codes), out, n);
  else decode_loop<Half>(codes, out, n);
}
void encode_bfloat16(const float* in, void* codes, std::int64_t n) {
  const std::int64_t lines = cpu_isa() >= CpuIsa::avx512 && has_avx512_bf16() ? n / 32 * 32 : 0;
  if (lines > 0) encode_lines<Line::bf16_by_instruction, false>(in, static_cast<char*>(codes), lines);
  if (lines < n) encode_loop<BFloat16>(in + lines, static_cast<BFloat16*>(codes) + lines, n - lines);
}
void decode_bfloat16(const void* codes, float* out, std::int64_t n) {
  if (cpu_isa() >= CpuIsa::avx512) decode_bf16(static_cast<const BFloat16*>(codes), out, n);
  else decode_loop<BFloat16>(codes, out, n);
}
#else
constexpr auto decode_bfloat16 = decode_loop<BFloat16>;
constexpr auto encode_half = encode_loop<Half>;
constexpr auto encode_bfloat16 = encode_loop<BFloat16>;
constexpr auto decode_half = decode_loop<Half>;
#endif

// f16, bf16, f8e4m3fn and f8e5m2 have the indices 0 to 3.
constexpr std::size_t narrow_index(DType dtype) {
  return static_cast<std::size_t>(dtype) - static_cast<std::size_t>(DType::f16);
}

}  // namespace

void encode_array(DType narrow, const float* in, void* codes, std::int64_t n) {
  static constexpr decltype(&encode_half) kLoops[] = {encode_half, encode_bfloat16, encode_loop<Float8E4M3FN>,
                                                      encode_loop<Float8E5M2>};
  kLoops[narrow_index(narrow)](in, codes, n);
}

bool encode_streamed(DType narrow, [[maybe_unused]] const float* in, [[maybe_unused]] void* codes,
                     [[maybe_unused]] std::int64_t n) {
  if (cpu_isa() < CpuIsa::avx512 || !is_half(narrow)) return false;
#if defined(__x86_64__)
  const auto bf16 = has_avx512_bf16() ? encode_lines<Line::bf16_by_instruction, true> : encode_lines<Line::bf16, true>;
  (narrow == DType::f16 ? encode_lines<Line::f16, true> : bf16)(in, static_cast<char*>(codes), n);
#endif
  return true;
}

void decode_array(DType narrow, const void* codes, float* out, std::int64_t n) {
  static constexpr decltype(&decode_half) kLoops[] = {decode_half, decode_bfloat16, decode_loop<Float8E4M3FN>,
                                                      decode_loop<Float8E5M2>};
  kLoops[narrow_index(narrow)](codes, out, n);
}

}  // namespace gradual::detail
