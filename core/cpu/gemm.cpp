#include "gemm.h"

#include <algorithm>

namespace gradual::cpu {
namespace {

inline constexpr std::int64_t kPanelRows = 128;
inline constexpr std::int64_t kPanelCols = 256;

// Columns [j, j + cols) of all rows, for the steps [k0, k0 + depth).
template <class T>
void column_tile(const Gemm<T>& g, std::int64_t k0, std::int64_t depth, std::int64_t j, int cols, T* packed) {
  Tile<T> t{};
  t.cols = cols;
  t.k = depth;
  t.a_stride = g.a.col_stride;
  t.b = g.b.data + k0 * g.b.row_stride + j * g.b.col_stride;
  t.b_stride = g.b.row_stride;
  if (g.m > kTileRows || g.b.col_stride != 1 || cols < kTileCols<T>) {  // else b is read once only, and as it lies
    pack_columns({t.b, g.b.row_stride, g.b.col_stride}, depth, cols, packed);
    t.b = packed;
    t.b_stride = kTileCols<T>;
  }
  t.ldc = g.ldc;
  const std::int64_t step = even_part(g.m, kTileRows);
  for (std::int64_t i = 0; i < g.m; i += step) {
    t.rows = static_cast<int>(std::min(step, g.m - i));
    for (int r = 0; r < t.rows; ++r) t.a[r] = g.a.data + (i + r) * g.a.row_stride + k0 * g.a.col_stride;
    t.c = g.c + i * g.ldc + j;
    t.initial = k0 ? t.c : g.initial ? g.initial + i * g.initial_stride + j : nullptr;
    t.initial_stride = k0 ? g.ldc : g.initial_stride;
    gemm_tile(t);
  }
}

}  // namespace

template <class T> void gemm_serial(const Gemm<T>& g) {
  alignas(64) T packed[kTileDepth * kTileCols<T>];
  const std::int64_t depth = even_part(g.k, kTileDepth);
  std::int64_t k0 = 0;
  do {  // once for k == 0, which stores the initial values
    const std::int64_t block = std::min(depth, g.k - k0);
    for (std::int64_t j = 0; j < g.n; j += kTileCols<T>)
      column_tile(g, k0, block, j, static_cast<int>(std::min<std::int64_t>(kTileCols<T>, g.n - j)), packed);
    k0 += depth;
  } while (k0 < g.k);
}

template <class T> void gemm(const Gemm<T>& g) {
  if (g.m <= 0 || g.n <= 0) return;
  const std::int64_t rows = even_part(g.m, kPanelRows);
  const std::int64_t cols = even_part(g.n, kPanelCols) + kTileCols<T> - 1;
  const std::int64_t tiles_wide = cols / kTileCols<T> * kTileCols<T>;
  const std::int64_t across = (g.n + tiles_wide - 1) / tiles_wide;
  const std::int64_t panels = (g.m + rows - 1) / rows * across;
  for_tasks(panels, g.m * g.n * g.k, [&](std::int64_t p) {
    const std::int64_t i = p / across * rows;
    const std::int64_t j = p % across * tiles_wide;
    Gemm<T> part = g;
    part.m = std::min(rows, g.m - i);
    part.n = std::min(tiles_wide, g.n - j);
    part.a.data += i * g.a.row_stride;
    part.b.data += j * g.b.col_stride;
    part.c += i * g.ldc + j;
    if (g.initial) part.initial += i * g.initial_stride + j;
    gemm_serial(part);
  });
}

template void gemm(const Gemm<float>&);
template void gemm(const Gemm<double>&);
template void gemm_serial(const Gemm<float>&);
template void gemm_serial(const Gemm<double>&);

}  // namespace gradual::cpu
