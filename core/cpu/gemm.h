// Matrix products in f32 and f64 by Eigen, on the calling thread. matmul, linear and convolutions use them.
//
// The bits of a product depend on its shape and layout. Callers therefore cut a product by shape alone and let threads
// share the parts, so that the number of threads changes no bit.
#pragma once

#include <cstdint>

#include "../support/cpu_isa.h"

namespace gradual::cpu {

// A matrix with any strides: element (i, j) is data[i * row_stride + j * col_stride].
template <class T> struct MatrixRef {
  const T* data;
  std::int64_t row_stride, col_stride;
};

// c [m, n] (rows `across` elements apart) = a [m, k] b [k, n] + bias [n]; bias may be null. With relu, negative results
// become 0. Sums are f32. a and b each have a stride of 1.
template <class In, class Out> struct FastProduct {
  std::int64_t m, n, k;
  MatrixRef<In> a, b;
  const float* bias;
  Out* c;
  std::int64_t across;
  bool relu = false;
};

// c [m, n] (rows ldc elements apart) += a [m, k] b [k, n]. An operand with a stride of 1 is read in place; others are
// copied.
template <class T> struct Gemm {
  std::int64_t m, n, k;
  MatrixRef<T> a, b;
  T* c;
  std::int64_t ldc;
};
template <class T> void gemm(const Gemm<T>& g);

// The product that gemm calls, compiled for an instruction set. Each operand has a stride of 1; sizes are above 0.
template <CpuIsa isa, class T> void product(const Gemm<T>& g);

// Parts that together have fewer multiplications than this stay on one thread.
inline constexpr std::int64_t kWorthThreads = 1 << 19;

// The size of each part if n is cut into equal parts of at most `most`; the last part may be smaller.
inline std::int64_t even_part(std::int64_t n, std::int64_t most) {
  const std::int64_t parts = (n + most - 1) / most;
  return parts > 1 ? (n + parts - 1) / parts : n;
}

}  // namespace gradual::cpu
