// Stochastic rounding as a distribution, and as a function of seed, stream and element alone.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <gradual/core/quantize/quantizer.h>

#include <string>

#include "inputs.h"
#include "support/tensors.h"

using namespace gradual;

namespace {

constexpr std::int64_t kDraws = 10'000'000;

// How often `x` goes to `above` in kDraws; the rest must go to `below`.
double share_above(const Rounder& r, float x, float below, float above) {
  const std::vector<float> in(100'000, x);
  std::vector<float> out(in.size());
  std::int64_t ups = 0;
  std::int64_t downs = 0;
  for (std::int64_t first = 0; first < kDraws; first += static_cast<std::int64_t>(in.size())) {
    r.round(in.data(), out.data(), static_cast<std::int64_t>(in.size()), first);
    std::int32_t up = 0;
    std::int32_t down = 0;
    for (const float y : out) {
      up += y == above ? 1 : 0;
      down += y == below ? 1 : 0;
    }
    ups += up;
    downs += down;
  }
  CHECK(ups + downs == kDraws);
  return static_cast<double>(ups) / static_cast<double>(kDraws);
}

struct Place {
  const char* format;
  float below, above;  // neighbours, `above` the one farther from zero
};
constexpr Place kPlaces[] = {{"e4m3fn", 1, 1.125F},         // normal values
                             {"e4m3fn", 0x1p-9F, 0x1p-8F},  // subnormal ones
                             {"e5m2", -0.0F, -0x1p-16F},    // the smallest one and zero
                             {"bf16", 3, 3 + 0x1p-6F}};

}  // namespace

TEST_CASE("stochastic rounding: the share of each neighbour, to 4 sigma" * doctest::test_suite("long")) {
  std::uint64_t stream = 0;
  for (int position = 0; position < 16; ++position) {
    const Place& place = kPlaces[position % 4];
    // Fractions of the spacing: 36/4 of a 256th is whole, 39/4 is cut by 8 random bits to 9.
    const double whole = (64 * position + 36) / 1024.0;
    const double cut = (64 * position + 39) / 1024.0;
    const auto check = [&](double fraction, int bits, double probability) {
      const double exact = place.below + fraction * (static_cast<double>(place.above) - place.below);
      const auto x = static_cast<float>(exact);
      REQUIRE(static_cast<double>(x) == exact);
      const std::string what = fmt::format("{} {:a}, {} bits", place.format, x, bits);
      CAPTURE(what);
      const Rounder r{format(place.format), {RoundingMode::stochastic, bits}, Overflow::ieee, {17, ++stream}};
      const double share = share_above(r, x, place.below, place.above);
      const double sigma = std::sqrt(probability * (1 - probability) / static_cast<double>(kDraws));
      CHECK(std::abs(share - probability) < 4 * sigma);
      // The bias of few bits, 0.75 of 256ths towards the lower neighbour, is more than 4 sigma and thus seen.
      if (probability != fraction) CHECK(share < fraction - 4 * sigma);
    };
    check(whole, 32, whole);
    check(cut, 32, cut);
    check(whole, 8, whole);
    check(cut, 8, cut - 3.0 / 1024);
  }
}

TEST_CASE("stochastic rounding: values of the format stay, and one bit is a coin") {
  const std::vector<float> values = {0, -0.0F, 1, 1.125F, -448, 0x1p-9F, 0x1.8p-8F};
  for (const int bits : {1, 8, 32}) {
    const Rounder r{format("e4m3fn"), {RoundingMode::stochastic, bits}, Overflow::ieee, {1, 2}};
    std::vector<float> out(values.size());
    for (std::int64_t draw = 0; draw < 1000; ++draw) {
      r.round(values.data(), out.data(), static_cast<std::int64_t>(values.size()), draw * 7);
      for (std::size_t i = 0; i < values.size(); ++i)
        if (reference::value_bits(out[i]) != reference::value_bits(values[i])) FAIL_CHECK(values[i]);
    }
  }
  const Rounder coin{format("e4m3fn"), {RoundingMode::stochastic, 1}, Overflow::ieee, {1, 3}};
  CHECK(std::abs(share_above(coin, 1.0625F, 1, 1.125F) - 0.5) < 4 * 0.5 / std::sqrt(static_cast<double>(kDraws)));
  CHECK(share_above(coin, 1.06F, 1, 1.125F) == 0);  // below the half nothing is left of the distance
}

TEST_CASE("stochastic rounding: the same bits for any number of threads") {
  Generator g(3);
  const Tensor x = randn({300, 700}, {}, g);
  const Quantizer per_tensor{
      .format = format("e4m3fn"), .rounding = {RoundingMode::stochastic, 8}, .scaling = TensorScale{}};
  Quantizer none = per_tensor;
  Quantizer blocks = per_tensor;
  none.scaling = {};
  blocks.scaling = PowerBlocks{};
  for (const Quantizer& q : {none, per_tensor, blocks}) {
    const QuantizeOptions o{.key = {5, 6}};
    Tensor first;
    gradual::testing::for_thread_counts([&] { return fake_quantize(x, q, o); },
                                        [&](const Tensor& y) {
                                          if (!first.defined()) first = y;
                                          CHECK(gradual::testing::same_bits(first, y));
                                          CHECK(gradual::testing::same_bits(first, quantize(x, q, o).dequantize()));
                                        });
    // another stream gives other bits
    CHECK(!gradual::testing::same_bits(first, fake_quantize(x, q, {.key = {5, 7}})));
  }
}

TEST_CASE("stochastic rounding: elements are numbered with the contracted axis last") {
  Generator g(4);
  const Tensor x = randn({30, 50, 7}, {}, g);
  const Quantizer q{.format = format("bf16"), .rounding = {RoundingMode::stochastic, 16}};
  for (const DType dtype : {DType::f32, DType::f64})
    for (int axis = 0; axis < 3; ++axis) {
      const Tensor y = fake_quantize(x.to(dtype), q, {.axis = axis, .key = {8, 9}});
      Shape order{0, 1, 2};
      order.erase(axis);
      order.push_back(axis);
      const Tensor rows = x.permute(order).contiguous();
      Tensor expected = empty_like(rows);
      Rounder{q.format, q.rounding, q.overflow, {8, 9}}.round(rows.data<float>(), expected.data<float>(), rows.numel());
      CHECK(gradual::testing::same_bits(y.permute(order).to(DType::f32), expected));
    }
}
