// Eigen's product, compiled for one instruction set: the body of gemm_baseline, gemm_avx2 and gemm_avx512.cpp. Eigen
// chooses its registers while it is compiled, so the last two are compiled with flags of their own, and each has
// Eigen's namespace under a name of its own: no inline function in them is another's, or the linker could take one with
// instructions that the processor lacks. tests/symbols.cmake sees to it that nothing else is left over.
#pragma once

#include "gemm.h"

// Eigen's other way with small products sums in an order that depends on alignment, and without fma.
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
