// Our products in bf16, by AMX and by AVX512-BF16: the bits of sums as the processor's manual says they are made, at
// every edge.
#include <doctest/doctest.h>
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/support/threads.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../../../../core/cpu/fast/bf16_gemm.h"
#include "support/products.h"

using namespace gradual;
using namespace gradual::testing;

namespace {

using Case = ProductCase;

float flushed(float x) { return std::abs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x; }

// One number of a product, of `k` factors of a and b from the bias on, as TDPBF16PS is described: 32 places at a time,
// even and odd ones apart; behind the last are zeros.
template <class F> float sum_of_amx(std::int64_t k, float sum, const F& plus_product) {
  for (std::int64_t t = 0; t < k; t += 32) {
    float both[2] = {0, 0};
    for (std::int64_t p = t; p < t + 32; ++p) both[p % 2] = p < k ? plus_product(p, both[p % 2]) : both[p % 2] + 0.0F;
    sum = flushed(flushed(sum) + flushed(both[0] + both[1]));
  }
  return sum;
}
// As VDPBF16PS is: two places at a time, the odd one first. Behind the last of an odd k is a zero.
template <class F> float sum_of_dots(std::int64_t k, float sum, const F& plus_product) {
  sum = flushed(sum);
  for (std::int64_t t = 0; t < k; t += 2) sum = plus_product(t, t + 1 < k ? plus_product(t + 1, sum) : sum + 0.0F);
  return sum;
}
float sum_of(const cpu::MatrixRef<BFloat16>& a, const cpu::MatrixRef<BFloat16>& b, std::int64_t i, std::int64_t j,
             std::int64_t k, float bias) {
  const auto plus_product = [&](std::int64_t p, float sum) {
    const float x = flushed(static_cast<float>(a.data[i * a.row_stride + p * a.col_stride]));
    const float y = flushed(static_cast<float>(b.data[p * b.row_stride + j * b.col_stride]));
    return flushed(std::fma(x, y, sum));
  };
  return cpu_isa() == CpuIsa::amx ? sum_of_amx(k, bias, plus_product) : sum_of_dots(k, bias, plus_product);
}

// Whether two places are added as the manual of the instruction says. AMD's is taken to be Intel's, and asked.
bool adds_as_described() {
  if (cpu_isa() == CpuIsa::amx || __builtin_cpu_is("intel")) return true;
  const auto sum = [](float even, float odd, float bias) {
    const BFloat16 a[2] = {BFloat16(even), BFloat16(odd)};
    const BFloat16 b[2] = {BFloat16(1), BFloat16(1)};
    float c = 0;
    cpu::bf16_product<float>({1, 1, 2, {a, 2, 1}, {b, 1, 1}, &bias, &c, 1});
    return c;
  };
  // of the last place of 1
  constexpr float kHalf = 0x1p-24F;
  constexpr float kMore = 0x1.02p-24F;
  constexpr float kLeast = 0x1p-126F;  // of normal numbers
  const bool described = sum(kHalf, kMore, 1) == 1 + 0x1p-22F && sum(kMore, kHalf, 1) == 1 + 0x1p-23F &&
                         sum(0, -kLeast, 1.5F * kLeast) == 0;
  if (!described) MESSAGE("skipped: this processor's VDPBF16PS adds otherwise than Intel's manual says");
  return described;
}

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
std::uint32_t bits_of(BFloat16 x) { return x.bits; }

// How many elements of the result are not what they should be, and of the gaps are not what they were. a and the bias
// are multiplied by `scale`.
template <class Tc> int wrong(const Case& c, bool relu = false, float scale = 1) {
  std::vector<BFloat16> a, b;
  std::vector<float> bias = falling_bias(c.n);
  const cpu::MatrixRef<BFloat16> x = random_matrix(a, c.m, c.k, c.gap, c.a_transposed);
  const cpu::MatrixRef<BFloat16> y = random_matrix(b, c.k, c.n, c.gap, c.b_transposed);
  for (BFloat16& number : a) number = BFloat16(static_cast<float>(number) * scale);
  for (float& number : bias) number *= scale;
  const std::int64_t across = c.n + c.gap;
  std::vector<Tc> out(static_cast<std::size_t>(c.m * across), Tc(kUntouched));
  cpu::bf16_product<Tc>({c.m, c.n, c.k, x, y, c.bias ? bias.data() : nullptr, out.data(), across, relu});
  int count = 0;
  for (std::int64_t i = 0; i < c.m; ++i)
    for (std::int64_t j = 0; j < across; ++j) {
      float sum = j >= c.n ? kUntouched : sum_of(x, y, i, j, c.k, c.bias ? bias[static_cast<std::size_t>(j)] : 0);
      if (relu && j < c.n && sum < 0) sum = 0;
      const Tc got = out[static_cast<std::size_t>(i * across + j)];
      const Tc expected = Tc(sum);
      count += bits_of(got) != bits_of(expected);
    }
  return count;
}

}  // namespace

// small ones, then more than a block of rows, of columns, of depth, two of it, and more of a than is put in order at
// once
const std::vector<std::array<std::int64_t, 3>> kSizes = {
    {1, 1, 1},    {16, 16, 32},  {15, 17, 31},  {17, 15, 33},  {9, 33, 2},    {32, 128, 64},    {48, 40, 544},
    {33, 49, 65}, {150, 40, 70}, {20, 290, 40}, {25, 445, 40}, {50, 30, 520}, {145, 272, 1030}, {150, 17, 16400}};

TEST_CASE(
    "our bf16 products have the sums of the processor's manual, in every layout, at the edges of tiles and blocks") {
  for_each_bf16_kernel([] {
    if (!adds_as_described()) return;
    for (const auto& [m, n, k] : kSizes)
      for (const bool a_transposed : {false, true})
        for (const bool b_transposed : {false, true})
          for (const bool bias : {false, true}) {
            const Case c{m, n, k, a_transposed, b_transposed, bias, bias ? 0 : 3};
            const bool large = m * n * k > 1 << 20;
            if (large && (a_transposed == b_transposed || bias != a_transposed)) continue;  // two of them are enough
            CAPTURE(c.m);
            CAPTURE(c.n);
            CAPTURE(c.k);
            CAPTURE(c.a_transposed);
            CAPTURE(c.b_transposed);
            CHECK(wrong<float>(c) == 0);
            if (large) continue;
            CHECK(wrong<BFloat16>(c) == 0);
            CHECK(wrong<BFloat16>(c, true) == 0);
          }
  });
}

TEST_CASE("our bf16 products have the sums of the processor's manual where they become subnormal on the way") {
  for_each_bf16_kernel([] {
    if (!adds_as_described()) return;
    for (const bool bias : {false, true})
      for (const float scale : {0x1p-124F, 0x1p-127F}) {
        const Case c{40, 50, 70, false, false, bias};
        CHECK(wrong<float>(c, false, scale) == 0);
        CHECK(wrong<BFloat16>(c, false, scale) == 0);
      }
  });
}

TEST_CASE("our bf16 products keep NaN and Inf, and take subnormal numbers as zeros") {
  for_each_bf16_kernel([] {
    std::vector<BFloat16> a(16 * 32, BFloat16(0));
    std::vector<BFloat16> b(32 * 16, BFloat16(1));
    a[0] = BFloat16(INFINITY);
    a[33] = BFloat16(NAN);
    a[66] = BFloat16(-0.0F);
    a[99] = BFloat16(0x1p-130F);
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
    std::vector<BFloat16> narrow(256);
    cpu::bf16_product<BFloat16>({16, 16, 32, {a.data(), 32, 1}, {b.data(), 16, 1}, nullptr, narrow.data(), 16, true});
    CHECK(std::isnan(static_cast<float>(narrow[0])));
    CHECK(static_cast<float>(narrow[1]) == INFINITY);
    CHECK(std::isnan(static_cast<float>(narrow[16])));
  });
}

TEST_CASE("no cut of a bf16 product's rows or columns changes a bit") {
  for_each_bf16_kernel([] {
    constexpr std::int64_t kRows = 45;
    constexpr std::int64_t kColumns = 130;
    constexpr std::int64_t kPlaces = 301;
    std::vector<BFloat16> a, b;
    const cpu::MatrixRef<BFloat16> x = random_matrix(a, kRows, kPlaces, 0, false);
    const cpu::MatrixRef<BFloat16> y = random_matrix(b, kPlaces, kColumns, 0, true);
    std::vector<float> whole(kRows * kColumns);
    std::vector<float> cut(kRows * kColumns);
    const std::vector<float> bias = falling_bias(kColumns);
    cpu::bf16_product<float>({kRows, kColumns, kPlaces, x, y, bias.data(), whole.data(), kColumns});
    for (std::int64_t i = 0; i < kRows; i += 7)
      for (std::int64_t j = 0; j < kColumns; j += 51)
        cpu::bf16_product<float>({std::min<std::int64_t>(7, kRows - i),
                                  std::min<std::int64_t>(51, kColumns - j),
                                  kPlaces,
                                  {x.data + i * x.row_stride, x.row_stride, 1},
                                  {y.data + j * y.col_stride, 1, y.col_stride},
                                  bias.data() + j,
                                  cut.data() + i * kColumns + j,
                                  kColumns});
    CHECK(std::memcmp(whole.data(), cut.data(), whole.size() * sizeof(float)) == 0);
  });
}

TEST_CASE("bf16 products have the same bits on any number of threads, alone and in batches") {
  for_each_bf16_kernel([] {
    Generator g(5);
    for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{64, 300, 200},
                                  {300, 40, 150},
                                  {97, 98, 50},
                                  {20, 20, 1200},
                                  {1, 500, 1000},
                                  {300, 500, 450}}) {
      const std::int64_t work = m * n * k;
      // Without AMX large ones are oneDNN's, whose bits are the same in deterministic mode.
      set_deterministic(cpu_isa() != CpuIsa::amx && work > 1 << 19);
      check_threads(m, n, k, DType::bf16, g);
      set_deterministic(false);
    }
  });
}
