// Delayed scaling, step by step.
#include <doctest/doctest.h>
#include <gradual/core/quantize/quantizer.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <variant>

#include "support/tensors.h"

using namespace gradual;
using namespace gradual::testing;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Quantizer delayed(const DelayedScale& scaling) { return {.format = format("e4m3fn"), .scaling = scaling}; }

// One training step: quantises a tensor of this amax with the scale so far, then takes the amax in. The scale after it.
float step(AmaxHistory& history, const Quantizer& q, float amax) {
  fake_quantize(from_data(std::vector<float>{-amax, 0, amax / 2}, {3}), q, {.history = &history});
  history.advance(std::get<DelayedScale>(q.scaling), q.format);
  return history.scale;
}

}  // namespace

TEST_CASE("delayed scaling: the largest of the history sets the next scale") {
  const Quantizer q = delayed({.history = 3});
  AmaxHistory h;
  // the first tensor is quantised with scale 1
  CHECK(fake_quantize(full({1}, 500), q, {.history = &h}).item() == 448);
  h = {};
  CHECK(step(h, q, 2) == 448 / 2.0F);
  // with 224, a tensor of amax 8 is clipped to 448 / 224, and the scale follows afterwards
  CHECK(fake_quantize(full({1}, 8), q, {.history = &h, .use = QuantizeFor::evaluation}).item() == 2);
  CHECK(h.staged == 0);  // only read
  CHECK(step(h, q, 8) == 448 / 8.0F);
  CHECK(h.amax == std::vector<float>{8, 2});
  CHECK(step(h, q, 1) == 448 / 8.0F);
  CHECK(step(h, q, 1) == 448 / 8.0F);
  CHECK(h.amax == std::vector<float>{1, 1, 8});
  CHECK(step(h, q, 1) == 448);  // the 8 has left
  CHECK(h.amax == std::vector<float>{1, 1, 1});
}

TEST_CASE("delayed scaling: the amax of an f64 tensor is kept rounded up, so that its scale does not clip") {
  const Quantizer q = delayed({.history = 1});
  const auto staged = [](double amax) {
    AmaxHistory h;
    h.stage(amax);
    return h.staged;
  };
  CHECK(staged(448 * (1 + 0x1p-40)) == std::nextafter(448.0F, kInf));
  CHECK(staged(-448 * (1 + 0x1p-40)) == std::nextafter(448.0F, kInf));
  CHECK(staged(448) == 448);
  CHECK(staged(1e-60) == std::numeric_limits<float>::denorm_min());
  CHECK(staged(1e300) == FLT_MAX);
  CHECK(staged(kInf) == kInf);
  CHECK(std::isnan(staged(kNan)));
  AmaxHistory h;
  fake_quantize(full({1}, 448 * (1 + 0x1p-40), {.dtype = DType::f64}), q, {.history = &h});
  h.advance(std::get<DelayedScale>(q.scaling), q.format);
  CHECK(h.scale < 1);  // with 1 the number would be beyond the largest value
}

TEST_CASE("delayed scaling: several tensors of one step count with their largest") {
  const Quantizer q = delayed({.history = 4});
  AmaxHistory h;
  for (const float amax : {3.0F, 7.0F, 5.0F}) fake_quantize(full({2}, amax), q, {.history = &h});
  CHECK(h.staged == 7);
  CHECK(h.scale == 1);
  h.advance(std::get<DelayedScale>(q.scaling), q.format);
  CHECK(h.scale == 448 / 7.0F);
  CHECK(h.staged == 0);
  CHECK(h.amax == std::vector<float>{7});
}

TEST_CASE("delayed scaling: most recent, and the margin") {
  AmaxHistory h;
  const Quantizer recent = delayed({.history = 3, .most_recent = true});
  CHECK(step(h, recent, 8) == 448 / 8.0F);
  CHECK(step(h, recent, 2) == 448 / 2.0F);
  AmaxHistory with_margin;
  CHECK(step(with_margin, delayed({.margin = 2}), 8) == 448 / 32.0F);
  AmaxHistory short_one;
  const Quantizer one = delayed({.history = 1});
  CHECK(step(short_one, one, 8) == 448 / 8.0F);
  CHECK(step(short_one, one, 4) == 448 / 4.0F);
}

TEST_CASE("delayed scaling: an amax of 0, Inf or NaN keeps the scale, a scale of Inf becomes the largest float") {
  for (const bool most_recent : {false, true}) {
    const Quantizer q = delayed({.history = 2, .most_recent = most_recent});
    AmaxHistory h;
    CHECK(step(h, q, 0) == 1);
    CHECK(step(h, q, 4) == 112);
    for (const float bad : {kInf, kNan}) {
      CHECK(step(h, q, bad) == 112);
      CHECK(step(h, q, 2) == (most_recent ? 224 : 112));  // the history still holds it
      CHECK(step(h, q, 4) == 112);                        // now it does not
    }
    CHECK(step(h, q, 0x1p-140F) == (most_recent ? FLT_MAX : 112));
    CHECK(step(h, q, 0x1p-140F) == FLT_MAX);
    CHECK(step(h, q, 0) == FLT_MAX);
    CHECK(step(h, q, 0) == FLT_MAX);
  }
}

TEST_CASE("amax: the largest magnitude, NaN where there is one") {
  CHECK(absmax(zeros({0})) == 0);
  CHECK(absmax(from_data(std::vector<float>{1, -3, 2}, {3})) == 3);
  CHECK(absmax(from_data(std::vector<float>{1, -kInf}, {2})) == kInf);
  CHECK(std::isnan(absmax(from_data(std::vector<float>{kInf, kNan, 1}, {3}))));
  CHECK(absmax(from_data(std::vector<double>{0.5, -0.25}, {2}, {.dtype = DType::bf16})) == 0.5F);
  Generator g(5);
  const Tensor x = randn({400, 700}, {}, g);
  double most = 0;
  for (const double v : values(x)) most = std::max(most, std::abs(v));
  CHECK(absmax(x) == most);
  CHECK(absmax(x.t()) == most);
}
