// Eigen's product, compiled for one instruction set: the body of gemm_baseline.cpp, gemm_avx2.cpp and gemm_avx512.cpp.
// Eigen selects its instructions at compile time, so the last two files have their own compiler flags. They also rename
// Eigen's namespace. Otherwise the linker would merge equal inline functions and could keep one with instructions that
// the processor lacks. tests/symbols.cmake checks that the objects share no other inline function.
#pragma once

#include "gemm.h"

// Small products use Eigen's GEMM, too: its coefficient-based product sums in an order that depends on alignment, and
// without fma.
#define EIGEN_GEMM_TO_COEFFBASED_THRESHOLD 1
#define EIGEN_NO_IO
#include <Eigen/Core>

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

}  // namespace

template <CpuIsa isa, class T> void product(const Gemm<T>& g) {
  g.a.col_stride == 1 ? multiply<T, Eigen::RowMajor>(g) : multiply<T, Eigen::ColMajor>(g);
}

}  // namespace gradual::cpu
