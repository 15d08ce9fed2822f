// The innermost loops of every contraction, in Eigen's vectors (AVX-512, AVX2, SSE, NEON: whatever the build has).
#include <Eigen/Core>
#include <algorithm>
#include <cstring>

#include "gemm.h"

#ifdef __GNUC__
#pragma GCC diagnostic ignored "-Wignored-attributes"  // alignment of vector types given to templates: not lost
#endif

namespace gradual::cpu {
namespace {

using Eigen::internal::ploadu;
using Eigen::internal::pmadd;
using Eigen::internal::pset1;
using Eigen::internal::pstoreu;

template <class T> using Packet = typename Eigen::internal::packet_traits<T>::type;
template <class T> inline constexpr int kLanes = Eigen::internal::packet_traits<T>::size;
// Accumulators, two vectors of b and one of a stay in registers.
inline constexpr int kRegisterRows = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32 ? kTileRows : 4;

struct Strided {
  std::int64_t stride;
  std::int64_t operator()(std::int64_t k) const { return k * stride; }
};
struct Indexed {
  const std::int32_t* index;
  std::int64_t operator()(std::int64_t k) const { return index[k]; }
};

// R rows, V vectors of columns; rows from r0 and columns from c0 of the tile. Loops of fixed length unroll, so that
// the accumulators stay in registers.
template <class T, int R, int V, class Index> void block(const Tile<T>& t, const Index& at, int r0, int c0) {
  using P = Packet<T>;
  constexpr int kWidth = V * kLanes<T>;
  const int cols = std::min(kWidth, t.cols - c0);
  T edge[kWidth];
  P acc[R][V];
  const T* a[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    a[r] = t.a[r0 + r];
    const T* from = t.initial ? t.initial + (r0 + r) * t.initial_stride + c0 : nullptr;
    if (from && cols < kWidth) {
      std::fill(std::copy(from, from + cols, edge), edge + kWidth, T{0});
      from = edge;
    }
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) acc[r][v] = from ? ploadu<P>(from + v * kLanes<T>) : pset1<P>(T{0});
  }
  const T* b = t.b + c0;
  for (std::int64_t k = 0; k < t.k; ++k, b += t.b_stride) {
    const std::int64_t i = at(k);
    P bv[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) bv[v] = ploadu<P>(b + v * kLanes<T>);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const P av = pset1<P>(a[r][i]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) acc[r][v] = pmadd(av, bv[v], acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    T* to = t.c + (r0 + r) * t.ldc + c0;
    T* full = cols < kWidth ? edge : to;
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) pstoreu(full + v * kLanes<T>, acc[r][v]);
    if (cols < kWidth) std::copy(edge, edge + cols, to);
  }
}

template <class T, int V, class Index> void rows_of(const Tile<T>& t, const Index& at, int r0, int rows, int c0) {
  switch (rows) {
    case 1: return block<T, 1, V>(t, at, r0, c0);
    case 2: return block<T, 2, V>(t, at, r0, c0);
    case 3: return block<T, 3, V>(t, at, r0, c0);
    case 4: return block<T, 4, V>(t, at, r0, c0);
    default: break;
  }
  if constexpr (kRegisterRows == 8) {
    switch (rows) {
      case 5: return block<T, 5, V>(t, at, r0, c0);
      case 6: return block<T, 6, V>(t, at, r0, c0);
      case 7: return block<T, 7, V>(t, at, r0, c0);
      default: return block<T, 8, V>(t, at, r0, c0);
    }
  }
}

template <class T, class Index> void all_of(const Tile<T>& t, const Index& at) {
  for (int c0 = 0; c0 < t.cols; c0 += 2 * kLanes<T>) {
    for (int r0 = 0; r0 < t.rows; r0 += kRegisterRows) {
      const int rows = std::min(kRegisterRows, t.rows - r0);
      if (t.cols - c0 <= kLanes<T>) rows_of<T, 1>(t, at, r0, rows, c0);
      else rows_of<T, 2>(t, at, r0, rows, c0);
    }
  }
}

// b with unit row stride (a transposed operand): square blocks, transposed in registers; zeros past cols.
template <class T> void pack_transposed(const T* b, std::int64_t stride, std::int64_t k, int cols, T* out) {
  constexpr int L = kLanes<T>;
  constexpr int kCols = kTileCols<T>;
  for (int j = 0; j < kCols; j += L) {
    const int here = std::clamp(cols - j, 0, L);
    const T* from = b + j * stride;
    std::int64_t i = 0;
    for (; i + L <= k; i += L) {
      Eigen::internal::PacketBlock<Packet<T>, L> square;
      for (int r = 0; r < L; ++r)
        square.packet[r] = r < here ? ploadu<Packet<T>>(from + r * stride + i) : pset1<Packet<T>>(T{0});
      Eigen::internal::ptranspose(square);
      for (int r = 0; r < L; ++r) pstoreu(out + (i + r) * kCols + j, square.packet[r]);
    }
    for (; i < k; ++i)
      for (int r = 0; r < L; ++r) out[i * kCols + j + r] = r < here ? from[r * stride + i] : T{0};
  }
}

}  // namespace

template <class T> void gemm_tile(const Tile<T>& tile) {
  if (tile.index) all_of(tile, Indexed{tile.index});
  else all_of(tile, Strided{tile.a_stride});
}

template <class T> void pack_columns(const MatrixRef<T>& b, std::int64_t k, int cols, T* out) {
  constexpr int kCols = kTileCols<T>;
  if (b.row_stride == 1 && b.col_stride != 1) return pack_transposed(b.data, b.col_stride, k, cols, out);
  for (std::int64_t i = 0; i < k; ++i, out += kCols) {
    const T* from = b.data + i * b.row_stride;
    if (b.col_stride == 1 && cols == kCols) {
      std::memcpy(out, from, sizeof(T) * kCols);
    } else {
      for (int j = 0; j < cols; ++j) out[j] = from[j * b.col_stride];
      std::fill(out + cols, out + kCols, T{0});
    }
  }
}

template void gemm_tile(const Tile<float>&);
template void gemm_tile(const Tile<double>&);
template void pack_columns(const MatrixRef<float>&, std::int64_t, int, float*);
template void pack_columns(const MatrixRef<double>&, std::int64_t, int, double*);

}  // namespace gradual::cpu
