// The gradients of quantizers against their definitions: where an element is clipped, and the derivative of the smooth
// step by differences.
#include <doctest/doctest.h>
#include <gradual/core/quantize/learned_scale.h>
#include <gradual/core/quantize/quantizer.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "../../../core/ops/ops.h"

using namespace gradual;

namespace {

Tensor normal(const Shape& sizes, std::uint64_t seed) {
  Generator g(seed);
  return randn(sizes, {}, g);
}

std::vector<float> slopes_of(const Tensor& x, Quantizer q, QuantizerGradient gradient, AmaxHistory* history = nullptr) {
  q.gradient = gradient;
  return quantizer_slopes(x, q, {.history = history}).contiguous().to_vector<float>();
}

// From one value of e2m1 to the next, by the formula of arXiv 2501.17116 with k = 5.
constexpr double kE2m1[] = {-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6};
double smooth(double u) {
  const auto* const above = std::upper_bound(std::begin(kE2m1), std::end(kE2m1), u);
  if (above == std::begin(kE2m1)) return -6;
  if (above == std::end(kE2m1)) return 6;
  const double gap = *above - above[-1];
  const double place = 2 * (u - above[-1]) / gap - 1;
  return above[-1] + gap / 2 * (1 + std::copysign(std::pow(std::fabs(place), 0.2), place));
}

}  // namespace

TEST_CASE("clipped: 0 beyond the largest and the lowest value, symmetric or not") {
  struct Row {
    const char* format;
    double scale, low, high;
  };
  for (const Row& row : {Row{"int8", 60, -127, 127}, Row{"int8tc", 60, -128, 127}, Row{"int4", 4, -7, 7},
                         Row{"int4tc", 4, -8, 7}, Row{"uint4", 4, 0, 15}, Row{"e2m1", 3, -6, 6},
                         Row{"e4m3fn", 256, -448, 448}, Row{"e5m2", 40000, -57344, 57344}}) {
    CAPTURE(row.format);
    const Tensor x = normal({7, 300}, 3);
    const Quantizer q{.format = format(row.format), .scaling = FixedScale{.value = row.scale}};
    const std::vector<float> got = slopes_of(x, q, QuantizerGradient::clipped);
    const std::vector<float> numbers = x.to_vector<float>();
    std::int64_t clipped = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double u = numbers[i] * row.scale;
      const bool beyond = u < row.low || u > row.high;
      clipped += beyond;
      CHECK(got[i] == (beyond ? 0.0F : 1.0F));
    }
    CHECK(clipped > 5);
    CHECK(std::ranges::count(slopes_of(x, q, QuantizerGradient::straight), 1.0F) == 2100);
  }
  // An element between the lowest values of the two ranges.
  const Tensor one = full({1, 1}, -127.75);
  CHECK(slopes_of(one, {.format = format("int8")}, QuantizerGradient::clipped)[0] == 0);
  CHECK(slopes_of(one, {.format = format("int8tc")}, QuantizerGradient::clipped)[0] == 1);
}

TEST_CASE("clipped under scales that follow from the elements: floor's clip, those of the largest element do not") {
  const Tensor x = normal({16, 96}, 4);
  for (const int axis : {-1, 0}) {
    Quantizer q{.format = format("e2m1"), .scaling = PowerBlocks{.block = 32}, .gradient = QuantizerGradient::clipped};
    const Tensor slopes = quantizer_slopes(x, q, {.axis = axis});
    CHECK(slopes.sizes() == x.sizes());
    const Tensor along = axis == 0 ? x.transpose(0, 1) : x;
    const std::vector<float> numbers = along.contiguous().to_vector<float>();
    const std::vector<float> got = (axis == 0 ? slopes.transpose(0, 1) : slopes).contiguous().to_vector<float>();
    const auto k = static_cast<std::size_t>(along.size(1));
    std::int64_t clipped = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const std::size_t begin = i / k * k + i % k / 32 * 32;
      const std::size_t end = std::min(begin + 32, i / k * k + k);
      double amax = 0;
      for (std::size_t j = begin; j < end; ++j) amax = std::max(amax, std::fabs(static_cast<double>(numbers[j])));
      const double scale = std::exp2(std::floor(std::log2(amax)) - 2);  // OCP MX: emax of e2m1 is 2
      const bool beyond = std::fabs(numbers[i]) / scale > 6;
      clipped += beyond;
      CHECK(got[i] == (beyond ? 0.0F : 1.0F));
    }
    CHECK(clipped > 10);
  }
  const std::initializer_list<Scaling> kinds = {TensorScale{}, RowScale{}, FloatBlocks{.block = 32},
                                                PowerBlocks{.rule = ScaleRule::rceil}};
  for (const Scaling& scaling : kinds) {
    CAPTURE(kind_name(scaling));
    for (const char* element : {"e4m3fn", "e2m1", "int8"}) {
      const Quantizer q{.format = format(element), .scaling = scaling};
      CHECK(std::ranges::count(slopes_of(x, q, QuantizerGradient::clipped), 0.0F) == 0);
      CHECK(std::ranges::count(slopes_of(x, q, QuantizerGradient::differentiable), 0.0F) == 0);
    }
  }
  const Quantizer range{.format = format("uint8"), .scaling = TensorRange{}};
  CHECK(std::ranges::count(slopes_of(x, range, QuantizerGradient::clipped), 0.0F) == 0);
}

TEST_CASE("differentiable: the derivative of a smooth step between neighbours, by differences") {
  constexpr int kPoints = 4000;
  std::vector<float> points;
  for (int i = 0; i < kPoints; ++i) points.push_back(static_cast<float>(-7 + 14 * (i + 0.37) / kPoints));
  const Tensor x = from_data(points, {kPoints});
  for (const double scale : {1.0, 0.25, 3.0}) {
    const Quantizer q{.format = format("e2m1"), .scaling = FixedScale{.value = scale}};
    const std::vector<float> got = slopes_of(div(x, scale), q, QuantizerGradient::differentiable);
    std::int64_t most = 0;
    for (std::size_t i = 0; i < points.size(); ++i) {
      constexpr double kStep = 1e-7;
      const double u = points[i];
      const double difference = (smooth(u + kStep) - smooth(u - kStep)) / (2 * kStep);
      if (difference > 3.01) CHECK(got[i] == 3.0F);
      else if (difference < 2.99) CHECK(got[i] == doctest::Approx(difference).epsilon(2e-3));
      most += got[i] == 3.0F;
    }
    CHECK(most > 20);
    CHECK(most < kPoints / 5);
  }
  const Quantizer plain{.format = format("e2m1")};
  const Tensor grid = from_data(std::vector<float>{-6, -0.5, 0, 1.5, 4, 6, 6.5, -7}, {8});
  const std::vector<float> on_grid = slopes_of(grid, plain, QuantizerGradient::differentiable);
  for (std::size_t i = 0; i < 6; ++i) CHECK(on_grid[i] == 0.2F);
  CHECK(on_grid[6] == 0);
  CHECK(on_grid[7] == 0);
  // A tensor with its own scale: that scale is a constant, so the slopes are those of the scaled numbers.
  const Tensor wide = normal({64}, 5);
  const double scale = static_cast<double>(6.0F / static_cast<float>(absmax(wide)));
  const std::vector<float> own =
      slopes_of(wide, {.format = format("e2m1"), .scaling = TensorScale{}}, QuantizerGradient::differentiable);
  const std::vector<float> given = slopes_of(wide, {.format = format("e2m1"), .scaling = FixedScale{.value = scale}},
                                             QuantizerGradient::differentiable);
  for (std::size_t i = 0; i < own.size(); ++i) CHECK(own[i] == doctest::Approx(given[i]).epsilon(1e-6));
}

TEST_CASE("a learned scale rounds to the bits of the same fixed one") {
  const Tensor x = normal({32, 50}, 6);
  for (const double step : {0.3, 0.125, 1e-3}) {
    AmaxHistory history;
    history.scale = scale_of_step(step);
    const Tensor learned =
        fake_quantize(x, {.format = format("int4"), .scaling = LearnedScale{}}, {.history = &history});
    const Tensor fixed = fake_quantize(x, {.format = format("int4"), .scaling = FixedScale{.value = history.scale}});
    CHECK(std::memcmp(learned.raw(), fixed.raw(), learned.nbytes()) == 0);
  }
  CHECK_THROWS_WITH(fake_quantize(x, {.format = format("int4"), .scaling = LearnedScale{}}),
                    "quantize: learned scaling needs the history that holds its scale (QuantizeOptions::history)");
  CHECK(first_step(0.5, format("int4")) == doctest::Approx(2 * 0.5 / std::sqrt(7.0)));
  CHECK(step_gradient_scale(100, format("int8")) == doctest::Approx(1 / std::sqrt(100 * 127.0)));
  CHECK(scale_of_step(0) == 0x1p100F);
  CHECK(scale_of_step(-3) == 0x1p100F);
}
