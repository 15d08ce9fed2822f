// What the fast f32 kernels share: the vectors of an instruction set, and ways into the order that tiles read.
#pragma once

// Not for clang, which inlines neither functions of other targets nor, by flatten, what a called function calls: its kernels
// would consist of calls.
#if defined(__x86_64__) && !defined(__clang__)
#include <immintrin.h>

#include <cstdint>

#include "../gemm.h"

namespace gradual::cpu {

inline constexpr std::int64_t kBlockDepth =
    256;  // of sums at a time: a strip of two vectors' columns stays in the first cache

// What a kernel knows of an instruction set. By reference: vectors cannot be handed over where the caller has no such
// registers, which it only has once all is inlined.
struct Avx2 {
  using Vector = __m256;
  static constexpr int kLanes = 8, kRows = 6;  // of a tile: sums for 12 of 16 registers
  [[gnu::target("avx2,fma")]] static void load(Vector& v, const float* from) { v = _mm256_loadu_ps(from); }
  [[gnu::target("avx2,fma")]] static void store(float* to, const Vector& v) { _mm256_storeu_ps(to, v); }
  [[gnu::target("avx2,fma")]] static void repeat(Vector& v, const float* from) { v = _mm256_broadcast_ss(from); }
  [[gnu::target("avx2,fma")]] static void add_product(Vector& sum, const Vector& x, const Vector& y) {
    sum = _mm256_fmadd_ps(x, y, sum);
  }
};
struct Avx512 {
  using Vector = __m512;
  static constexpr int kLanes = 16, kRows = 8;  // 16 of 32 registers
  [[gnu::target("avx512f")]] static void load(Vector& v, const float* from) { v = _mm512_loadu_ps(from); }
  [[gnu::target("avx512f")]] static void store(float* to, const Vector& v) { _mm512_storeu_ps(to, v); }
  [[gnu::target("avx512f")]] static void repeat(Vector& v, const float* from) { v = _mm512_set1_ps(*from); }
  [[gnu::target("avx512f")]] static void add_product(Vector& sum, const Vector& x, const Vector& y) {
    sum = _mm512_fmadd_ps(x, y, sum);
  }
};

using Eight [[gnu::vector_size(32), gnu::aligned(4), gnu::may_alias]] = float;

// to[i * across + j] = from[j * stride + i] for i and j below 8: pairs, fours and halves of vectors change places.
inline void transpose(const float* from, std::int64_t stride, float* to, std::int64_t across) {
  Eight rows[8], pairs[8], fours[8];
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) rows[j] = *reinterpret_cast<const Eight*>(from + j * stride);
#pragma GCC unroll 4
  for (int j = 0; j < 8; j += 2) {
    pairs[j] = __builtin_shufflevector(rows[j], rows[j + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[j + 1] = __builtin_shufflevector(rows[j], rows[j + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma GCC unroll 4
  for (int j : {0, 1, 4, 5}) {
    const int even = j / 4 * 4 + j % 4 * 2;
    fours[even] = __builtin_shufflevector(pairs[j], pairs[j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    fours[even + 1] = __builtin_shufflevector(pairs[j], pairs[j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
  }
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j)
    *reinterpret_cast<Eight*>(to + j * across) =
        j < 4 ? __builtin_shufflevector(fours[j], fours[j + 4], 0, 1, 2, 3, 8, 9, 10, 11)
              : __builtin_shufflevector(fours[j - 4], fours[j], 4, 5, 6, 7, 12, 13, 14, 15);
}

// As many columns of b as two vectors have numbers (they may be fewer, filled up with zeros), as rows without gaps.
template <class Isa>
void pack_columns(const MatrixRef<float>& b, std::int64_t k, std::int64_t columns, float* __restrict to) {
  using Vector = typename Isa::Vector;
  constexpr int kLanes = Isa::kLanes, kColumns = 2 * kLanes;
  const float* const from = b.data;
  const std::int64_t stride = b.col_stride, row = b.row_stride;
  const std::int64_t squares = row == 1 ? k / 8 * 8 : 0, whole = columns / 8 * 8;
  for (std::int64_t p = 0; p < squares; p += 8)
    for (std::int64_t j = 0; j < whole; j += 8)
      transpose(from + p + j * stride, stride, to + p * kColumns + j, kColumns);
  if (columns == kColumns && stride == 1) {
    for (std::int64_t p = 0; p < k; ++p)
      for (int v = 0; v < kColumns; v += kLanes) {
        Vector numbers;
        Isa::load(numbers, from + p * row + v);
        Isa::store(to + p * kColumns + v, numbers);
      }
    return;
  }
  for (std::int64_t p = 0; p < k; ++p)
    for (std::int64_t j = p < squares ? whole : 0; j < kColumns; ++j)
      to[p * kColumns + j] = j < columns ? from[p * row + j * stride] : 0;
}

}  // namespace gradual::cpu

#endif
