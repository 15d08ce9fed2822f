#include "gemm.h"

// Eigen's other way with small products sums in an order that depends on alignment, and without fma.
#define EIGEN_GEMM_TO_COEFFBASED_THRESHOLD 1
#include <Eigen/Core>
#include <optional>

#include "../memory.h"

namespace gradual::cpu {
namespace {

template <class T, int Order> using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Order>;
template <class T, int Order> auto map(const MatrixRef<T>& x, std::int64_t rows, std::int64_t cols) {
  const Eigen::OuterStride<> stride(Order == Eigen::RowMajor ? x.row_stride : x.col_stride);
  return Eigen::Map<const Matrix<T, Order>, Eigen::Unaligned, Eigen::OuterStride<>>(x.data, rows, cols, stride);
}

template <class T, int OrderA, int OrderB> void multiply(const Gemm<T>& g) {
  using Result = Eigen::Map<Matrix<T, Eigen::RowMajor>, Eigen::Unaligned, Eigen::OuterStride<>>;
  Result(g.c, g.m, g.n, Eigen::OuterStride<>(g.ldc)).noalias() +=
      map<T, OrderA>(g.a, g.m, g.k) * map<T, OrderB>(g.b, g.k, g.n);
}
template <class T, int OrderA> void multiply(const Gemm<T>& g) {
  g.b.col_stride == 1 ? multiply<T, OrderA, Eigen::RowMajor>(g) : multiply<T, OrderA, Eigen::ColMajor>(g);
}

// The same matrix with one stride of 1: a copy where it has none.
template <class T>
MatrixRef<T> readable(const MatrixRef<T>& x, std::int64_t rows, std::int64_t cols, std::optional<Scratch>& memory) {
  if (x.row_stride == 1 || x.col_stride == 1) return x;
  if (cols == 1) return {x.data, x.row_stride, 1};
  if (rows == 1) return {x.data, 1, x.col_stride};
  T* copy = memory.emplace(static_cast<std::size_t>(rows * cols) * sizeof(T)).template as<T>();
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j) copy[i * cols + j] = x.data[i * x.row_stride + j * x.col_stride];
  return {copy, cols, 1};
}

}  // namespace

template <class T> void gemm(const Gemm<T>& g) {
  if (g.m <= 0 || g.n <= 0 || g.k <= 0) return;
  std::optional<Scratch> memory_a;
  std::optional<Scratch> memory_b;
  Gemm<T> r = g;
  r.a = readable(g.a, g.m, g.k, memory_a);
  r.b = readable(g.b, g.k, g.n, memory_b);
  r.a.col_stride == 1 ? multiply<T, Eigen::RowMajor>(r) : multiply<T, Eigen::ColMajor>(r);
}

template void gemm(const Gemm<float>&);
template void gemm(const Gemm<double>&);

}  // namespace gradual::cpu
