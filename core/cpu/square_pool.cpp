#include "square_pool.h"

#include <algorithm>
#include <limits>

#include "../formats/float_types.h"
#include "../support/cpu_isa.h"
#include "../support/failf.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gradual::cpu {

bool SquarePool::suits() const {
#if defined(__x86_64__)
  return cpu_isa() >= CpuIsa::avx512 && height * width <= std::numeric_limits<std::int32_t>::max();
#else
  return false;
#endif
}

#if defined(__x86_64__)
namespace {

inline constexpr std::int64_t kWindows = 16;  // at a time, a lane each

// The first n of 16 lanes; for n from 16 on, all.
inline __mmask16 first(std::int64_t n) {
  return static_cast<__mmask16>((std::uint64_t{1} << std::min<std::int64_t>(n, 16)) - 1);
}
inline __mmask16 behind(std::int64_t n) { return first(std::max<std::int64_t>(0, n - 16)); }

[[gnu::target("avx512f")]] inline __m512i counted() {
  return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
[[gnu::target("avx512f")]] inline __m512i evens() { return _mm512_slli_epi32(counted(), 1); }
[[gnu::target("avx512f")]] inline __m512i odds() { return _mm512_or_si512(evens(), _mm512_set1_epi32(1)); }
[[gnu::target("avx512f")]] inline __m512i upper_half(__m512i bits) {
  return _mm512_and_si512(bits, _mm512_set1_epi32(-0x10000));
}

// Of n windows the left and right pixels of one row.
struct Pixels {
  __m512 left, right;
};
[[gnu::target("avx512f,avx512bw,avx512vl")]] inline Pixels load(const float* x, std::int64_t n) {
  const __m512 low = _mm512_maskz_loadu_ps(first(2 * n), x), high = _mm512_maskz_loadu_ps(behind(2 * n), x + 16);
  return {_mm512_permutex2var_ps(low, evens(), high), _mm512_permutex2var_ps(low, odds(), high)};
}
[[gnu::target("avx512f,avx512bw,avx512vl")]] inline Pixels load(const BFloat16* x, std::int64_t n) {
  const __m512i both = _mm512_maskz_loadu_epi32(first(n), x);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)), _mm512_castsi512_ps(upper_half(both))};
}

// What pool.cpp's `exceeds` says of x and most.
[[gnu::target("avx512f")]] inline __mmask16 exceeding(__m512 x, __m512 most) {
  return _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(most, most, _CMP_ORD_Q), x, most, _CMP_NLE_UQ);
}

[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void store(__m512 y, float* to, std::int64_t n) {
  _mm512_mask_storeu_ps(to, first(n), y);
}
[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void store(__m512 y, BFloat16* to, std::int64_t n) {
  const __m512i bits = _mm512_castps_si512(y);
  const __mmask16 nan = _mm512_cmp_ps_mask(y, y, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_mask_or_epi32(bits, nan, bits, _mm512_set1_epi32(detail::kFloatQuietBit));
  _mm256_mask_storeu_epi16(to, first(n), _mm512_cvtepi32_epi16(_mm512_srli_epi32(quiet, 16)));
}

template <class E>
[[gnu::target("avx512f,avx512bw,avx512vl")]] void max_avx512(const SquarePool& p, const E* x, E* y,
                                                             std::int64_t* index) {
  const __m512i below = _mm512_set1_epi32(static_cast<std::int32_t>(p.width)), one = _mm512_set1_epi32(1);
  for (std::int64_t row = 0; row < p.rows; ++row)
    for (std::int64_t col = 0; col < p.cols; col += kWindows) {
      const std::int64_t n = std::min(kWindows, p.cols - col), corner = 2 * (row * p.width + col);
      const Pixels upper = load(x + corner, n), lower = load(x + corner + p.width, n);
      const __m512i at = _mm512_add_epi32(evens(), _mm512_set1_epi32(static_cast<std::int32_t>(corner)));
      const __mmask16 right = exceeding(upper.right, upper.left), lower_right = exceeding(lower.right, lower.left);
      const __m512 above = _mm512_mask_mov_ps(upper.left, right, upper.right);
      const __m512 beneath = _mm512_mask_mov_ps(lower.left, lower_right, lower.right);
      const __mmask16 is_beneath = exceeding(beneath, above);
      store(_mm512_mask_mov_ps(above, is_beneath, beneath), y + row * p.cols + col, n);
      const __m512i below_at = _mm512_add_epi32(at, below);
      const __m512i above_best = _mm512_mask_add_epi32(at, right, at, one);
      const __m512i best =
          _mm512_mask_mov_epi32(above_best, is_beneath, _mm512_mask_add_epi32(below_at, lower_right, below_at, one));
      std::int64_t* const to = index + row * p.cols + col;
      _mm512_mask_storeu_epi64(to, static_cast<__mmask8>(first(n)),
                               _mm512_cvtepi32_epi64(_mm512_castsi512_si256(best)));
      _mm512_mask_storeu_epi64(to + 8, static_cast<__mmask8>(first(n) >> 8),
                               _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(best, 1)));
    }
}

// 0 + dy, that is without a zero's sign.
[[gnu::target("avx512f,avx512bw,avx512vl")]] inline __m512 load_gradient(const float* dy, std::int64_t n) {
  return _mm512_add_ps(_mm512_setzero_ps(), _mm512_maskz_loadu_ps(first(n), dy));
}
[[gnu::target("avx512f,avx512bw,avx512vl")]] inline __m512 load_gradient(const BFloat16* dy, std::int64_t n) {
  const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(n), dy)), 16);
  return _mm512_add_ps(_mm512_setzero_ps(), _mm512_castsi512_ps(bits));
}

// A row of n windows: each window's dy at its pixel `at`, 0 or 1, which may be neither, and else 0.
[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void store_at(__m512i at, __m512 dy, float* dx, std::int64_t n) {
  const __m512i twice = _mm512_srli_epi32(counted(), 1), left_right = _mm512_and_si512(counted(), _mm512_set1_epi32(1));
  for (int half = 0; half < 2; ++half) {
    const __m512i window = _mm512_add_epi32(twice, _mm512_set1_epi32(8 * half));
    const __mmask16 here = _mm512_cmpeq_epi32_mask(_mm512_permutexvar_epi32(window, at), left_right);
    const __m512 values = _mm512_maskz_permutexvar_ps(here, window, dy);
    _mm512_mask_storeu_ps(dx + 16 * half, half == 0 ? first(2 * n) : behind(2 * n), values);
  }
}
[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void store_at(__m512i at, __m512 dy, BFloat16* dx, std::int64_t n) {
  const __m512i bits = _mm512_castps_si512(dy);
  const __m512i left = _mm512_maskz_srli_epi32(_mm512_testn_epi32_mask(at, at), bits, 16);
  const __mmask16 right = _mm512_cmpeq_epi32_mask(at, _mm512_set1_epi32(1));
  _mm512_mask_storeu_epi32(dx, first(n), _mm512_mask_mov_epi32(left, right, bits));
}

template <class E>
[[gnu::target("avx512f,avx512bw,avx512vl")]] bool spread_avx512(const SquarePool& p, const E* dy,
                                                                const std::int64_t* index, E* dx) {
  const __m512i below = _mm512_set1_epi32(static_cast<std::int32_t>(p.width)), two = _mm512_set1_epi32(2);
  __mmask16 strange = 0;
  for (std::int64_t row = 0; row < p.rows; ++row) {
    E *const upper = dx + 2 * row * p.width, *const lower = upper + p.width;
    for (std::int64_t col = 0; col < p.cols; col += kWindows) {
      const std::int64_t n = std::min(kWindows, p.cols - col), corner = 2 * (row * p.width + col);
      const std::int64_t* const from = index + row * p.cols + col;
      const __m512i a = _mm512_maskz_loadu_epi64(static_cast<__mmask8>(first(n)), from);
      const __m512i b = _mm512_maskz_loadu_epi64(static_cast<__mmask8>(first(n) >> 8), from + 8);
      const __m512i high = _mm512_permutex2var_epi32(a, odds(), b);
      const __m512i start = _mm512_add_epi32(evens(), _mm512_set1_epi32(static_cast<std::int32_t>(corner)));
      const __m512i at = _mm512_sub_epi32(_mm512_permutex2var_epi32(a, evens(), b), start);
      const __m512i at_below = _mm512_sub_epi32(at, below);
      const __mmask16 inside = _mm512_cmplt_epu32_mask(at, two) | _mm512_cmplt_epu32_mask(at_below, two);
      strange |= static_cast<__mmask16>(first(n) & (~inside | _mm512_test_epi32_mask(high, high)));
      const __m512 gradient = load_gradient(dy + row * p.cols + col, n);
      store_at(at, gradient, upper + 2 * col, n);
      store_at(at_below, gradient, lower + 2 * col, n);
    }
    if (p.width % 2 != 0) upper[p.width - 1] = lower[p.width - 1] = E{};
  }
  std::fill(dx + 2 * p.rows * p.width, dx + p.height * p.width, E{});
  return strange == 0;
}

}  // namespace

template <class E> void max_of_squares(const SquarePool& p, const E* x, E* y, std::int64_t* index) {
  max_avx512(p, x, y, index);
}
template <class E> bool spread_to_squares(const SquarePool& p, const E* dy, const std::int64_t* index, E* dx) {
  return spread_avx512(p, dy, index, dx);
}
#else
template <class E> void max_of_squares(const SquarePool&, const E*, E*, std::int64_t*) {
  fail("internal: max_of_squares without AVX-512");
}
template <class E> bool spread_to_squares(const SquarePool&, const E*, const std::int64_t*, E*) {
  fail("internal: spread_to_squares without AVX-512");
}
#endif

template void max_of_squares(const SquarePool&, const float*, float*, std::int64_t*);
template void max_of_squares(const SquarePool&, const BFloat16*, BFloat16*, std::int64_t*);
template bool spread_to_squares(const SquarePool&, const float*, const std::int64_t*, float*);
template bool spread_to_squares(const SquarePool&, const BFloat16*, const std::int64_t*, BFloat16*);

}  // namespace gradual::cpu
