#include "ordered_gemm.h"

#include <algorithm>
#include <cmath>

#include "../ops/cpu_backend.h"
#include "../support/multiversion.h"
#include "../tensor/memory.h"

namespace gradual::cpu {
namespace {

constexpr std::int64_t kCols = 64;  // sums of a row that are computed together

OrderedKernel fast_kernel = nullptr;  // set once, when columns are registered

// n columns of g from column j on. `panel` has room for k rows of kCols numbers of b.
void columns(const Gemm<float>& g, std::int64_t j, std::int64_t n, float* panel) {
  for (std::int64_t p = 0; p < g.k; ++p)
    for (std::int64_t i = 0; i < kCols; ++i)
      panel[p * kCols + i] = i < n ? g.b.data[p * g.b.row_stride + (j + i) * g.b.col_stride] : 0;
  for (std::int64_t i = 0; i < g.m; ++i) {
    const float* const row = g.a.data + i * g.a.row_stride;
    float* const to = g.c + i * g.ldc + j;
    vectorized([=, k = g.k, step = g.a.col_stride] {
      float sums[kCols] = {};
      for (std::int64_t p = 0; p < k; ++p) {
        const float factor = row[p * step];
#pragma omp simd
        for (std::int64_t c = 0; c < kCols; ++c) sums[c] = std::fma(factor, panel[p * kCols + c], sums[c]);
      }
      std::copy_n(sums, n, to);
    });
  }
}

}  // namespace

void set_ordered_kernel(OrderedKernel kernel) { fast_kernel = kernel; }

void ordered_gemm(const Gemm<float>& g) {
  if (g.m <= 0 || g.n <= 0) return;
  if (!fast_kernel || cpu_backend() < CpuBackend::fast || !fast_kernel(g)) {
    const Scratch panel(static_cast<std::size_t>(g.k * kCols) * sizeof(float) + 1);
    for (std::int64_t j = 0; j < g.n; j += kCols) columns(g, j, std::min(kCols, g.n - j), panel.as<float>());
  }
  for (std::int64_t i = 0; i < g.m; ++i) {
    float* const row = g.c + i * g.ldc;
    vectorized([=, n = g.n] {
      for (std::int64_t j = 0; j < n; ++j) row[j] += 0.0F;
    });
  }
}

}  // namespace gradual::cpu
