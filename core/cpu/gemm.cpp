#include "gemm.h"

#include <optional>

#include "../support/multiversion.h"
#include "../tensor/memory.h"

namespace gradual::cpu {
namespace {

// The same matrix with a stride of 1: x itself, or a copy in `memory` if it has no such stride.
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
  const CpuIsa isa = cpu_isa();
  if (detail::kBuiltFor < CpuIsa::avx512 && isa >= CpuIsa::avx512) return product<CpuIsa::avx512>(r);
  if (detail::kBuiltFor < CpuIsa::avx2 && isa == CpuIsa::avx2) return product<CpuIsa::avx2>(r);
  product<CpuIsa::baseline>(r);
}

template void gemm(const Gemm<float>&);
template void gemm(const Gemm<double>&);

}  // namespace gradual::cpu
