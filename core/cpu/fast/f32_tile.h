// Shared by the fast f32 kernels: the vectors of an instruction set, tiles of sums, and the packing for tiles.
#pragma once

// Not for clang: it does not inline functions of other targets, and its flatten does not reach nested calls, so the
// kernels would consist of calls.
#if defined(__x86_64__) && !defined(__clang__)
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "../../formats/float_types.h"
#include "../gemm.h"

namespace gradual::cpu {

// Products added to a sum at a time: a strip of b, two vectors wide, stays in the L1 cache.
inline constexpr std::int64_t kBlockDepth = 256;
// Rows of a packed block of a, which stays in the L2 cache: a multiple of a tile's rows.
inline constexpr std::int64_t kBlockRows = 96;

// An instruction set. Vectors are passed by reference: a caller without these registers cannot pass them by value, and
// callers have them only once everything is inlined.
struct Avx2 {
  using Vector = __m256;
  static constexpr int kLanes = 8;  // lanes of a vector
  static constexpr int kRows = 6;   // rows of a tile; its sums take 12 of 16 registers
  [[gnu::target("avx2,fma")]] static void load(Vector& v, const float* from) { v = _mm256_loadu_ps(from); }
  [[gnu::target("avx2,fma")]] static void store(float* to, const Vector& v) { _mm256_storeu_ps(to, v); }
  [[gnu::target("avx2,fma")]] static void repeat(Vector& v, const float* from) { v = _mm256_broadcast_ss(from); }
  [[gnu::target("avx2,fma")]] static void add_product(Vector& sum, const Vector& x, const Vector& y) {
    sum = _mm256_fmadd_ps(x, y, sum);
  }
};
struct Avx512 {
  using Vector = __m512;
  // the sums take 16 of 32 registers
  static constexpr int kLanes = 16;
  static constexpr int kRows = 8;
  [[gnu::target("avx512f")]] static void load(Vector& v, const float* from) { v = _mm512_loadu_ps(from); }
  [[gnu::target("avx512f")]] static void store(float* to, const Vector& v) { _mm512_storeu_ps(to, v); }
  [[gnu::target("avx512f")]] static void repeat(Vector& v, const float* from) { v = _mm512_set1_ps(*from); }
  [[gnu::target("avx512f")]] static void add_product(Vector& sum, const Vector& x, const Vector& y) {
    sum = _mm512_fmadd_ps(x, y, sum);
  }
};

// A panel of a matrix. Its rows begin `step` elements apart; with a step of 0 it has the same row throughout.
struct Panel {
  const float* data;
  std::int64_t step;
};

// A matrix as an operand of tile(). rows<kR>(first, f) calls f(cursor) for kR rows: cursor[i] points to the element of
// row i at the current k, and next() moves to the next k. Adjacent rows share one pointer. Otherwise three rows share
// one: addresses of instructions can add 0, 1 or 2 times the row stride. With one pointer per row, most would be in
// memory.
struct Strided : MatrixRef<float> {
  template <int kR, bool kNext> struct Cursor {
    static constexpr int kGroup = kNext ? kR : 3;
    static constexpr int kGroups = (kR + kGroup - 1) / kGroup;
    std::int64_t row, column;
    const float* at[kGroups];
    Cursor(const float* data, const Strided& a) : row(kNext ? 1 : a.row_stride), column(a.col_stride) {
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g) at[g] = data + g * kGroup * row;
    }
    const float* operator[](int i) const { return at[i / kGroup] + i % kGroup * row; }
    void next() {
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g) at[g] += column;
    }
  };
  template <int kR, class F> void rows(std::int64_t first, const F& f) const {
    if (row_stride == 1) f(Cursor<kR, true>(data + first, *this));
    else f(Cursor<kR, false>(data + first * row_stride, *this));
  }
};

// c = start + a b for kR rows and kV vectors of c, over k products. The sums of the next tile are fetched ahead: their
// rows lie far apart, which no processor foresees.
template <class Isa, int kR, int kV, class Cursor>
void tile(std::int64_t k, Cursor a, const Panel& b, const Panel& start, float* c, std::int64_t across) {
  using Vector = typename Isa::Vector;
  Vector sums[kR][kV];
#pragma GCC unroll 8
  for (int i = 0; i < kR; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) Isa::load(sums[i][v], start.data + i * start.step + v * Isa::kLanes);
  if (start.step != 0)
#pragma GCC unroll 8
    for (int i = 0; i < kR; ++i) __builtin_prefetch(start.data + (kR + i) * start.step);
  const float* from_b = b.data;
#pragma GCC unroll 4
  for (std::int64_t p = 0; p < k; ++p) {
    Vector x, y[kV];
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) Isa::load(y[v], from_b + v * Isa::kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kR; ++i) {
      Isa::repeat(x, a[i]);
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) Isa::add_product(sums[i][v], x, y[v]);
    }
    a.next();
    from_b += b.step;
  }
#pragma GCC unroll 8
  for (int i = 0; i < kR; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) Isa::store(c + i * across + v * Isa::kLanes, sums[i][v]);
}

// Cuts m rows into tiles of nearly equal height, since a tile of few rows would wait for its sums: f(first, rows).
template <class Isa, class F> void for_tiles(std::int64_t m, const F& f) {
  for (std::int64_t i = 0, count = (m + Isa::kRows - 1) / Isa::kRows; count > 0; --count) {
    const std::int64_t rows = (m - i + count - 1) / count;
    f(i, rows);
    i += rows;
  }
}

// A block of a matrix packed by pack_rows(), as an operand of strip().
struct PackedRows {
  const float* data;
  std::int64_t k;
  template <int kR, class F> void rows(std::int64_t first, const F& f) const {
    f(Strided::Cursor<kR, true>(data + first * k, Strided{{nullptr, 1, kR}}));
  }
};

// All m rows of a strip of kV vectors.
template <class Isa, int kV, class Matrix>
void strip(std::int64_t m, std::int64_t k, const Matrix& a, const Panel& b, const Panel& start, float* c,
           std::int64_t across) {
  for_tiles<Isa>(m, [&](std::int64_t i, std::int64_t rows) {
    [&]<int... kR>(std::integer_sequence<int, kR...>) {
      const auto run = [&]<int kHigh>() {
        a.template rows<kHigh>(i, [&](const auto& cursor) {
          tile<Isa, kHigh, kV>(k, cursor, b, {start.data + i * start.step, start.step}, c + i * across, across);
        });
        return true;
      };
      static_cast<void>(((rows == kR + 1 && run.template operator()<kR + 1>()) || ...));
    }(std::make_integer_sequence<int, Isa::kRows>());
  });
}

using Eight [[gnu::vector_size(32), gnu::aligned(4), gnu::may_alias]] = float;

// Eight adjacent numbers, exactly.
inline void load_eight(Eight& v, const float* from) { v = *reinterpret_cast<const Eight*>(from); }
[[gnu::target("avx2,fma")]] inline void load_eight(Eight& v, const BFloat16* from) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  v = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(codes), 16));
}
[[gnu::target("avx2,fma,f16c")]] inline void load_eight(Eight& v, const Half* from) {
  v = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
template <class In> void load_line(const In* from, std::int64_t n, float* to) {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) load_eight(*reinterpret_cast<Eight*>(to + i), from + i);
  for (; i < n; ++i) to[i] = static_cast<float>(from[i]);
}

// to[i * across + j] = from[j * stride + i] for i and j below 8: interleaves pairs, then fours, then halves of vectors.
// Rows after `last` repeat it. Writes in the order of i, so that later rows may overwrite the ends of earlier ones.
template <class In>
void transpose(const In* from, std::int64_t stride, float* to, std::int64_t across, std::int64_t last = 7) {
  Eight rows[8], pairs[8], fours[8];
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) load_eight(rows[j], from + (j < last ? j : last) * stride);
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

// What pack_rows() may write after the block, in floats.
inline constexpr std::int64_t kBeyond = 8;

// Packs a block of m rows, at most kBlockRows, and k columns for PackedRows: tile after tile of for_tiles(), in each k
// after k, the tile's rows adjacent. So packed, the numbers lie in the order in which tile() reads them. In place, rows
// (or columns) that are a power of two apart would want the same sets of the caches.
template <class Isa, class In>
void pack_rows(const MatrixRef<In>& a, std::int64_t m, std::int64_t k, float* __restrict to) {
  constexpr std::int64_t kStep = 4;  // columns read at a time, if columns are adjacent lines
  float lines[kStep * kBlockRows];
  const std::int64_t stepped = a.row_stride == 1 ? k : 0;
  for (std::int64_t p = 0; p < stepped; p += kStep) {
    const std::int64_t count = std::min(kStep, k - p);
    for (std::int64_t q = 0; q < count; ++q) load_line(a.data + (p + q) * a.col_stride, m, lines + q * kBlockRows);
    for_tiles<Isa>(m, [&](std::int64_t i, std::int64_t rows) {
      float* tile = to + i * k + p * rows;
      for (std::int64_t q = 0; q < count; ++q, tile += rows) {
        const float* const line = lines + q * kBlockRows + i;
        if (rows == Isa::kRows) std::copy_n(line, Isa::kRows, tile);
        else std::copy_n(line, rows, tile);
      }
    });
  }
  if (stepped > 0) return;
  const std::int64_t whole = k / 8 * 8;
  for_tiles<Isa>(m, [&](std::int64_t i, std::int64_t rows) {
    const In* const from = a.data + i * a.row_stride;
    float* const tile = to + i * k;
    for (std::int64_t p = 0; p < whole; p += 8) transpose(from + p, a.row_stride, tile + p * rows, rows, rows - 1);
    for (std::int64_t p = whole; p < k; ++p)
      for (std::int64_t r = 0; r < rows; ++r) tile[p * rows + r] = static_cast<float>(from[r * a.row_stride + p]);
  });
}

// Packs a strip of b, `columns` columns padded with zeros to the width of two vectors, as rows without gaps.
template <class Isa, class In>
void pack_columns(const MatrixRef<In>& b, std::int64_t k, std::int64_t columns, float* __restrict to) {
  constexpr std::int64_t kColumns = 2 * Isa::kLanes;
  const In* const from = b.data;
  const std::int64_t stride = b.col_stride;
  const std::int64_t row = b.row_stride;
  const std::int64_t squares = row == 1 ? k / 8 * 8 : 0;
  const std::int64_t whole = columns / 8 * 8;
  for (std::int64_t p = 0; p < squares; p += 8)
    for (std::int64_t j = 0; j < whole; j += 8)
      transpose(from + p + j * stride, stride, to + p * kColumns + j, kColumns);
  if (columns == kColumns && stride == 1) {
    for (std::int64_t p = 0; p < k; ++p) load_line(from + p * row, kColumns, to + p * kColumns);
    return;
  }
  for (std::int64_t p = 0; p < k; ++p)
    for (std::int64_t j = p < squares ? whole : 0; j < kColumns; ++j)
      to[p * kColumns + j] = j < columns ? static_cast<float>(from[p * row + j * stride]) : 0;
}

}  // namespace gradual::cpu

#endif
