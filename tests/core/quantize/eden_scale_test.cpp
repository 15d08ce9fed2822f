// Random scales: MS-EDEN and the rules up and stochastic of coded scales, against their definitions in plain C++.
#include <doctest/doctest.h>
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
constexpr std::size_t kGroup = 128;

std::vector<float> spread(std::int64_t n, std::uint64_t seed) {
  Generator g(seed);
  return (exp(rand({n}, {}, g) * 4 - 2) * randn({n}, {}, g)).to_vector<float>();
}
// The numbers of e4m3fn from 0 on, in order.
std::vector<double> scale_numbers() {
  std::vector<double> all;
  for (int code = 0; code < 0x7f; ++code) {
    const int exponent = code >> 3;
    const int mantissa = code & 7;
    all.push_back(exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
  }
  return all;
}
double nearest_scale(double x) {
  const std::vector<double> all = scale_numbers();
  std::size_t best = 0;
  for (std::size_t i = 1; i < all.size(); ++i) {
    const double now = std::abs(all[i] - x);
    const double before = std::abs(all[best] - x);
    if (now < before || (now == before && i % 2 == 0)) best = i;
  }
  return all[best];
}
// The neighbours of x among the scales; both x if it is one of them.
std::pair<double, double> neighbours(double x) {
  double below = 0;
  for (const double s : scale_numbers()) {
    if (s >= x) return {s == x ? s : below, s};
    below = s;
  }
  return {448, 448};
}
double squared(const Tensor& t) { return sum(square(t.to(DType::f64))).item<double>(); }

std::vector<bool> signs_of(std::uint64_t seed) {
  Generator g(seed);
  std::vector<bool> signs;
  for (const float u : rand({static_cast<std::int64_t>(kGroup)}, {}, g).to_vector<float>()) signs.push_back(u < 0.5F);
  return signs;
}
// The inverse: the signs come after the transform, which is its own inverse.
Tensor turned_back(const Tensor& y, const std::vector<bool>& signs) {
  Tensor back = hadamard(y, std::vector<bool>(kGroup, false)).clone();
  for (std::size_t i = 0; i < kGroup; ++i)
    if (signs[i]) back.narrow(1, static_cast<std::int64_t>(i), 1).mul_(-1);
  return back;
}

// Means over draws of a rotation and of random numbers: the error of one estimate of x, relative to x, and that of the
// mean of all, relative to what the errors of independent estimates without a bias give.
struct Estimate {
  double one = 0;
  double of_mean = 0;
};
Estimate estimate(const Tensor& x, const Quantizer& q, int draws) {
  Tensor total = zeros(x.sizes(), {.dtype = DType::f64});
  double errors = 0;
  for (int k = 0; k < draws; ++k) {
    const auto seed = static_cast<std::uint64_t>(k);
    const std::vector<bool> signs = signs_of(seed + 1);
    const Tensor y = fake_quantize(hadamard(x, signs), q, {.key = {7, seed}});
    const Tensor back = turned_back(y, signs).to(DType::f64);
    errors += squared(back - x.to(DType::f64)) / draws;
    total = total + back;
  }
  return {errors / squared(x), squared(total / draws - x.to(DType::f64)) / (errors / draws)};
}

const Quantizer kEden{.format = format("e2m1"), .scaling = EdenBlocks{}};

}  // namespace

TEST_CASE("MS-EDEN: elements to nearest, scales times <x, x> / <x, Q(x)> of the group at random") {
  const std::vector<float> x = spread(4 * 256, 1);
  const Tensor t = from_data(x, {4, 256});
  const QuantizeOptions options{.key = {3, 5}};
  const QuantizedTensor codes = quantize(t, kEden, options);
  const std::vector<float> values = fake_quantize(t, kEden, options).to_vector<float>();
  CHECK(codes.dequantize().to_vector<float>() == values);
  const std::vector<float> stored = codes.scale_values().to_vector<float>();
  const double encode = static_cast<float>(256 * 6 / amax_of(x.data(), x.size()));
  const double global = static_cast<float>(1 / static_cast<float>(encode));
  CHECK(codes.global_scale.item<float>() == static_cast<float>(global));
  int up = 0;
  int down = 0;
  for (std::size_t g = 0; g < x.size(); g += kGroup) {
    double own = 0;
    double product = 0;
    std::vector<double> scales;
    std::vector<double> rounded;
    for (std::size_t b = g; b < g + kGroup; b += kBlock) {
      scales.push_back(nearest_scale(amax_of(&x[b], kBlock) * encode / 6));
      for (std::size_t i = b; i < b + kBlock; ++i) {
        rounded.push_back(e2m1(x[i] * encode / scales.back()));
        own += double{x[i]} * x[i];
        product += x[i] * rounded.back() * scales.back() * global;
      }
    }
    for (std::size_t b = 0; b < kGroup / kBlock; ++b) {
      const double wanted = scales[b] * own / product;
      const auto [below, above] = neighbours(wanted);
      const double got = stored[g / kBlock + b];
      CHECK((got == below || got == above));
      up += got == above;
      down += got == below;
      for (std::size_t i = 0; i < kBlock; ++i) {
        const std::size_t at = b * kBlock + i;
        CHECK(values[g + at] == doctest::Approx(rounded[at] * got * global).epsilon(1e-6));
      }
    }
  }
  CHECK(up > 8);
  CHECK(down > 8);
}

TEST_CASE("MS-EDEN: the mean over rotations is x, and one estimate errs less than half of stochastic rounding's") {
  Tensor x = from_data(spread(256, 2), {2, 128});
  x.narrow(1, 3, 1).mul_(8);  // an outlier
  constexpr int kDraws = 4000;
  const Quantizer nearest{.format = format("e2m1"), .scaling = Nvfp4Blocks{.block = 16}};
  Quantizer random{.format = format("e2m1"), .scaling = Nvfp4Blocks{.block = 16, .rule = CodedRule::up}};
  random.rounding.mode = RoundingMode::stochastic;
  const Estimate eden = estimate(x, kEden, kDraws);
  const Estimate biased = estimate(x, nearest, kDraws);
  const Estimate by_elements = estimate(x, random, kDraws);
  // Without a bias it is a mean of 256 squares of normal numbers: 1 +- sqrt(2 / 256), less where they depend.
  CHECK(eden.of_mean < 1.5);
  CHECK(by_elements.of_mean < 1.5);
  CHECK(biased.of_mean > 3);
  CHECK(eden.one < by_elements.one / 2);
}

TEST_CASE("rules up and stochastic of coded scales") {
  const std::vector<float> x = spread(1024, 3);
  const Tensor t = from_data(x, {4, 256});
  for (const bool two_levels : {false, true}) {
    const auto with = [&](CodedRule rule) {
      Quantizer q{.format = format("e2m1"), .scaling = CodedBlocks{.block = 16, .rule = rule}};
      if (two_levels) q.scaling = Nvfp4Blocks{.block = 16, .rule = rule};
      return q;
    };
    const double encode = two_levels ? static_cast<float>(448 * 6 / amax_of(x.data(), x.size())) : 1;
    const std::vector<float> up = quantize(t, with(CodedRule::up)).scale_values().to_vector<float>();
    constexpr int kDraws = 400;
    std::vector<double> mean(64, 0);
    for (int k = 0; k < kDraws; ++k) {
      const QuantizeOptions options{.key = {1, static_cast<std::uint64_t>(k)}};
      const auto drawn = quantize(t, with(CodedRule::stochastic), options).scale_values().to_vector<float>();
      for (std::size_t b = 0; b < 64; ++b) {
        const auto [below, above] = neighbours(amax_of(&x[b * kBlock], kBlock) * encode / 6);
        CHECK((drawn[b] == static_cast<float>(below) || drawn[b] == static_cast<float>(above)));
        mean[b] += double{drawn[b]} / kDraws;
      }
    }
    for (std::size_t b = 0; b < 64; ++b) {
      const double wanted = amax_of(&x[b * kBlock], kBlock) * encode / 6;
      const auto [below, above] = neighbours(wanted);
      CHECK(up[b] == static_cast<float>(above));
      CHECK(std::abs(mean[b] - wanted) <= 4.5 * (above - below) / 2 / std::sqrt(kDraws) + 1e-6 * wanted);
    }
  }
}

TEST_CASE("random scales are keyed by their place, whatever else the tensor holds") {
  const Tensor x = from_data(spread(512 * 256, 4), {512, 256});
  x.narrow(0, 0, 1).narrow(1, 0, 1).fill_(1e4);  // the amax of every part that begins with the first row
  const QuantizeOptions options{.key = {9, 2}};
  const std::vector<float> all = fake_quantize(x, kEden, options).to_vector<float>();
  const std::vector<float> part = fake_quantize(x.narrow(0, 0, 100), kEden, options).to_vector<float>();
  CHECK(std::equal(part.begin(), part.end(), all.begin()));
  CHECK(all == fake_quantize(x, kEden, options).to_vector<float>());
  CHECK(all != fake_quantize(x, kEden, {.key = {9, 3}}).to_vector<float>());
  const std::vector<float> wide = fake_quantize(x.to(DType::f64), kEden, options).to_vector<float>();
  CHECK(wide == all);
}

// Optimizers put marks onto their seeds by XOR. A mark of scales by XOR would nearly cancel them.
TEST_CASE("random scales draw other numbers than elements do, whatever the seed was marked with") {
  std::vector<float> numbers;
  for (int i = 0; i < 1024; ++i) numbers.push_back(1 + static_cast<float>(i) / 1024);
  const Tensor x = from_data(numbers, {1024, 1});
  const Quantizer scales{.format = format("e2m1"),
                         .scaling = CodedBlocks{.block = 1, .rule = CodedRule::stochastic}};  // amax / 6
  const Quantizer elements{.format = format("e4m3fn"), .rounding = {RoundingMode::stochastic}};
  for (std::uint64_t mark = 0x6772616475616c20; mark < 0x6772616475616c28; ++mark) {
    const auto drawn = quantize(x * 6, scales, {.key = {mark, 1}}).scale_values().to_vector<float>();
    for (std::uint64_t seed = 0; seed < 8; ++seed)
      CHECK(drawn != fake_quantize(x, elements, {.key = {seed, 1}}).to_vector<float>());
  }
}

TEST_CASE("MS-EDEN: rows that are no multiple of the group, zeros, Inf and NaN") {
  const Tensor ragged = from_data(spread(3 * 200, 5), {3, 200});
  const Tensor y = fake_quantize(ragged, kEden);
  CHECK(squared(y - ragged) < 0.03 * squared(ragged));
  CHECK(absmax(fake_quantize(zeros({2, 128}), kEden)) == 0);
  const Tensor bad = ones({2, 128});
  bad.narrow(0, 0, 1).narrow(1, 5, 1).fill_(std::nan(""));
  CHECK(std::isnan(absmax(fake_quantize(bad, kEden))));
}

TEST_CASE("what random scales refuse") {
  const auto of = [](const Quantizer& q) { return message_of([&] { check_valid(q); }); };
  CHECK(contains(of({.format = format("e2m1"), .scaling = EdenBlocks{.group = 24}}),
                 "a group of 24 has no blocks of 16"));
  CHECK(contains(of({.format = format("bf16"), .scaling = EdenBlocks{}}), "elements of at most 8 bits, not 16"));
  Quantizer q = kEden;
  q.rounding.mode = RoundingMode::stochastic;
  CHECK(contains(of(q), "ms-eden has random scales"));
  CHECK(is_random(kEden));
  CHECK(cpu_only(kEden));
  CHECK_FALSE(is_random({.format = format("e2m1"), .scaling = Nvfp4Blocks{}}));
  CHECK(is_random({.format = format("e2m1"), .scaling = Nvfp4Blocks{.rule = CodedRule::stochastic}}));
  q = {.format = format("e2m1"), .signs = HadamardSigns::drawn};
  CHECK(contains(of(q), "signs are of a Hadamard transform"));
  CHECK(describe(kEden) ==
        "e2m1fn, blocks of 16 with random e4m3fn scales under one of the tensor (MS-EDEN, groups of 128)");
}
