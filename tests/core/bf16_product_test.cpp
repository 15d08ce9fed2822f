// Our products in bf16 by AMX: the bits of sums as the processor's manual says they are made, at every edge.
#include <doctest/doctest.h>
#include <gradual/core/ops.h>
#include <gradual/core/threads.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../../core/cpu/bf16_product.h"
#include "support/products.h"

using namespace gradual;
using namespace gradual::testing;

namespace {

using Case = ProductCase;

// Number (i, j) of a product, as TDPBF16PS is described: 32 places at a time, even and odd ones apart.
float sum_of(const cpu::MatrixRef<BFloat16>& a, const cpu::MatrixRef<BFloat16>& b, std::int64_t i, std::int64_t j,
             std::int64_t k, float sum) {
  for (std::int64_t t = 0; t < k; t += 32) {
    float both[2] = {0, 0};
    for (std::int64_t p = t; p < std::min(k, t + 32); ++p)
      both[p % 2] = std::fma(static_cast<float>(a.data[i * a.row_stride + p * a.col_stride]),
                             static_cast<float>(b.data[p * b.row_stride + j * b.col_stride]), both[p % 2]);
    sum += both[0] + both[1];
  }
  return sum;
}

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
std::uint32_t bits_of(BFloat16 x) { return x.bits; }

// How many elements of the result are not what they should be, and of the gaps are not what they were.
template <class Tc> int wrong(const Case& c, bool relu = false) {
  std::vector<BFloat16> a, b;
  const std::vector<float> bias = falling_bias(c.n);
  const cpu::MatrixRef<BFloat16> x = random_matrix(a, c.m, c.k, c.gap, c.a_transposed),
                                 y = random_matrix(b, c.k, c.n, c.gap, c.b_transposed);
  const std::int64_t across = c.n + c.gap;
  std::vector<Tc> out(static_cast<std::size_t>(c.m * across), Tc(kUntouched));
  cpu::bf16_product<Tc>({c.m, c.n, c.k, x, y, c.bias ? bias.data() : nullptr, out.data(), across, relu});
  int count = 0;
  for (std::int64_t i = 0; i < c.m; ++i)
    for (std::int64_t j = 0; j < across; ++j) {
      float sum = j >= c.n ? kUntouched : sum_of(x, y, i, j, c.k, c.bias ? bias[static_cast<std::size_t>(j)] : 0);
      if (relu && j < c.n && sum < 0) sum = 0;
      const Tc got = out[static_cast<std::size_t>(i * across + j)], expected = Tc(sum);
      count += bits_of(got) != bits_of(expected);
    }
  return count;
}

bool skipped() {
  if (cpu::has_bf16_product()) return false;
  MESSAGE("skipped: this processor has no AMX, or the system does not let it be used");
  return true;
}

}  // namespace

TEST_CASE(
    "our bf16 products have the sums of the processor's manual, in every layout, at the edges of tiles and blocks") {
  if (skipped()) return;
  // small ones, then more than a block of rows, of columns, of depth, two of it, and more of a than is put in order at once
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{1, 1, 1},
                                {16, 16, 32},
                                {15, 17, 31},
                                {17, 15, 33},
                                {32, 128, 64},
                                {48, 40, 544},
                                {33, 49, 65},
                                {150, 40, 70},
                                {20, 290, 40},
                                {50, 30, 520},
                                {145, 272, 1030},
                                {150, 17, 16400}})
    for (const bool a_transposed : {false, true})
      for (const bool b_transposed : {false, true})
        for (const bool bias : {false, true}) {
          const Case c{m, n, k, a_transposed, b_transposed, bias, bias ? 0 : 3};
          CAPTURE(c.m);
          CAPTURE(c.n);
          CAPTURE(c.k);
          CAPTURE(c.a_transposed);
          CAPTURE(c.b_transposed);
          CHECK(wrong<float>(c) == 0);
          CHECK(wrong<BFloat16>(c) == 0);
          CHECK(wrong<BFloat16>(c, true) == 0);
        }
}

TEST_CASE("our bf16 products keep NaN and Inf, and take subnormal numbers as zeros") {
  if (skipped()) return;
  std::vector<BFloat16> a(16 * 32, BFloat16(0)), b(32 * 16, BFloat16(1));
  a[0] = BFloat16(INFINITY), a[33] = BFloat16(NAN), a[66] = BFloat16(-0.0F), a[99] = BFloat16(0x1p-130F);
  b[0] = BFloat16(0);
  std::vector<float> c(256);
  cpu::bf16_product<float>({16, 16, 32, {a.data(), 32, 1}, {b.data(), 16, 1}, nullptr, c.data(), 16});
  CHECK(std::isnan(c[0]));  // Inf times 0
  CHECK(c[1] == INFINITY);
  CHECK(std::isnan(c[16]));
  CHECK(c[32] == 0);
  CHECK_FALSE(std::signbit(c[32]));  // sums begin at +0
  CHECK(c[48] == 0);
  cpu::bf16_product<float>({16, 16, 32, {a.data(), 32, 1}, {b.data(), 16, 1}, nullptr, c.data(), 16, true});
  CHECK(std::isnan(c[16]));  // relu keeps it
}

TEST_CASE("bf16 products have the same bits on any number of threads, alone and in batches") {
  if (skipped()) return;
  Generator g(5);
  for (const auto& [m, n, k] :
       {std::array<std::int64_t, 3>{64, 300, 200}, {300, 40, 150}, {97, 98, 300}, {20, 20, 4000}, {1, 500, 2000}}) {
    const auto bf16 = [&](const Shape& sizes) { return randn(sizes, {}, g).to(DType::bf16); };
    const Tensor x = bf16({m, k}), w = bf16({n, k}), bias = bf16({n}), batch = bf16({3, m, k}),
                 others = bf16({3, k, n});
    const auto all = [&](int threads) {
      const ThreadsScope scope(threads);
      return std::vector<Tensor>{linear(x, w, bias),
                                 matmul(x.transpose(0, 1).contiguous().transpose(0, 1), w.transpose(0, 1)),
                                 matmul(batch, others)};
    };
    const std::vector<Tensor> one = all(1);
    for (const int threads : {2, 3, 7}) {
      const std::vector<Tensor> many = all(threads);
      for (std::size_t i = 0; i < one.size(); ++i)
        CHECK(std::memcmp(one[i].raw(), many[i].raw(), one[i].nbytes()) == 0);
    }
  }
}
