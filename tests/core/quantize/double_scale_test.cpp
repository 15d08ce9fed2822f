// Double blocks (TetraJet-v2) against their definition in plain C++.
#include <doctest/doctest.h>
#include <gradual/core/quantize/bits_per_number.h>
#include <gradual/core/quantize/quantizer.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "e2m1_reference.h"
#include "support/files.h"
#include "support/tensors.h"

using namespace gradual;
using test::amax_of;
using test::contains;
using test::e2m1;
using test::message_of;

namespace {

constexpr std::size_t kBlock = 16;
constexpr std::size_t kOuter = 128;

const Quantizer kDouble{.format = format("e2m1"), .scaling = DoubleBlocks{}};

// Magnitudes differ by orders from one outer block to the next.
std::vector<float> spread(std::size_t rows, std::size_t k, std::uint64_t seed) {
  Generator g(seed);
  std::vector<float> x = randn({static_cast<std::int64_t>(rows * k)}, {}, g).to_vector<float>();
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= std::exp2(static_cast<float>(i / 48 % 9) * 3 - 12);
  return x;
}

// To nearest in e4m3fn, ties to the even code.
double e4m3(double x) {
  if (x >= 448) return 448;
  const int exponent = std::max(x > 0 ? std::ilogb(x) : -6, -6);
  const double step = std::ldexp(1.0, exponent - 3);
  return std::nearbyint(x / step) * step;
}

// One row as the paper's code rounds it: an f32 scale of 128 elements, an e4m3 scale of 16, their product in f32.
std::vector<float> rounded_row(const float* x, std::size_t k) {
  std::vector<float> y(k);
  for (std::size_t outer = 0; outer < k; outer += kOuter) {
    const std::size_t end = std::min(outer + kOuter, k);
    const float most = amax_of(x + outer, end - outer);
    const auto encode = most > 0 ? static_cast<float>(448.0 * 6 / most) : 1.0F;
    for (std::size_t block = outer; block < end; block += kBlock) {
      const std::size_t n = std::min(kBlock, end - block);
      const auto inner = static_cast<float>(e4m3(static_cast<double>(amax_of(x + block, n)) * encode / 6));
      const float scale = inner * (1 / encode);
      const float forward = inner > 0 ? encode / inner : 0;
      for (std::size_t i = block; i < block + n; ++i)
        y[i] = static_cast<float>(e2m1(static_cast<double>(x[i]) * forward)) * scale;
    }
  }
  return y;
}

void check_rows(std::int64_t rows, std::int64_t k) {
  CAPTURE(k);
  const std::vector<float> x = spread(static_cast<std::size_t>(rows), static_cast<std::size_t>(k), 5);
  const Tensor t = from_data(x, {rows, k});
  const std::vector<float> values = fake_quantize(t, kDouble).to_vector<float>();
  std::vector<float> expected;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::vector<float> row = rounded_row(x.data() + r * k, static_cast<std::size_t>(k));
    expected.insert(expected.end(), row.begin(), row.end());
  }
  CHECK(values == expected);
  CHECK(quantize(t, kDouble).dequantize().to_vector<float>() == values);
  CHECK(fake_quantize(t.transpose(0, 1).contiguous(), kDouble, {.axis = 0}).transpose(0, 1).to_vector<float>() ==
        values);
}

}  // namespace

TEST_CASE("double blocks: an f32 scale of 128 elements of a row, under it an e4m3 scale of 16") {
  check_rows(3, 512);
  check_rows(2, 128);
  check_rows(3, 200);  // the last outer block and the last block are smaller
  check_rows(5, 20);
}

TEST_CASE(
    "double blocks: numbers far below the tensor's largest keep their digits, under one scale of it they do not") {
  const Tensor x = ones({2, 128});
  x.narrow(0, 0, 1).mul_(1e6);
  x.narrow(0, 1, 1).mul_(1e-3);
  const Quantizer one{.format = format("e2m1"), .scaling = Nvfp4Blocks{.block = 16}};
  CHECK(fake_quantize(x, kDouble).to_vector<float>()[200] == doctest::Approx(1e-3).epsilon(1e-6));
  CHECK(fake_quantize(x, one).to_vector<float>()[200] == 0);
}

TEST_CASE("double blocks: stochastic rounding of elements has no bias, up to clipped largest ones") {
  constexpr int kDraws = 4000;
  Generator g(3);
  const Tensor x = randn({1, 256}, {}, g);
  Quantizer q = kDouble;
  q.rounding.mode = RoundingMode::stochastic;
  Tensor mean = zeros({1, 256});
  for (int k = 0; k < kDraws; ++k) mean.add_(fake_quantize(x, q, {.key = {9, static_cast<std::uint64_t>(k)}}));
  mean = mean / kDraws;
  const double nearest = sum(square(fake_quantize(x, kDouble) - x)).item();
  const double of_mean = sum(square(mean - x)).item();
  CHECK(of_mean < 0.05 * nearest);
}

TEST_CASE("double blocks: zeros, NaN, Inf, and what is refused") {
  CHECK(absmax(fake_quantize(zeros({2, 128}), kDouble)) == 0);
  const Tensor bad = ones({2, 256});
  bad.narrow(0, 0, 1).narrow(1, 3, 1).fill_(std::nan(""));
  const std::vector<float> y = fake_quantize(bad, kDouble).to_vector<float>();
  CHECK(std::isnan(y[100]));  // its outer block
  CHECK(y[128] == 1);         // the next one
  CHECK(y[256] == 1);
  const auto of = [](const Quantizer& q) { return message_of([&] { check_valid(q); }); };
  CHECK(contains(of({.format = format("e2m1"), .scaling = DoubleBlocks{.outer = 100}}),
                 "an outer block of 100 has no blocks of 16"));
  CHECK(contains(of({.format = format("bf16"), .scaling = DoubleBlocks{}}), "elements of at most 8 bits, not 16"));
  CHECK(cpu_only(kDouble));
  CHECK_FALSE(is_random(kDouble));
  CHECK(bits_per_number(kDouble) == 4 + 8.0 / 16 + 32.0 / 128);
  CHECK(describe(kDouble) == "e2m1fn, blocks of 16 with e4m3fn scales under f32 scales of 128");
}
