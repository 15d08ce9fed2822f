#include "convert_kernels.h"

#include "float_types.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace gradual::detail {

namespace {

// Compiled into each instruction set's functions below: the compiler vectorises the loops anew.
template <class T> [[gnu::always_inline]] inline void encode(const float* __restrict in, void* out, std::int64_t n) {
  auto* __restrict codes = static_cast<T*>(out);
  for (std::int64_t i = 0; i < n; ++i) codes[i] = T(in[i]);
}
template <class T> [[gnu::always_inline]] inline void decode(const void* in, float* __restrict out, std::int64_t n) {
  const auto* __restrict codes = static_cast<const T*>(in);
  for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(codes[i]);
}

template <class T> void encode_portable(const float* in, void* out, std::int64_t n) { encode<T>(in, out, n); }
template <class T> void decode_portable(const void* in, float* out, std::int64_t n) { decode<T>(in, out, n); }

}  // namespace

constinit const ConvertKernels kPortableKernels = {
    {encode_portable<Half>, encode_portable<BFloat16>, encode_portable<Float8E4M3FN>, encode_portable<Float8E5M2>},
    {decode_portable<Half>, decode_portable<BFloat16>, decode_portable<Float8E4M3FN>, decode_portable<Float8E5M2>}};

#if defined(__x86_64__)

// Instructions are enabled per function, so that one portable binary holds all paths and no build flag
// matters. f16 has instructions of its own; for the other formats the compiler vectorises the portable code
// anew. vcvtneps2bf16 is not used: it treats subnormal numbers as zero.
namespace {

constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

template <class T> [[gnu::target("avx2,f16c")]] void encode_avx2(const float* in, void* out, std::int64_t n) {
  encode<T>(in, out, n);
}
template <class T> [[gnu::target("avx2,f16c")]] void decode_avx2(const void* in, float* out, std::int64_t n) {
  decode<T>(in, out, n);
}
template <class T>
[[gnu::target("avx512f,avx512bw,avx512vl")]] void encode_avx512(const float* in, void* out, std::int64_t n) {
  encode<T>(in, out, n);
}
template <class T>
[[gnu::target("avx512f,avx512bw,avx512vl")]] void decode_avx512(const void* in, float* out, std::int64_t n) {
  decode<T>(in, out, n);
}

template <> [[gnu::target("avx2,f16c")]] void encode_avx2<Half>(const float* in, void* out, std::int64_t n) {
  auto* codes = static_cast<Half*>(out);
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), kNearestEven);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), half);
  }
  for (; i < n; ++i) codes[i] = Half(in[i]);
}

template <> [[gnu::target("avx2,f16c")]] void decode_avx2<Half>(const void* in, float* out, std::int64_t n) {
  const auto* codes = static_cast<const Half*>(in);
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(half));
  }
  for (; i < n; ++i) out[i] = static_cast<float>(codes[i]);
}

constinit const ConvertKernels kAvx2Kernels = {
    {encode_avx2<Half>, encode_avx2<BFloat16>, encode_avx2<Float8E4M3FN>, encode_avx2<Float8E5M2>},
    {decode_avx2<Half>, decode_avx2<BFloat16>, decode_avx2<Float8E4M3FN>, decode_avx2<Float8E5M2>}};

constinit const ConvertKernels kAvx512Kernels = {
    {encode_avx2<Half>, encode_avx512<BFloat16>, encode_avx512<Float8E4M3FN>, encode_avx512<Float8E5M2>},
    {decode_avx2<Half>, decode_avx512<BFloat16>, decode_avx512<Float8E4M3FN>, decode_avx512<Float8E5M2>}};

bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

}  // namespace

// __builtin_cpu_supports also asks whether the operating system saves the wide registers.
const ConvertKernels* avx2_kernels() {
  static const bool supported = __builtin_cpu_supports("avx2") && has_f16c();
  return supported ? &kAvx2Kernels : nullptr;
}

const ConvertKernels* avx512_kernels() {
  static const bool supported =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return supported ? &kAvx512Kernels : nullptr;
}

#else

const ConvertKernels* avx2_kernels() { return nullptr; }
const ConvertKernels* avx512_kernels() { return nullptr; }

#endif

}  // namespace gradual::detail
