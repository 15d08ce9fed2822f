// The fast products in f32: the bits of sums in the order of k, starting from the bias, by each instruction set.
#include <doctest/doctest.h>
#include <gradual/core/formats/accumulator.h>
#include <gradual/core/ops/compute_mode.h>
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/support/threads.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "../../../../core/cpu/fast/f32_gemm.h"
#include "support/cpu_isas.h"
#include "support/products.h"

using namespace gradual;
using namespace gradual::testing;

namespace {

using Case = ProductCase;

// How many elements of the result are not what they should be, and of the gaps are not what they were.
template <class In> int wrong(const Case& c) {
  std::vector<In> a, b;
  const std::vector<float> bias = falling_bias(c.n);
  const cpu::MatrixRef<In> x = random_matrix(a, c.m, c.k, c.gap, c.a_transposed);
  const cpu::MatrixRef<In> y = random_matrix(b, c.k, c.n, c.gap, c.b_transposed);
  const std::int64_t across = c.n + c.gap;
  std::vector<float> out(static_cast<std::size_t>(c.m * across), kUntouched);
  const cpu::FastProduct<In, float> p{c.m, c.n, c.k, x, y, c.bias ? bias.data() : nullptr, out.data(), across};
  if constexpr (std::is_same_v<In, float>) cpu::f32_product(p);
  else cpu::f32_product_of(p);
  const auto at = [](const cpu::MatrixRef<In>& matrix, std::int64_t i, std::int64_t j) {
    return static_cast<float>(matrix.data[i * matrix.row_stride + j * matrix.col_stride]);
  };
  int count = 0;
  for (std::int64_t i = 0; i < c.m; ++i)
    for (std::int64_t j = 0; j < across; ++j) {
      float sum = j >= c.n ? kUntouched : c.bias ? bias[static_cast<std::size_t>(j)] : 0;
      for (std::int64_t q = 0; j < c.n && q < c.k; ++q) sum = std::fma(at(x, i, q), at(y, q, j), sum);
      const float got = out[static_cast<std::size_t>(i * across + j)];
      count += std::bit_cast<std::uint32_t>(got) != std::bit_cast<std::uint32_t>(sum);
    }
  return count;
}

}  // namespace

TEST_CASE("our f32 products add in the order of k, in every layout, at the edges of tiles and blocks") {
  std::vector<Case> cases;
  // small ones, then more than a block of rows, of depth, of columns; at least 1024 columns, for which a is packed in
  // f32, with ragged tiles and more than one block of depth
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{8, 8, 1},
                                {9, 15, 7},
                                {13, 17, 8},
                                {14, 33, 23},
                                {32, 128, 64},
                                {16, 10, 30},
                                {53, 129, 45},
                                {13, 70, 31},
                                {11, 131, 20},
                                {97, 70, 300},
                                {195, 40, 513},
                                {12, 2065, 40},
                                {103, 1031, 300},
                                {103, 131, 259},
                                {197, 150, 300},
                                {200, 20, 300},
                                {30, 19, 1100}})
    for (const bool a_transposed : {false, true})
      for (const bool b_transposed : {false, true})
        for (const bool bias : {false, true})
          cases.push_back({m, n, k, a_transposed, b_transposed, bias, bias ? 0 : 3});
  int taken = 0;
  reference::for_each_isa([&](CpuIsa isa) {
    for (const Case& c : cases) {
      if (!cpu::suits_f32_product(c.m, c.n, c.k)) continue;
      ++taken;
      CAPTURE(to_string(isa));
      CAPTURE(c.m);
      CAPTURE(c.n);
      CAPTURE(c.k);
      CAPTURE(c.a_transposed);
      CAPTURE(c.b_transposed);
      CHECK(wrong<float>(c) == 0);
      if (cpu::reads_for_f32_product(DType::bf16)) CHECK(wrong<BFloat16>(c) == 0);
      if (cpu::reads_for_f32_product(DType::f16)) CHECK(wrong<Half>(c) == 0);
    }
  });
  if (taken == 0) MESSAGE("skipped: no instruction set here has kernels");
  else CHECK(taken >= 40);
}

TEST_CASE("products of bf16 and f16 by f32 kernels have the bits of products of operands that were converted before") {
  reference::for_each_isa([](CpuIsa isa) {
    CAPTURE(to_string(isa));
    Generator g(7);
    for (const DType dtype : {DType::bf16, DType::f16}) {
      if (!cpu::reads_for_f32_product(dtype)) continue;
      for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{9, 17, 23}, {130, 200, 300}, {1100, 40, 1030}}) {
        CAPTURE(to_string(dtype));
        CAPTURE(m);
        const Tensor x = randn({m, k}, {}, g).to(dtype);
        const Tensor w = randn({n, k}, {}, g).to(dtype);
        const Tensor turned = x.transpose(0, 1).contiguous().transpose(0, 1);
        const Tensor bias = randn({n}, {}, g).to(dtype);
        const auto same = [&](const Tensor& got, const Tensor& wanted) {
          const Tensor rounded = wanted.to(dtype);
          CHECK(std::memcmp(got.raw(), rounded.raw(), got.nbytes()) == 0);
        };
        same(linear(x, w, bias), linear(x.to(DType::f32), w.to(DType::f32), bias.to(DType::f32)));
        same(matmul(turned, w.transpose(0, 1)), matmul(x.to(DType::f32), w.to(DType::f32).transpose(0, 1)));
        const Tensor batch = randn({3, m, k}, {}, g).to(dtype);
        same(matmul(batch, w.transpose(0, 1)), matmul(batch.to(DType::f32), w.to(DType::f32).transpose(0, 1)));
      }
    }
  });
}

TEST_CASE("our f32 products keep NaN, Inf and -0 as multiply-adds do") {
  if (!cpu::suits_f32_product(8, 16, 8)) {
    MESSAGE("skipped: no instruction set here has kernels");
    return;
  }
  std::vector<float> a(64, 0);
  std::vector<float> b(128, 1);
  std::vector<float> c(128);
  a[0] = INFINITY;
  a[9] = NAN;
  a[18] = -0.0F;
  b[0] = 0;
  const cpu::MatrixRef<float> x{a.data(), 8, 1};
  const cpu::MatrixRef<float> y{b.data(), 16, 1};
  cpu::f32_product({8, 16, 8, x, y, nullptr, c.data(), 16});
  CHECK(std::isnan(c[0]));  // Inf times 0
  CHECK(c[1] == INFINITY);
  CHECK(std::isnan(c[16]));
  CHECK(c[32] == 0);
  CHECK_FALSE(std::signbit(c[32]));  // sums begin at +0

  // in a larger size, with a bias, and b transposed or not
  constexpr std::int64_t kRows = 32;
  constexpr std::int64_t kColumns = 20;
  constexpr std::int64_t kPlaces = 16;
  a.assign(kRows * kPlaces, 0);
  b.assign(kPlaces * kColumns, 1);
  a[0] = INFINITY;
  a[kPlaces] = NAN;
  a[2 * kPlaces] = -INFINITY;
  b[0] = 0;
  const std::vector<float> minus(kColumns, -0.0F);
  for (const cpu::MatrixRef<float>& columns : {cpu::MatrixRef<float>{b.data(), kColumns, 1}, {b.data(), 1, kPlaces}}) {
    std::vector<float> all(kRows * kColumns);
    cpu::f32_product({kRows, kColumns, kPlaces, {a.data(), kPlaces, 1}, columns, minus.data(), all.data(), kColumns});
    CHECK(std::isnan(all[0]));
    CHECK(all[1] == INFINITY);
    CHECK(std::isnan(all[kColumns]));
    CHECK(std::isnan(all[2 * kColumns]));
    CHECK(all[2 * kColumns + 1] == -INFINITY);
    CHECK(all[3 * kColumns] == 0);
  }
}

TEST_CASE("our f32 products have the same bits on any number of threads, alone and in batches") {
  reference::for_each_isa([&](CpuIsa isa) {
    CAPTURE(to_string(isa));
    Generator g(5);
    for (const auto& [m, n, k] :
         {std::array<std::int64_t, 3>{64, 300, 200}, {300, 40, 150}, {97, 98, 300}, {20, 20, 4000}}) {
      if (!cpu::suits_f32_product(m, n, k)) continue;
      check_threads(m, n, k, DType::f32, g);
    }
  });
}

TEST_CASE("matmul and linear of small f32 matrices have the bits of our product, unless a mode asks for others") {
  Generator g(6);
  const std::int64_t m = 9;
  const std::int64_t n = 17;
  const std::int64_t k = 23;
  const Tensor x = randn({m, k}, {}, g);
  const Tensor w = randn({n, k}, {}, g);
  const Tensor bias = randn({n}, {}, g);
  const Tensor turned = x.t().contiguous().t();
  const Tensor wide = stack({x, x}, 2).select(2, 0);
  const Tensor one = ones({1}).expand({n});
  int taken = 0;
  reference::for_each_isa([&](CpuIsa isa) {
    if (!cpu::suits_f32_product(m, n, k)) return;
    ++taken;
    CAPTURE(to_string(isa));
    const auto is_product = [&](const Tensor& y, const Tensor& start) {
      std::vector<float> expected;
      for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
          float sum = start.defined() ? start[j].item<float>() : 0;
          for (std::int64_t p = 0; p < k; ++p) sum = std::fma(x[i][p].item<float>(), w[j][p].item<float>(), sum);
          expected.push_back(sum);
        }
      return y.to_vector<float>() == expected;
    };
    for (const Tensor& a : {x, turned, wide}) {
      CHECK(is_product(matmul(a, w.t()), {}));
      CHECK(is_product(matmul(a, w.t().contiguous()), {}));
      CHECK(is_product(linear(a, w), {}));
      CHECK(is_product(linear(a, w, bias), bias));
      CHECK(is_product(linear(a, w, one), one));
    }
    {
      const MatmulPrecisionScope tf32(MatmulPrecision::tf32);
      CHECK_FALSE(is_product(linear(x, w, bias), bias));
    }
    const AccumulatorScope narrow(accumulator("bf16-acc"));
    CHECK_FALSE(is_product(linear(x, w, bias), bias));
  });
  if (taken == 0) MESSAGE("skipped: no instruction set here has kernels");
}
