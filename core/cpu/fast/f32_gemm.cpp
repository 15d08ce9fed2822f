#include "f32_gemm.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "../../formats/accumulator.h"
#include "../../kernels/contraction_operand.h"
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
inline constexpr std::int64_t kWorthPacking = 32;  // columns from which rows of a are worth a copy in the tiles' order

// 16 columns, each of k numbers side by side in memory and `stride` from the next, as rows `across` apart: four rows at a time
// are read as quarters of vectors and change places inside them. Columns past the last one are read as that one again.
// kLast: they are not written, and with relu nothing below 0 is.
template <bool kLast>
[[gnu::target("avx512f")]] inline void turn16(const float* from, std::int64_t stride, std::int64_t columns,
                                              std::int64_t k, float* __restrict to, std::int64_t across,
                                              bool relu = false) {
  const int some = kLast ? static_cast<int>(std::min<std::int64_t>(columns, 16)) : 16;
  const auto mask = static_cast<__mmask16>((1U << some) - 1);
  const __m512 least = _mm512_set1_ps(relu ? 0 : -std::numeric_limits<float>::infinity());
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
      float* const at = to + (p + i) * across;
      if constexpr (kLast) _mm512_mask_storeu_ps(at, mask, _mm512_max_ps(least, _mm512_castpd_ps(row)));  // NaN stays
      else _mm512_storeu_ps(at, _mm512_castpd_ps(row));
    }
  }
  for (; p < k; ++p)
    for (int j = 0; j < some; ++j) to[p * across + j] = relu ? math::relu(column[j][p]) : column[j][p];
}

// A tile of c has kRows rows of two vectors, or six rows of four.
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
  // kPacked: a and b are as pack_rows and pack_columns leave them, and addresses are known at compile time.
  template <int kR, int kV, bool kNext, bool kPacked = false>
  static void tile(std::int64_t k, const MatrixRef<float>& a, const Rows& b, const Rows& start, float* c,
                   std::int64_t across) {
    constexpr int kGroup = kNext ? kR : 3, kGroups = (kR + kGroup - 1) / kGroup;
    const std::int64_t row = kNext ? 1 : a.row_stride;
    const std::int64_t col = kPacked ? kRows : a.col_stride, step = kPacked ? kColumns : b.step;
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
      for (int g = 0; g < kGroups; ++g) at[g] += col;
      from_b += step;
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
    constexpr int kMost = kV > 2 ? 6 : kRows;
    for (std::int64_t i = 0, tiles = (m + kMost - 1) / kMost; tiles > 0; --tiles) {
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
      }(std::make_integer_sequence<int, kMost>());
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
        turn16<false>(from.data + j * from.col_stride, from.col_stride, columns - j, p.k, panel + j, kColumns);
    else if (packs) pack_columns<Isa>(from, p.k, columns, panel);
    float* const c = columns == kColumns ? p.c + column : own;
    if (columns > kLanes) strip<2>(p.m, p.k, p.a, b, {start, 0}, c, columns == kColumns ? p.across : kColumns);
    else strip<1>(p.m, p.k, p.a, b, {start, 0}, own, kColumns);
    for (std::int64_t i = 0; i < p.m && c == own; ++i)
      std::copy_n(own + i * kColumns, columns, p.c + i * p.across + column);
  }

  // As many columns as a wide tile has, of a small product whose b has rows without gaps inside.
  static void wide(const F32Product& p, std::int64_t column, float* start) {
    constexpr int kWide = Isa::kWide * kLanes;
    std::fill_n(start, kWide, 0.0F);
    strip<Isa::kWide>(p.m, p.k, p.a, {p.b.data + column, p.b.row_stride}, {p.bias ? p.bias + column : start, 0},
                      p.c + column, p.across);
  }

  // A small product as c^T = b^T a^T, whose rows of b^T lie where they are read: a's rows are put in order instead of b's columns,
  // and c is turned when it is written.
  static void turned(const F32Product& p, float* room) {
    float *const panel = room, *const own = room + p.k * kColumns;
    const MatrixRef<float> b{p.b.data, p.b.col_stride, p.b.row_stride};
    for (std::int64_t row = 0; row < p.m; row += kColumns) {
      const std::int64_t rows = std::min<std::int64_t>(kColumns, p.m - row);
      for (std::int64_t j = 0; j < rows; j += 16)
        turn16<false>(p.a.data + (row + j) * p.a.row_stride, p.a.row_stride, rows - j, p.k, panel + j, kColumns);
      for (std::int64_t i = 0; i < p.n; ++i) std::fill_n(own + i * kColumns, kColumns, p.bias ? p.bias[i] : 0.0F);
      if (rows > kLanes) strip<2>(p.n, p.k, b, {panel, kColumns}, {own, kColumns}, own, kColumns);
      else strip<1>(p.n, p.k, b, {panel, kColumns}, {own, kColumns}, own, kColumns);
      for (std::int64_t i = 0; i < p.n; i += 16)
        turn16<true>(own + i * kColumns, kColumns, p.n - i, rows, p.c + row * p.across + i, p.across, p.relu);
    }
  }
  // Whether that is less work: to put a number in order takes as long as about five multiplications.
  static bool wants_turning(const F32Product& p) {
    if (p.b.row_stride != 1 || p.b.col_stride == 1 || p.a.col_stride != 1) return false;
    const auto wide = [](std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; };
    return wide(p.m) * p.k * (p.n + 5) + p.m * p.n * 5 < wide(p.n) * p.k * (p.m + 5);
  }

  static void small(const F32Product& p, float* room) {
    if constexpr (kLanes == 16)
      if (wants_turning(p)) return turned(p, room);
    constexpr int kWide = Isa::kWide * kLanes;  // columns of a tile that reads b where it lies
    std::int64_t column = 0;
    for (; kWide > kColumns && p.b.col_stride == 1 && column + kWide <= p.n; column += kWide) wide(p, column, room);
    for (; column < p.n; column += kColumns)
      columns_of(p, column, std::min<std::int64_t>(kColumns, p.n - column), room);
    for (std::int64_t i = 0; p.relu && i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j) p.c[i * p.across + j] = math::relu(p.c[i * p.across + j]);
  }

  // kRows rows of a next to each other at each of k places; zeros where they are fewer. May write 2 numbers beyond.
  static void pack_rows(const MatrixRef<float>& a, std::int64_t rows, std::int64_t k, float* __restrict to) {
    const std::int64_t row = a.row_stride, col = a.col_stride;
    const std::int64_t squares = col == 1 && rows == kRows ? k / 8 * 8 : 0;
    for (std::int64_t p = 0; p < squares; p += 8) transpose<kRows>(a.data + p, row, to + p * kRows, kRows);
    for (std::int64_t p = squares; p < k; ++p)
      for (std::int64_t i = 0; i < kRows; ++i) to[p * kRows + i] = i < rows ? a.data[i * row + p * col] : 0;
  }

  // Where a large product keeps blocks of a and b, a tile and the bias of a strip.
  struct Room {
    std::int64_t b, edge, bias, all;
    explicit Room(const F32Product& p) {
      const std::int64_t depth = std::min(p.k, kBlockDepth), columns = std::min(p.n, kBlockColumns);
      b = (depth * kBlockRows + 2 + 15) / 16 * 16;
      edge = b + depth * ((columns + kColumns - 1) / kColumns * kColumns);
      bias = edge + kRows * kColumns, all = bias + kColumns;
    }
  };

  // A block of c, at most kBlockRows and kBlockColumns, begun or gone on with: c += a b, or a b + bias.
  static void block(const F32Product& p, const MatrixRef<float>& a, bool packed, const float* b, bool begins,
                    float* edge, float* bias) {
    for (std::int64_t j = 0; j < p.n; j += kColumns) {
      const std::int64_t columns = std::min<std::int64_t>(kColumns, p.n - j);
      if (begins) std::fill_n(bias, kColumns, 0.0F);
      if (begins && p.bias) std::copy_n(p.bias + j, columns, bias);
      const Rows strip_of_b{b + j * p.k, kColumns};
      const std::int64_t whole = columns == kColumns ? p.m / kRows * kRows : 0;
      if (!packed && columns == kColumns) {
        const Rows from = begins ? Rows{bias, 0} : Rows{p.c + j, p.across};
        strip<2>(p.m, p.k, a, strip_of_b, from, p.c + j, p.across);
        continue;
      }
      for (std::int64_t i = 0; i < p.m; i += kRows) {
        const MatrixRef<float> rows{a.data + i * (packed ? p.k : a.row_stride), packed ? 1 : a.row_stride,
                                    packed ? kRows : a.col_stride};
        float* const c = p.c + i * p.across + j;
        if (i < whole) {
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) __builtin_prefetch(c + (kRows + r) * p.across, 1);  // the next tile's
          const Rows from = begins ? Rows{bias, 0} : Rows{c, p.across};
          tile<kRows, 2, true, true>(p.k, rows, strip_of_b, from, c, p.across);
          continue;
        }
        const std::int64_t high = std::min<std::int64_t>(kRows, p.m - i);
        for (std::int64_t r = 0; r < high; ++r)
          std::copy_n(begins ? bias : c + r * p.across, columns, edge + r * kColumns);
        const Rows from{edge, kColumns};
        if (packed && columns > kLanes) tile<kRows, 2, true, true>(p.k, rows, strip_of_b, from, edge, kColumns);
        else if (packed) tile<kRows, 1, true, true>(p.k, rows, strip_of_b, from, edge, kColumns);
        else if (columns > kLanes) strip<2>(high, p.k, rows, strip_of_b, from, edge, kColumns);
        else strip<1>(high, p.k, rows, strip_of_b, from, edge, kColumns);
        for (std::int64_t r = 0; r < high; ++r) std::copy_n(edge + r * kColumns, columns, c + r * p.across);
      }
    }
  }

  static void large(const F32Product& p, float* room) {
    const Room at_room(p);
    float *const own_a = room, *const own_b = room + at_room.b, *const edge = room + at_room.edge;
    std::fill_n(edge, kRows * kColumns, 0.0F);
    const bool packed = p.n >= kWorthPacking;
    F32Product part = p;
    for (std::int64_t j = 0; j < p.n; j += kBlockColumns)
      for (std::int64_t q = 0; q < p.k; q += kBlockDepth) {
        part.n = std::min(kBlockColumns, p.n - j), part.k = std::min(kBlockDepth, p.k - q);
        part.bias = p.bias ? p.bias + j : nullptr;
        for (std::int64_t at = 0; at < part.n; at += kColumns)
          pack_columns<Isa>({p.b.data + q * p.b.row_stride + (j + at) * p.b.col_stride, p.b.row_stride, p.b.col_stride},
                            part.k, std::min<std::int64_t>(kColumns, part.n - at), own_b + at * part.k);
        for (std::int64_t i = 0; i < p.m; i += kBlockRows) {
          part.m = std::min(kBlockRows, p.m - i);
          part.c = p.c + i * p.across + j;
          MatrixRef<float> a{p.a.data + i * p.a.row_stride + q * p.a.col_stride, p.a.row_stride, p.a.col_stride};
          for (std::int64_t r = 0; packed && r < part.m; r += kRows)
            pack_rows({a.data + r * a.row_stride, a.row_stride, a.col_stride},
                      std::min<std::int64_t>(kRows, part.m - r), part.k, own_a + r * part.k);
          if (packed) a.data = own_a;
          block(part, a, packed, own_b, q == 0, edge, room + at_room.bias);
        }
      }
  }
};

bool is_small(std::int64_t m, std::int64_t n, std::int64_t k) { return k <= kDepth && m * n * k <= kSmall; }

}  // namespace

bool suits_f32_product(std::int64_t m, std::int64_t n, std::int64_t k) {
  const CpuIsa isa = cpu_isa();  // with AVX-512 large ones are oneDNN's: it reaches nine tenths of the peak there
  return m >= kSide && n >= kSide && k > 0 && isa >= CpuIsa::avx2 && (isa == CpuIsa::avx2 || is_small(m, n, k));
}

void f32_product(const F32Product& p) {
  static_assert(kBlockRows % Kernel<Avx2>::kRows == 0 && kBlockColumns % Kernel<Avx2>::kColumns == 0);
  const bool small = is_small(p.m, p.n, p.k);
  if (p.relu && !small) throw_error("internal: relu is a small product's alone");
  const std::int64_t room =
      small ? (p.k + 1 + std::max(p.m, p.n)) * Kernel<Avx512>::kColumns : Kernel<Avx2>::Room(p).all;
  const Scratch scratch(static_cast<std::size_t>(room) * sizeof(float));
  auto* const own = scratch.as<float>();
  if (!small) detail::run_avx2([=] { Kernel<Avx2>::large(p, own); });
  else if (cpu_isa() >= CpuIsa::avx512) detail::run_avx512([=] { Kernel<Avx512>::small(p, own); });
  else detail::run_avx2([=] { Kernel<Avx2>::small(p, own); });
}

bool small_f32_product(const OpCall& call, const Tensor& y, bool linear, bool relu) {
  const Tensor &a = call[0], &b = call[1];
  const auto is_matrix = [](const Tensor& t) {
    return t.dtype() == DType::f32 && t.dim() == 2 && (t.strides()[0] == 1 || t.strides()[1] == 1);
  };
  if (!is_matrix(a) || !is_matrix(b) || y.dtype() != DType::f32) return false;
  const Tensor* const bias = linear && call[2].defined() ? &call[2] : nullptr;
  if (bias && (bias->dtype() != DType::f32 || !bias->is_contiguous())) return false;
  const std::int64_t m = a.sizes()[0], k = a.sizes()[1], n = b.sizes()[linear ? 0 : 1];
  if (!is_small(m, n, k) || !suits_f32_product(m, n, k)) return false;
  if (current_accumulator() || rounds_to_tf32(DType::f32)) return false;
  const auto floats = [](const Tensor& t) { return static_cast<float*>(t.raw()); };
  f32_product({m,
               n,
               k,
               {floats(a), a.strides()[0], a.strides()[1]},
               {floats(b), b.strides()[linear ? 1 : 0], b.strides()[linear ? 0 : 1]},
               bias ? floats(*bias) : nullptr,
               floats(y),
               n,
               relu});
  return true;
}

}  // namespace gradual::cpu

#else

namespace gradual::cpu {

bool suits_f32_product(std::int64_t, std::int64_t, std::int64_t) { return false; }
bool small_f32_product(const OpCall&, const Tensor&, bool, bool) { return false; }
void f32_product(const F32Product&) { throw_error("internal: this build has no kernel for f32_product"); }

}  // namespace gradual::cpu

#endif
