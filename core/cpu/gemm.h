// Matrix products in f32 and f64, the ground of matmul, linear and convolutions.
//
// One property carries everything: element (i, j) of a product is the chain acc = fma(a[i,k], b[k,j], acc) over k in
// rising order, from the initial value (0 where there is none). Tiles, panels and threads cut rows and columns only,
// so the bits depend on the operands alone. (A build without FMA instructions rounds product and sum: the same chain,
// other bits.)
#pragma once

#include <cstdint>

#include "../parallel.h"

namespace gradual::cpu {

// A matrix anywhere in memory: element (i, j) is data[i * row_stride + j * col_stride].
template <class T> struct MatrixRef {
  const T* data;
  std::int64_t row_stride, col_stride;
};

// c [m, n] (rows ldc apart) = initial + a [m, k] b [k, n]. Row i of initial is at initial + i * initial_stride (a
// stride of 0 repeats one row, as a bias is); null: zeros; c itself with ldc: accumulates. k may be 0.
template <class T> struct Gemm {
  std::int64_t m, n, k;
  MatrixRef<T> a, b;
  T* c;
  std::int64_t ldc;
  const T* initial = nullptr;
  std::int64_t initial_stride = 0;
};

template <class T> void gemm(const Gemm<T>& g);         // panels on threads
template <class T> void gemm_serial(const Gemm<T>& g);  // on the calling thread

// --- the tile: what convolutions build their own loops from ------------------------------------------------------

inline constexpr int kTileRows = 8;
template <class T> inline constexpr int kTileCols = 128 / static_cast<int>(sizeof(T));
inline constexpr std::int64_t kTileDepth = 256;  // of k in one go: a packed tile of b is 32 KiB then

// At most kTileRows x kTileCols elements of c. Step k takes a[r][index ? index[k] : k * a_stride] and row k of b,
// kTileCols elements (fewer are read where cols is smaller, in whole vectors).
template <class T> struct Tile {
  int rows, cols;
  std::int64_t k;
  const T* a[kTileRows];
  std::int64_t a_stride;
  const std::int32_t* index;
  const T* b;
  std::int64_t b_stride;
  const T* initial;
  std::int64_t initial_stride;
  T* c;
  std::int64_t ldc;
};
template <class T> void gemm_tile(const Tile<T>& tile);

// Rows [0, k) and columns [0, cols) of b into out [k, kTileCols], zeros in the columns past cols.
template <class T> void pack_columns(const MatrixRef<T>& b, std::int64_t k, int cols, T* out);

// f(0) .. f(count - 1) on threads, where there are enough multiplications altogether to be worth it.
inline constexpr std::int64_t kWorthThreads = 1 << 19;
template <class F> void for_tasks(std::int64_t count, std::int64_t multiplications, const F& f) {
  if (count <= 0) return;
  parallel_for(count, multiplications < kWorthThreads ? count : 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) f(i);
  });
}

// Cuts n into equal parts of at most `most`: the size of each (the last may be smaller).
inline std::int64_t even_part(std::int64_t n, std::int64_t most) {
  const std::int64_t parts = (n + most - 1) / most;
  return parts > 1 ? (n + parts - 1) / parts : n;
}

}  // namespace gradual::cpu
