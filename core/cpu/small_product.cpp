#include "small_product.h"

#include <algorithm>
#include <cmath>

#include "../memory.h"
#include "../multiversion.h"

namespace gradual::cpu {
namespace {

inline constexpr std::int64_t kSmall = 1 << 19, kDepth = 1024;  // multiplications, and of a sum, at most
inline constexpr std::int64_t kSide = 8;                        // rows and columns, at least

// For vectors of kLanes. A tile of c has kRows rows of two vectors: sums for most of the registers, which are 32 of AVX-512
// and 16 of AVX2.
template <int kLanes> struct Kernel {
  static constexpr int kRows = kLanes == 16 ? 8 : 6, kColumns = 2 * kLanes;

  // f(0) .. f(kLanes - 1) as one vector.
  template <class F> static void lanes(const F& f) {
#pragma omp simd
    for (int j = 0; j < kLanes; ++j) f(j);
  }

  // kLanes columns of b (the last may be fewer, filled up with zeros) as rows without gaps.
  static void pack(const MatrixRef<float>& b, std::int64_t k, std::int64_t columns, float* __restrict to) {
    const float* const from = b.data;
    const std::int64_t stride = b.col_stride;
    if (columns == kLanes && b.row_stride == 1) {  // the compiler makes it vectors that are transposed
      for (std::int64_t p = 0; p < k; ++p)
        for (std::int64_t j = 0; j < kLanes; ++j) to[p * kLanes + j] = from[p + j * stride];
      return;
    }
    for (std::int64_t p = 0; p < k; ++p)
      for (std::int64_t j = 0; j < kLanes; ++j)
        to[p * kLanes + j] = j < columns ? from[p * b.row_stride + j * stride] : 0;
  }

  // kLanes numbers of each of kV vectors that begin `apart` from another, and rows of them.
  struct Vectors {
    const float* data;
    std::int64_t step, apart;
  };

  // kR rows and kV vectors of c, each row beginning as `start`.
  template <int kR, int kV>
  static void tile(std::int64_t k, const MatrixRef<float>& a, const Vectors& b, const float* start, float* c,
                   std::int64_t across) {
    float sums[kR][kV][kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kR; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < kV; ++v) lanes([&](int j) { sums[i][v][j] = start[v * kLanes + j]; });
    for (std::int64_t p = 0; p < k; ++p) {
#pragma GCC unroll 8
      for (int i = 0; i < kR; ++i) {
        const float x = a.data[i * a.row_stride + p * a.col_stride];
#pragma GCC unroll 2
        for (int v = 0; v < kV; ++v) {
          const float* const y = b.data + p * b.step + v * b.apart;
          lanes([&](int j) { sums[i][v][j] = std::fma(x, y[j], sums[i][v][j]); });
        }
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kR; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < kV; ++v) lanes([&](int j) { c[i * across + v * kLanes + j] = sums[i][v][j]; });
  }

  // All rows of kV vectors of columns.
  template <int kV>
  static void strip(std::int64_t m, std::int64_t k, const MatrixRef<float>& a, const Vectors& b, const float* start,
                    float* c, std::int64_t across) {
    const auto rows = [&]<int kR>(std::int64_t i) {
      const MatrixRef<float> part{a.data + i * a.row_stride, a.row_stride, a.col_stride};
      tile<kR, kV>(k, part, b, start, c + i * across, across);
    };
    std::int64_t i = 0;
    for (; i + kRows <= m; i += kRows) rows.template operator()<kRows>(i);
    for (; i + 2 <= m; i += 2) rows.template operator()<2>(i);
    if (i < m) rows.template operator()<1>(i);
  }

  // Columns [column, column + columns) of c, at most kColumns. `room` holds b's columns, c's where they are fewer, and the bias.
  static void columns_of(const SmallProduct& p, std::int64_t column, std::int64_t columns, float* room) {
    float *const panel = room, *const start = room + p.k * kColumns, *const own = start + kColumns;
    std::fill_n(start, kColumns, 0.0F);
    if (p.bias) std::copy_n(p.bias + column, columns, start);
    const float* const from = p.b.data + column * p.b.col_stride;
    Vectors b{from, p.b.row_stride, kLanes};
    if (columns < kColumns || p.b.col_stride != 1) {
      for (std::int64_t j = 0; j < columns; j += kLanes)
        pack({from + j * p.b.col_stride, p.b.row_stride, p.b.col_stride}, p.k,
             std::min<std::int64_t>(kLanes, columns - j), panel + p.k * j);
      b = {panel, kLanes, p.k * kLanes};
    }
    float* const c = columns == kColumns ? p.c + column : own;
    if (columns > kLanes) strip<2>(p.m, p.k, p.a, b, start, c, columns == kColumns ? p.across : kColumns);
    else strip<1>(p.m, p.k, p.a, b, start, own, kColumns);
    for (std::int64_t i = 0; i < p.m && c == own; ++i)
      std::copy_n(own + i * kColumns, columns, p.c + i * p.across + column);
  }

  static void run(const SmallProduct& p, float* room) {
    for (std::int64_t column = 0; column < p.n; column += kColumns)
      columns_of(p, column, std::min<std::int64_t>(kColumns, p.n - column), room);
  }
};

}  // namespace

bool small_product(const SmallProduct& p) {
  const bool suits = p.m >= kSide && p.n >= kSide && p.k <= kDepth && p.m * p.n * p.k <= kSmall;
  const CpuIsa isa = cpu_isa();
  if (!suits || isa < CpuIsa::avx2 || (p.b.row_stride != 1 && p.b.col_stride != 1)) return false;
  const Scratch scratch(static_cast<std::size_t>((p.k + 1 + p.m) * Kernel<16>::kColumns) * sizeof(float));
  auto* const room = scratch.as<float>();
  if (isa == CpuIsa::avx512) detail::run_avx512([=] { Kernel<16>::run(p, room); });
  else detail::run_avx2([=] { Kernel<8>::run(p, room); });
  return true;
}

}  // namespace gradual::cpu
