#include "f32_gemm.h"

#include <algorithm>
#include <utility>

#include "../../kernels/formulas.h"
#include "../../support/error.h"
#include "../../support/multiversion.h"
#include "../../tensor/memory.h"
#include "f32_tile.h"

#if defined(__x86_64__) && !defined(__clang__)

namespace gradual::cpu {
namespace {

inline constexpr std::int64_t kSmall = 1 << 19, kDepth = 1024;  // multiplications, and of a sum, at most
inline constexpr std::int64_t kSide = 8;                        // rows and columns, at least

// Of larger products (Goto and van de Geijn 2008): as much of b as stays in the last cache, and of a in the second. Rows are a
// multiple of a tile's.
inline constexpr std::int64_t kBlockRows = 96, kBlockColumns = 2048;

bool is_small(std::int64_t m, std::int64_t n, std::int64_t k) { return k <= kDepth && m * n * k <= kSmall; }

// 16 columns, each of k numbers side by side in memory and `stride` from the next, as rows `across` apart: four rows at a time
// are read as quarters of vectors and change places inside them. Columns past the last one are read as that one again.
[[gnu::target("avx512f")]] inline void turn16(const float* from, std::int64_t stride, std::int64_t columns,
                                              std::int64_t k, float* __restrict to, std::int64_t across) {
  const float* column[16];
  for (std::int64_t j = 0; j < 16; ++j) column[j] = from + std::min(j, columns - 1) * stride;
  std::int64_t p = 0;
  for (; p + 4 <= k; p += 4) {
    __m512 rows[4], pairs[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      rows[i] = _mm512_castps128_ps512(_mm_loadu_ps(column[i] + p));
      rows[i] = _mm512_insertf32x4(rows[i], _mm_loadu_ps(column[4 + i] + p), 1);
      rows[i] = _mm512_insertf32x4(rows[i], _mm_loadu_ps(column[8 + i] + p), 2);
      rows[i] = _mm512_insertf32x4(rows[i], _mm_loadu_ps(column[12 + i] + p), 3);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 4; i += 2) {
      pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512d a = _mm512_castps_pd(pairs[i / 2]), b = _mm512_castps_pd(pairs[i / 2 + 2]);
      const __m512d row = i % 2 ? _mm512_unpackhi_pd(a, b) : _mm512_unpacklo_pd(a, b);
      _mm512_storeu_ps(to + (p + i) * across, _mm512_castpd_ps(row));
    }
  }
  for (; p < k; ++p)
    for (int j = 0; j < 16; ++j) to[p * across + j] = column[j][p];
}

// A tile of c has kRows rows of two vectors.
template <class Isa> struct Kernel {
  using Vector = typename Isa::Vector;
  static constexpr int kLanes = Isa::kLanes, kRows = Isa::kRows, kColumns = 2 * kLanes;

  // Rows that begin `step` numbers apart; 0: one row for all.
  struct Rows {
    const float* data;
    std::int64_t step;
  };

  // kR rows and kV vectors of c that begin as the rows of `start`. kNext: rows of a are next to each other and have one
  // pointer. Else three have one, with 0, 1 and 2 times the distance of rows, which addresses take as they are: with a
  // number each, most would lie in memory.
  template <int kR, int kV, bool kNext>
  static void tile(std::int64_t k, const MatrixRef<float>& a, const Rows& b, const Rows& start, float* c,
                   std::int64_t across) {
    constexpr int kGroup = kNext ? kR : 3, kGroups = (kR + kGroup - 1) / kGroup;
    const std::int64_t row = kNext ? 1 : a.row_stride;
    Vector sums[kR][kV];
#pragma GCC unroll 8
    for (int i = 0; i < kR; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) Isa::load(sums[i][v], start.data + i * start.step + v * kLanes);
    const float* at[kGroups];
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) at[g] = a.data + g * kGroup * row;
    const float* from_b = b.data;
#pragma GCC unroll 4
    for (std::int64_t p = 0; p < k; ++p) {
      Vector x, y[kV];
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) Isa::load(y[v], from_b + v * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kR; ++i) {
        Isa::repeat(x, at[i / kGroup] + i % kGroup * row);
#pragma GCC unroll 4
        for (int v = 0; v < kV; ++v) Isa::add_product(sums[i][v], x, y[v]);
      }
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g) at[g] += a.col_stride;
      from_b += b.step;
    }
#pragma GCC unroll 8
    for (int i = 0; i < kR; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) Isa::store(c + i * across + v * kLanes, sums[i][v]);
  }

  // All rows of kV vectors of columns, in tiles that are as even as can be: a narrow one would wait for its sums.
  template <int kV>
  static void strip(std::int64_t m, std::int64_t k, const MatrixRef<float>& a, const Rows& b, const Rows& start,
                    float* c, std::int64_t across) {
    for (std::int64_t i = 0, tiles = (m + kRows - 1) / kRows; tiles > 0; --tiles) {
      const std::int64_t rows = (m - i + tiles - 1) / tiles;
      const MatrixRef<float> part{a.data + i * a.row_stride, a.row_stride, a.col_stride};
      const Rows from{start.data + i * start.step, start.step};
      float* const to = c + i * across;
      [&]<int... kR>(std::integer_sequence<int, kR...>) {
        const auto run = [&]<int kHigh>() {
          if (a.row_stride == 1) tile<kHigh, kV, true>(k, part, b, from, to, across);
          else tile<kHigh, kV, false>(k, part, b, from, to, across);
          return true;
        };
        static_cast<void>(((rows == kR + 1 && run.template operator()<kR + 1>()) || ...));
      }(std::make_integer_sequence<int, kRows>());
      i += rows;
    }
  }

  // Of a small product, columns [column, column + columns) of c, at most kColumns. `room` holds b's columns, c's where they
  // are fewer, and the bias.
  static void columns_of(const F32Product& p, std::int64_t column, std::int64_t columns, float* room) {
    float *const panel = room, *const start = room + p.k * kColumns, *const own = start + kColumns;
    std::fill_n(start, kColumns, 0.0F);
    if (p.bias) std::copy_n(p.bias + column, columns, start);
    const MatrixRef<float> from{p.b.data + column * p.b.col_stride, p.b.row_stride, p.b.col_stride};
    const bool packs = columns < kColumns || from.col_stride != 1;
    const Rows b = packs ? Rows{panel, kColumns} : Rows{from.data, from.row_stride};
    if (packs && kLanes == 16 && from.row_stride == 1)
      for (std::int64_t j = 0; j < columns; j += 16)
        turn16(from.data + j * from.col_stride, from.col_stride, columns - j, p.k, panel + j, kColumns);
    else if (packs) pack_columns<Isa>(from, p.k, columns, panel);
    float* const c = columns == kColumns ? p.c + column : own;
    if (columns > kLanes) strip<2>(p.m, p.k, p.a, b, {start, 0}, c, columns == kColumns ? p.across : kColumns);
    else strip<1>(p.m, p.k, p.a, b, {start, 0}, own, kColumns);
    for (std::int64_t i = 0; i < p.m && c == own; ++i)
      std::copy_n(own + i * kColumns, columns, p.c + i * p.across + column);
  }

  static void small(const F32Product& p, float* room) {
    for (std::int64_t column = 0; column < p.n; column += kColumns)
      columns_of(p, column, std::min<std::int64_t>(kColumns, p.n - column), room);
  }

  // Where a large product keeps a block of b, the columns of a block of c that fill no tile, and the bias of a strip.
  struct Room {
    std::int64_t edge, bias, all;
    explicit Room(const F32Product& p) {
      const std::int64_t depth = std::min(p.k, kBlockDepth), columns = std::min(p.n, kBlockColumns);
      edge = depth * ((columns + kColumns - 1) / kColumns * kColumns);
      bias = edge + kBlockRows * kColumns, all = bias + kColumns;
    }
  };

  // A block of c, at most kBlockRows and kBlockColumns, begun or gone on with: c += a b, or a b + bias.
  static void block(const F32Product& p, const float* b, bool begins, float* edge, float* bias) {
    for (std::int64_t j = 0; j < p.n; j += kColumns) {
      const std::int64_t columns = std::min<std::int64_t>(kColumns, p.n - j);
      if (begins) std::fill_n(bias, kColumns, 0.0F);
      if (begins && p.bias) std::copy_n(p.bias + j, columns, bias);
      const Rows strip_of_b{b + j * p.k, kColumns}, start = begins ? Rows{bias, 0} : Rows{p.c + j, p.across};
      float* const c = p.c + j;
      if (columns == kColumns) {
        strip<2>(p.m, p.k, p.a, strip_of_b, start, c, p.across);
        continue;
      }
      for (std::int64_t r = 0; r < p.m; ++r) std::copy_n(start.data + r * start.step, columns, edge + r * kColumns);
      if (columns > kLanes) strip<2>(p.m, p.k, p.a, strip_of_b, {edge, kColumns}, edge, kColumns);
      else strip<1>(p.m, p.k, p.a, strip_of_b, {edge, kColumns}, edge, kColumns);
      for (std::int64_t r = 0; r < p.m; ++r) std::copy_n(edge + r * kColumns, columns, c + r * p.across);
    }
  }

  static void large(const F32Product& p, float* room) {
    const Room at(p);
    std::fill_n(room + at.edge, kBlockRows * kColumns, 0.0F);
    F32Product part = p;
    for (std::int64_t j = 0; j < p.n; j += kBlockColumns)
      for (std::int64_t q = 0; q < p.k; q += kBlockDepth) {
        part.n = std::min(kBlockColumns, p.n - j), part.k = std::min(kBlockDepth, p.k - q);
        part.bias = p.bias ? p.bias + j : nullptr;
        const float* const b = p.b.data + q * p.b.row_stride + j * p.b.col_stride;
        for (std::int64_t i = 0; i < part.n; i += kColumns)
          pack_columns<Isa>({b + i * p.b.col_stride, p.b.row_stride, p.b.col_stride}, part.k,
                            std::min<std::int64_t>(kColumns, part.n - i), room + i * part.k);
        for (std::int64_t i = 0; i < p.m; i += kBlockRows) {
          part.m = std::min(kBlockRows, p.m - i);
          part.a.data = p.a.data + i * p.a.row_stride + q * p.a.col_stride;
          part.c = p.c + i * p.across + j;
          block(part, room, q == 0, room + at.edge, room + at.bias);
        }
      }
  }

  static void run(const F32Product& p, float* room) {
    if (is_small(p.m, p.n, p.k)) small(p, room);
    else large(p, room);
    for (std::int64_t i = 0; p.relu && i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j) p.c[i * p.across + j] = math::relu(p.c[i * p.across + j]);
  }
};

}  // namespace

bool suits_f32_product(std::int64_t m, std::int64_t n, std::int64_t k) {
  const CpuIsa isa = cpu_isa();  // with AVX-512 large ones are oneDNN's: it reaches nine tenths of the peak there
  return m >= kSide && n >= kSide && k > 0 && isa >= CpuIsa::avx2 && (isa == CpuIsa::avx2 || is_small(m, n, k));
}

void f32_product(const F32Product& p) {
  static_assert(kBlockRows % Kernel<Avx2>::kRows == 0 && kBlockColumns % Kernel<Avx2>::kColumns == 0);
  const std::int64_t room =
      is_small(p.m, p.n, p.k) ? (p.k + 1 + std::max(p.m, p.n)) * Kernel<Avx512>::kColumns : Kernel<Avx2>::Room(p).all;
  const Scratch scratch(static_cast<std::size_t>(room) * sizeof(float));
  auto* const own = scratch.as<float>();
  if (cpu_isa() >= CpuIsa::avx512) detail::run_avx512([=] { Kernel<Avx512>::run(p, own); });
  else detail::run_avx2([=] { Kernel<Avx2>::run(p, own); });
}

}  // namespace gradual::cpu

#else

namespace gradual::cpu {

bool suits_f32_product(std::int64_t, std::int64_t, std::int64_t) { return false; }
void f32_product(const F32Product&) { throw_error("internal: this build has no kernel for f32_product"); }

}  // namespace gradual::cpu

#endif
