// Products with sums in order, against a loop of fused multiply-adds; sums of rows, against the op.
#include "../../../core/cpu/ordered_gemm.h"

#include <doctest/doctest.h>
#include <gradual/gradual.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "../../../core/cpu/row_sum.h"
#include "../../../core/ops/cpu_backend.h"
#include "support/cpu_isas.h"

using namespace gradual;

namespace {

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (a != a && b != b);
}

Tensor numbers(const Shape& sizes, std::uint64_t seed, double size = 1) {
  Generator g(seed);
  return randn(sizes, {}, g) * size;
}

// The number of elements that differ from the definition.
int wrong(const Tensor& a, const Tensor& b, const Tensor& c) {
  int count = 0;
  for (std::int64_t i = 0; i < c.size(0); ++i)
    for (std::int64_t j = 0; j < c.size(1); ++j) {
      float sum = 0;
      for (std::int64_t p = 0; p < a.size(1); ++p)
        sum = std::fma(a.data<float>()[i * a.strides()[0] + p * a.strides()[1]],
                       b.data<float>()[p * b.strides()[0] + j * b.strides()[1]], sum);
      count += same(c.data<float>()[i * c.size(1) + j], sum + 0.0F) ? 0 : 1;
    }
  return count;
}

}  // namespace

TEST_CASE("products in order: every size and layout, on every instruction set") {
  const std::int64_t sizes[][3] = {{1, 1, 1}, {1, 70, 3}, {5, 33, 64}, {64, 64, 64}, {67, 17, 130}, {9, 16, 2000}};
  for (const auto& [m, n, k] : sizes)
    for (const bool turned_a : {false, true})
      for (const bool turned_b : {false, true}) {
        CAPTURE(m);
        CAPTURE(n);
        CAPTURE(k);
        const Tensor a = turned_a ? numbers({k, m}, 1).t() : numbers({m, k}, 1);
        const Tensor b = turned_b ? numbers({n, k}, 2).t() : numbers({k, n}, 2);
        const Tensor c = empty({m, n});
        reference::for_each_isa([&](CpuIsa) {
          cpu::ordered_gemm({m,
                             n,
                             k,
                             {a.data<float>(), a.strides()[0], a.strides()[1]},
                             {b.data<float>(), b.strides()[0], b.strides()[1]},
                             c.data<float>(),
                             n});
          CHECK(wrong(a, b, c) == 0);
        });
        const CpuBackendScope portable(CpuBackend::eigen);
        const AccumulatorScope f32(accumulator("f32"));
        CHECK(wrong(a, b, matmul(a, b)) == 0);
      }
}

TEST_CASE("products in order: tiny, huge and special numbers") {
  for (const double size : {1e-25, 1e20}) {
    const Tensor a = numbers({7, 40}, 3, size);
    const Tensor b = numbers({40, 9}, 4, size);
    const AccumulatorScope f32(accumulator("f32"));
    CHECK(wrong(a, b, matmul(a, b)) == 0);
  }
  const Tensor a = from_data(std::vector<float>{-1e-30F, INFINITY, NAN}, {3, 1});
  const Tensor b = from_data(std::vector<float>{1e-30F, 0}, {1, 2});
  const AccumulatorScope f32(accumulator("f32"));
  const Tensor c = matmul(a, b);
  CHECK(wrong(a, b, c) == 0);
  CHECK_FALSE(std::signbit(c.data<float>()[0]));
}

TEST_CASE("the sum of a row: the bits of the op") {
  for (std::int64_t n = 1; n <= cpu::kShortRow; n = n < 300 ? n + 1 : n * 5 / 4) {
    const Tensor x = numbers({2, n}, static_cast<std::uint64_t>(n));
    const Tensor sums = sum(x, {1});
    for (int row = 0; row < 2; ++row)
      CHECK(same(sums.data<float>()[row], cpu::sum_of_row(x.data<float>() + row * n, n)));
  }
}
