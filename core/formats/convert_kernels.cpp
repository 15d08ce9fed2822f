#include "convert_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace gradual::detail {
namespace {

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
[[gnu::target("avx512f,avx512bw,avx512dq,avx512bf16,f16c")]] void encode_lines(const float* in, void* codes,
                                                                               std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 32) {
    const __m512 a = _mm512_loadu_ps(in + i);
    const __m512 b = _mm512_loadu_ps(in + i + 16);
    __m512i line;
    if constexpr (kLine == Line::f16)
      line = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(a, kNearestEven)),
                                _mm512_cvtps_ph(b, kNearestEven), 1);
    else if constexpr (kLine == Line::bf16) line = bf16_line(a, b);
    else line = bf16_line_bf16(a, b);
    auto* const to = reinterpret_cast<__m512i*>(static_cast<char*>(codes) + 2 * i);
    if constexpr (kStream) _mm512_stream_si512(to, line);
    else _mm512_storeu_si512(to, line);
  }
}
// The bf16 codes of 8 floats, each in 32 bits, as NarrowFloat rounds them.
[[gnu::target("avx2")]] inline __m256i bf16_codes(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(kFloatQuietBit));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
// Rounds n floats, a multiple of 16, to codes of 16 bits, and streams them.
template <Line kLine> [[gnu::target("avx2,f16c")]] void stream_codes(const float* in, void* codes, std::int64_t n) {
  constexpr int kInOrder = 0xd8;  // a pack works within halves: a, b, a, b
  for (std::int64_t i = 0; i < n; i += 16) {
    const __m256 a = _mm256_loadu_ps(in + i);
    const __m256 b = _mm256_loadu_ps(in + i + 8);
    __m256i both;
    if constexpr (kLine == Line::f16)
      both = _mm256_set_m128i(_mm256_cvtps_ph(b, kNearestEven), _mm256_cvtps_ph(a, kNearestEven));
    else both = _mm256_permute4x64_epi64(_mm256_packus_epi32(bf16_codes(a), bf16_codes(b)), kInOrder);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(static_cast<char*>(codes) + 2 * i), both);
  }
}
// The floats of n codes of 16 bits, a multiple of 8.
template <Line kLine, bool kStream>
[[gnu::target("avx2,f16c")]] void decode_lines(const void* codes, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 8) {
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const char*>(codes) + 2 * i));
    __m256 wide;
    if constexpr (kLine == Line::f16) wide = _mm256_cvtph_ps(narrow);
    else wide = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
    if constexpr (kStream) _mm256_stream_ps(out + i, wide);
    else _mm256_storeu_ps(out + i, wide);
  }
}
void decode_f16c(const Half* codes, float* out, std::int64_t n) {
  const std::int64_t lines = n / 8 * 8;
  decode_lines<Line::f16, false>(codes, out, lines);
  for (std::int64_t i = lines; i < n; ++i) out[i] = static_cast<float>(codes[i]);
}

}  // namespace

void cast_array(const float* in, Half* codes, std::int64_t n) {
  if (cpu_isa() < CpuIsa::avx2) return cast_array<Half>(in, codes, n);
  const std::int64_t lines = cpu_isa() >= CpuIsa::avx512 ? n / 32 * 32 : 0;
  if (lines > 0) encode_lines<Line::f16, false>(in, codes, lines);
  encode_f16c(in + lines, codes + lines, n - lines);
}
void cast_array(const Half* codes, float* out, std::int64_t n) {
  if (cpu_isa() >= CpuIsa::avx2) decode_f16c(codes, out, n);
  else cast_array<float>(codes, out, n);
}
void cast_array(const float* in, BFloat16* codes, std::int64_t n) {
  const std::int64_t lines = cpu_isa() >= CpuIsa::avx512 && has_avx512_bf16() ? n / 32 * 32 : 0;
  if (lines > 0) encode_lines<Line::bf16_by_instruction, false>(in, codes, lines);
  if (lines < n) cast_array<BFloat16>(in + lines, codes + lines, n - lines);
}
void cast_array(const BFloat16* codes, float* out, std::int64_t n) {
  if (cpu_isa() >= CpuIsa::avx512) decode_bf16(codes, out, n);
  else cast_array<float>(codes, out, n);
}

bool convert_streamed(DType src, const void* in, DType dst, void* out, std::int64_t n) {
  if (cpu_isa() < CpuIsa::avx2) return false;
  if (src == DType::f32 && is_half(dst)) {
    const auto* const numbers = static_cast<const float*>(in);
    if (cpu_isa() >= CpuIsa::avx512) {
      const auto bf16 =
          has_avx512_bf16() ? encode_lines<Line::bf16_by_instruction, true> : encode_lines<Line::bf16, true>;
      (dst == DType::f16 ? encode_lines<Line::f16, true> : bf16)(numbers, out, n);
    } else {
      (dst == DType::f16 ? stream_codes<Line::f16> : stream_codes<Line::bf16>)(numbers, out, n);
    }
    return true;
  }
  if (dst == DType::f32 && is_half(src)) {
    (src == DType::f16 ? decode_lines<Line::f16, true> : decode_lines<Line::bf16, true>)(in, static_cast<float*>(out),
                                                                                         n);
    return true;
  }
  return false;
}

}  // namespace gradual::detail
#else
bool gradual::detail::convert_streamed(DType, const void*, DType, void*, std::int64_t) { return false; }
#endif
