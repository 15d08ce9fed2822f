#include "f32_gemm.h"

#include <algorithm>
#include <type_traits>

#include "../../kernels/formulas.h"
#include "../../support/error.h"
#include "../../support/multiversion.h"
#include "../../tensor/memory.h"
#include "f32_tile.h"

#if defined(__x86_64__) && !defined(__clang__)

namespace gradual::cpu {
namespace {

// a small product: multiplications, k, at most
inline constexpr std::int64_t kSmall = 1 << 19;
inline constexpr std::int64_t kDepth = 1024;
inline constexpr std::int64_t kSide = 8;  // rows and columns, at least

// Block sizes of larger products (Goto and van de Geijn 2008): a block of b stays in the last-level cache, a block of a
// (kBlockRows) in the L2 cache.
inline constexpr std::int64_t kBlockColumns = 2048;
// Columns for which a block of a is packed, at least: at any strides, and if its lines crowd().
inline constexpr std::int64_t kWorthPacking = 1024;
inline constexpr std::int64_t kWorthSpreading = 128;

// True if lines of a block of a crowd into few sets of an L2 cache: more than 6 of them into one. Its sets repeat every
// 64 KiB (512 KiB in 8 ways, 1 MiB in 16), so this is so if the lines lie a multiple of a large power of two apart.
bool crowds(const MatrixRef<float>& a, std::int64_t m, std::int64_t k) {
  constexpr std::int64_t kPeriod = 64 << 10;
  constexpr std::int64_t kWays = 6;
  const bool by_columns = a.row_stride == 1;
  const std::int64_t apart = static_cast<std::int64_t>(sizeof(float)) * (by_columns ? a.col_stride : a.row_stride);
  const std::int64_t power = std::min(apart & -apart, kPeriod);
  return (by_columns ? k : m) * power > kWays * kPeriod;
}

bool is_small(std::int64_t m, std::int64_t n, std::int64_t k) { return k <= kDepth && m * n * k <= kSmall; }

// Transposes 16 columns of k adjacent elements each, `stride` apart, to rows that are `across` apart. Four elements of
// each column are loaded as quarters of vectors and transposed there. Missing columns repeat the last one.
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
      const __m512d a = _mm512_castps_pd(pairs[i / 2]);
      const __m512d b = _mm512_castps_pd(pairs[i / 2 + 2]);
      const __m512d row = i % 2 ? _mm512_unpackhi_pd(a, b) : _mm512_unpacklo_pd(a, b);
      _mm512_storeu_ps(to + (p + i) * across, _mm512_castpd_ps(row));
    }
  }
  for (; p < k; ++p)
    for (int j = 0; j < 16; ++j) to[p * across + j] = column[j][p];
}

// A tile of c has Isa::kRows rows of two vectors.
template <class Isa> struct Kernel {
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kColumns = 2 * kLanes;

  // c = start + a b for the first `columns` columns of c, at most kColumns; b is a strip. If there are fewer than
  // kColumns, they are computed in `edge` and copied.
  template <class Matrix>
  static void columns_of(const F32Product& p, const Matrix& a, const Panel& b, std::int64_t columns, const Panel& start,
                         float* edge) {
    if (columns == kColumns) return strip<Isa, 2>(p.m, p.k, a, b, start, p.c, p.across);
    const Panel from = start.step == 0 ? start : Panel{edge, kColumns};
    for (std::int64_t i = 0; start.step && i < p.m; ++i)
      std::copy_n(start.data + i * start.step, columns, edge + i * kColumns);
    if (columns > kLanes) strip<Isa, 2>(p.m, p.k, a, b, from, edge, kColumns);
    else strip<Isa, 1>(p.m, p.k, a, b, from, edge, kColumns);
    for (std::int64_t i = 0; i < p.m; ++i) std::copy_n(edge + i * kColumns, columns, p.c + i * p.across);
  }

  // `room` has space for the bias of a strip, a strip of b and a strip of c.
  static void small(const F32Product& p, float* room) {
    float* const bias = room;
    float* const panel = bias + kColumns;
    float* const edge = panel + p.k * kColumns;
    F32Product part = p;
    for (std::int64_t j = 0; j < p.n; j += kColumns, part.c += kColumns) {
      const std::int64_t columns = std::min<std::int64_t>(kColumns, p.n - j);
      std::fill_n(bias, kColumns, 0.0F);
      if (p.bias) std::copy_n(p.bias + j, columns, bias);
      const MatrixRef<float> from{p.b.data + j * p.b.col_stride, p.b.row_stride, p.b.col_stride};
      const bool packs = columns < kColumns || from.col_stride != 1;
      if (packs && kLanes == 16 && from.row_stride == 1)
        for (std::int64_t i = 0; i < columns; i += 16)
          turn16(from.data + i * from.col_stride, from.col_stride, columns - i, p.k, panel + i, kColumns);
      else if (packs) pack_columns<Isa>(from, p.k, columns, panel);
      columns_of(part, Strided{p.a}, packs ? Panel{panel, kColumns} : Panel{from.data, from.row_stride}, columns,
                 {bias, 0}, edge);
    }
  }

  // The scratch memory of a large product, in floats: the bias of a strip, a strip of c with too few columns for a
  // tile, packed blocks of a and b.
  static std::int64_t room_of(std::int64_t n, std::int64_t k) {
    const std::int64_t columns = (std::min(n, kBlockColumns) + kColumns - 1) / kColumns * kColumns;
    return (1 + kBlockRows) * kColumns + std::min(k, kBlockDepth) * (kBlockRows + columns) + kBeyond;
  }

  // A block of c, at most kBlockRows x kBlockColumns: c = a b + bias if it `begins`, else c += a b.
  template <class Matrix>
  static void block(F32Product p, const Matrix& a, const float* b, bool begins, float* edge, float* bias) {
    for (std::int64_t j = 0; j < p.n; j += kColumns, p.c += kColumns) {
      const std::int64_t columns = std::min<std::int64_t>(kColumns, p.n - j);
      if (begins) std::fill_n(bias, kColumns, 0.0F);
      if (begins && p.bias) std::copy_n(p.bias + j, columns, bias);
      columns_of(p, a, {b + j * p.k, kColumns}, columns, begins ? Panel{bias, 0} : Panel{p.c, p.across}, edge);
    }
  }

  // A block of b, from row q and column j, as strips; part has its sizes.
  template <class In>
  static void pack_strips(const MatrixRef<In>& b, std::int64_t q, std::int64_t j, const F32Product& part, float* to) {
    for (std::int64_t i = 0; i < part.n; i += kColumns) {
      const In* const from = b.data + q * b.row_stride + (j + i) * b.col_stride;
      pack_columns<Isa>(MatrixRef<In>{from, b.row_stride, b.col_stride}, part.k,
                        std::min<std::int64_t>(kColumns, part.n - i), to + i * part.k);
    }
  }

  template <class In> static void large(const FastProduct<In, float>& p, float* room) {
    constexpr bool kInPlace = std::is_same_v<In, float>;  // tile() can read a where it lies
    float* const bias = room;
    float* const edge = bias + kColumns;
    float* const own_a = edge + kBlockRows * kColumns;
    float* const own_b = own_a + kBlockRows * std::min(p.k, kBlockDepth) + kBeyond;
    std::fill_n(edge, kBlockRows * kColumns, 0.0F);
    F32Product part{p.m, p.n, p.k, {}, {}, nullptr, p.c, p.across};
    for (std::int64_t j = 0; j < p.n; j += kBlockColumns)
      for (std::int64_t q = 0; q < p.k; q += kBlockDepth) {
        part.n = std::min(kBlockColumns, p.n - j);
        part.k = std::min(kBlockDepth, p.k - q);
        part.bias = p.bias ? p.bias + j : nullptr;
        pack_strips(p.b, q, j, part, own_b);
        for (std::int64_t i = 0; i < p.m; i += kBlockRows) {
          part.m = std::min(kBlockRows, p.m - i);
          part.c = p.c + i * p.across + j;
          const MatrixRef<In> a{p.a.data + i * p.a.row_stride + q * p.a.col_stride, p.a.row_stride, p.a.col_stride};
          if constexpr (kInPlace)
            if (part.n < kWorthPacking && (part.n < kWorthSpreading || !crowds(a, part.m, part.k))) {
              block(part, Strided{a}, own_b, q == 0, edge, bias);
              continue;
            }
          pack_rows<Isa>(a, part.m, part.k, own_a);
          block(part, PackedRows{own_a, part.k}, own_b, q == 0, edge, bias);
        }
      }
  }

  template <class In> static void run(const FastProduct<In, float>& p, float* room) {
    if constexpr (std::is_same_v<In, float>)
      if (is_small(p.m, p.n, p.k)) {
        small(p, room);
        return relu(p);
      }
    if constexpr (std::is_same_v<Isa, Avx2>) large(p, room);
    else throw_error("internal: large products with AVX-512 are oneDNN's");
    relu(p);
  }

 private:
  template <class In> static void relu(const FastProduct<In, float>& p) {
    for (std::int64_t i = 0; p.relu && i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j) p.c[i * p.across + j] = math::relu(p.c[i * p.across + j]);
  }
};

}  // namespace

bool suits_f32_product(std::int64_t m, std::int64_t n, std::int64_t k) {
  const CpuIsa isa = cpu_isa();  // with AVX-512 large ones go to oneDNN: it reaches 90% of the peak
  return m >= kSide && n >= kSide && k > 0 && isa >= CpuIsa::avx2 && (isa == CpuIsa::avx2 || is_small(m, n, k));
}

void f32_product(const F32Product& p) {
  static_assert(kBlockRows % Avx2::kRows == 0 && kBlockColumns % Kernel<Avx2>::kColumns == 0);
  const std::int64_t room = is_small(p.m, p.n, p.k) ? (p.k + 1 + std::max(p.m, p.n)) * Kernel<Avx512>::kColumns
                                                    : Kernel<Avx2>::room_of(p.n, p.k);
  const Scratch scratch(static_cast<std::size_t>(room) * sizeof(float));
  auto* const own = scratch.as<float>();
  if (cpu_isa() >= CpuIsa::avx512) detail::run_avx512([=] { Kernel<Avx512>::run(p, own); });
  else detail::run_avx2([=] { Kernel<Avx2>::run(p, own); });
}

bool reads_for_f32_product(DType dtype) {
  return (dtype == DType::bf16 || dtype == DType::f16) && cpu_isa() == CpuIsa::avx2;
}

template <class In> void f32_product_of(const FastProduct<In, float>& p) {
  const Scratch scratch(static_cast<std::size_t>(Kernel<Avx2>::room_of(p.n, p.k)) * sizeof(float));
  auto* const own = scratch.as<float>();
  detail::run_avx2([=] { Kernel<Avx2>::run(p, own); });
}
template void f32_product_of(const FastProduct<BFloat16, float>& p);
template void f32_product_of(const FastProduct<Half, float>& p);

bool f32_in_order(const Gemm<float>& g) {
  if (cpu_isa() < CpuIsa::avx2) return false;
  const F32Product p{g.m, g.n, g.k, g.a, g.b, nullptr, g.c, g.ldc};
  const std::int64_t room = (p.k + 1 + p.m) * Kernel<Avx512>::kColumns;  // a bias, and strips of b and c
  const Scratch scratch(static_cast<std::size_t>(room) * sizeof(float));
  auto* const own = scratch.as<float>();
  if (cpu_isa() >= CpuIsa::avx512) detail::run_avx512([=] { Kernel<Avx512>::small(p, own); });
  else detail::run_avx2([=] { Kernel<Avx2>::small(p, own); });
  return true;
}

}  // namespace gradual::cpu

#else

namespace gradual::cpu {

bool suits_f32_product(std::int64_t, std::int64_t, std::int64_t) { return false; }
bool reads_for_f32_product(DType) { return false; }
void f32_product(const F32Product&) { throw_error("internal: this build has no kernel for f32_product"); }
template <class In> void f32_product_of(const FastProduct<In, float>&) { f32_product({}); }
template void f32_product_of(const FastProduct<BFloat16, float>& p);
template void f32_product_of(const FastProduct<Half, float>& p);
bool f32_in_order(const Gemm<float>&) { return false; }

}  // namespace gradual::cpu

#endif
