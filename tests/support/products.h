// Products of matrices in every layout, for tests of the fast kernels.
#pragma once

#include <doctest/doctest.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/support/threads.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "../../core/cpu/fast/bf16_gemm.h"
#include "cpu_isas.h"

namespace gradual::testing {

inline constexpr float kUntouched = -7;

struct ProductCase {
  std::int64_t m, n, k;
  bool a_transposed = false;
  bool b_transposed = false;
  bool bias = false;
  std::int64_t gap = 0;  // between rows (columns) of each matrix
};

// Random numbers from -1 to 1 in `data`, and the matrix that they are.
template <class T>
cpu::MatrixRef<T> random_matrix(std::vector<T>& data, std::int64_t rows, std::int64_t cols, std::int64_t gap,
                                bool transposed) {
  const std::int64_t across = (transposed ? rows : cols) + gap;
  data.resize(static_cast<std::size_t>((transposed ? cols : rows) * across));
  std::mt19937 random(static_cast<unsigned>(rows * 31 + cols));
  for (T& x : data) x = T(std::uniform_real_distribution<float>(-1, 1)(random));
  return transposed ? cpu::MatrixRef<T>{data.data(), 1, across} : cpu::MatrixRef<T>{data.data(), across, 1};
}

// Runs body with each instruction set that has a fast bf16 kernel.
template <class F> void for_each_bf16_kernel(const F& body) {
  bool any = false;
  reference::for_each_isa([&](CpuIsa isa) {
    if (!cpu::has_bf16_product()) return;
    any = true;
    CAPTURE(to_string(isa));
    body();
  });
  if (!any) MESSAGE("skipped: this processor has neither AVX512-BF16 nor AMX");
}

// -j / 16 for column j.
inline std::vector<float> falling_bias(std::int64_t n) {
  std::vector<float> bias(static_cast<std::size_t>(n));
  for (std::size_t j = 0; j < bias.size(); ++j) bias[j] = -static_cast<float>(j) / 16;
  return bias;
}

// linear, matmul of a matrix and of a batch have the same bits on any number of threads, in that dtype.
inline void check_threads(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype, Generator& g) {
  const auto draw = [&](const Shape& sizes) { return randn(sizes, {}, g).to(dtype); };
  const Tensor x = draw({m, k});
  const Tensor w = draw({n, k});
  const Tensor bias = draw({n});
  const Tensor batch = draw({3, m, k});
  const Tensor others = draw({3, k, n});
  const auto all = [&](int threads) {
    const ThreadsScope scope(threads);
    return std::vector<Tensor>{linear(x, w, bias),
                               matmul(x.transpose(0, 1).contiguous().transpose(0, 1), w.transpose(0, 1)),
                               matmul(batch, others)};
  };
  const std::vector<Tensor> one = all(1);
  for (const int threads : {2, 3, 7}) {
    const std::vector<Tensor> many = all(threads);
    for (std::size_t i = 0; i < one.size(); ++i) CHECK(std::memcmp(one[i].raw(), many[i].raw(), one[i].nbytes()) == 0);
  }
}

}  // namespace gradual::testing
