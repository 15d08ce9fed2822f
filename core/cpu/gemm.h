// Matrix products in f32 and f64, the ground of matmul, linear and convolutions: Eigen's, on the calling thread.
//
// The bits of a product depend on its shape and layout. So code that cuts a product into several does it by shape
// alone, and threads draw the parts: the number of threads changes nothing.
#pragma once

#include <cstdint>

#include "../support/cpu_isa.h"

namespace gradual::cpu {

// A matrix anywhere in memory: element (i, j) is data[i * row_stride + j * col_stride].
template <class T> struct MatrixRef {
  const T* data;
  std::int64_t row_stride, col_stride;
};

// c [m, n] (rows `across` apart) = a [m, k] b [k, n] + bias [n], which may be null; with relu, 0 for what is below.
// Sums are f32. A stride of a and one of b is 1.
template <class In, class Out> struct FastProduct {
  std::int64_t m, n, k;
  MatrixRef<In> a, b;
  const float* bias;
  Out* c;
  std::int64_t across;
  bool relu = false;
};

// c [m, n] (rows ldc apart) += a [m, k] b [k, n]. Operands are read where they lie if either stride is 1.
template <class T> struct Gemm {
  std::int64_t m, n, k;
  MatrixRef<T> a, b;
  T* c;
  std::int64_t ldc;
};
template <class T> void gemm(const Gemm<T>& g);

// What gemm calls: operands with a stride of 1 each, sizes above 0.
template <CpuIsa isa, class T> void product(const Gemm<T>& g);

// Parts that together have fewer multiplications than this stay on one thread.
inline constexpr std::int64_t kWorthThreads = 1 << 19;

// Cuts n into equal parts of at most `most`: the size of each (the last may be smaller).
inline std::int64_t even_part(std::int64_t n, std::int64_t most) {
  const std::int64_t parts = (n + most - 1) / most;
  return parts > 1 ? (n + parts - 1) / parts : n;
}

}  // namespace gradual::cpu
