// How GradScaler's loss scale starts, grows, backs off, and goes on after a resume.
#include <doctest/doctest.h>

#include "gradual/autograd/autograd.h"
#include "gradual/optim/grad_scaler.h"
#include "helpers.h"

using namespace gradual;
using namespace gradual::optim;
using namespace gradual::test;

namespace {

// One iteration with gradients set by hand.
StepResult iterate(GradScaler& scaler, Optimizer& optimizer, const Tensor& p, const Values& gradient) {
  scaler.scale(scalar(1));
  set_gradient(p, gradient);
  StepResult result = scaler.step(optimizer);
  scaler.update();
  return result;
}

}  // namespace

TEST_CASE("the scale grows after an interval of clean steps and backs off at an overflow") {
  const Tensor p = leaf({0});
  SGD sgd({p});
  GradScaler scaler({.init_scale = 4, .growth_factor = 2, .backoff_factor = 0.25, .growth_interval = 2});
  iterate(scaler, sgd, p, {1});
  CHECK(scaler.scale() == 4);
  CHECK(scaler.growth_tracker() == 1);
  iterate(scaler, sgd, p, {1});
  CHECK(scaler.scale() == 8);
  CHECK(scaler.growth_tracker() == 0);
  iterate(scaler, sgd, p, {1});
  CHECK(scaler.growth_tracker() == 1);
  iterate(scaler, sgd, p, {INFINITY});
  CHECK(scaler.scale() == 2);
  CHECK(scaler.growth_tracker() == 0);
  REQUIRE(scaler.history().size() == 3);
  CHECK(scaler.history()[1].update == 2);
  CHECK(scaler.history()[2].update == 4);
  CHECK(scaler.history()[2].scale == 2);
}

TEST_CASE("the scale stays finite, and within its bounds") {
  const Tensor p = leaf({0});
  SGD sgd({p});
  GradScaler huge({.init_scale = 1e38, .growth_factor = 16, .growth_interval = 1});
  for (int i = 0; i < 3; ++i) iterate(huge, sgd, p, {1});
  CHECK(huge.scale() == static_cast<double>(1e38f));
  GradScaler bounded({.init_scale = 8, .growth_interval = 1, .min_scale = 3, .max_scale = 20});
  iterate(bounded, sgd, p, {1});
  CHECK(bounded.scale() == 16);
  iterate(bounded, sgd, p, {1});
  CHECK(bounded.scale() == 20);
  for (int i = 0; i < 5; ++i) iterate(bounded, sgd, p, {NAN});
  CHECK(bounded.scale() == 3);
  GradScaler least({.init_scale = 1});
  for (int i = 0; i < 200; ++i) iterate(least, sgd, p, {INFINITY});
  CHECK(least.scale() == 0x1p-126);  // neither it nor its inverse leaves the floats
  CHECK_THROWS_AS(GradScaler({.init_scale = 8, .max_scale = 4}), Error);
  CHECK_THROWS_AS(GradScaler({.growth_factor = 1}), Error);
  CHECK_THROWS_AS(GradScaler({.backoff_factor = 1}), Error);
  CHECK_THROWS_AS(GradScaler({.growth_interval = 0}), Error);
  CHECK_THROWS_AS(GradScaler({.min_scale = 0}), Error);
}

TEST_CASE("hysteresis: the h-th overflow backs off, clean steps restore patience") {
  const Tensor p = leaf({0});
  SGD sgd({p});
  GradScaler scaler({.init_scale = 64, .hysteresis = 3});
  const auto after = [&](double gradient) {
    iterate(scaler, sgd, p, {gradient});
    return scaler.scale();
  };
  CHECK(after(INFINITY) == 64);
  CHECK(after(INFINITY) == 64);
  CHECK(after(INFINITY) == 32);
  CHECK(after(INFINITY) == 16);  // patience is used up until a clean step
  CHECK(after(1) == 16);
  CHECK(after(INFINITY) == 16);
  CHECK(after(INFINITY) == 16);
  CHECK(after(1) == 16);
  CHECK(after(INFINITY) == 16);
  CHECK(scaler.growth_tracker() == 0);
}

TEST_CASE("a static scale never moves and still skips") {
  const Tensor p = leaf({1});
  SGD sgd({p}, {.lr = 1});
  GradScaler scaler({.init_scale = 128, .growth_interval = 1, .dynamic = false});
  CHECK(iterate(scaler, sgd, p, {128}).applied());
  CHECK(p.item() == 0);
  CHECK(iterate(scaler, sgd, p, {INFINITY}).skipped());
  CHECK(p.item() == 0);
  CHECK(scaler.scale() == 128);
}

TEST_CASE("the defaults, the scaled loss and its gradient") {
  GradScaler scaler;
  CHECK(scaler.scale() == 65536);
  CHECK(scaler.options().growth_factor == 2);
  CHECK(scaler.options().backoff_factor == 0.5);
  CHECK(scaler.options().growth_interval == 2000);
  const Tensor w = leaf({3});
  const Tensor loss = (w * 2).sum();
  const Tensor scaled = scaler.scale(loss);
  CHECK(scaled.item() == 6 * 65536.0);
  scaled.backward();
  CHECK(w.grad().item() == 2 * 65536.0);
}

TEST_CASE("update takes a scale of the user's") {
  GradScaler scaler;
  scaler.scale(scalar(1));
  scaler.update(256);
  CHECK(scaler.scale() == 256);
}

TEST_CASE("a resumed scaler continues as if it had not been stopped") {
  const Tensor p = leaf({0});
  SGD sgd({p});
  const GradScalerOptions options{.init_scale = 64, .growth_interval = 3, .hysteresis = 2};
  GradScaler straight(options);
  const double gradients[] = {1, 1, 1, 1, INFINITY, 1, NAN, NAN, 1, 1, 1, NAN};
  for (int i = 0; i < 5; ++i) iterate(straight, sgd, p, {gradients[i]});
  GradScaler resumed;
  resumed.load_state_dict(straight.state_dict());
  CHECK(resumed.scale() == straight.scale());
  for (int i = 5; i < 12; ++i) {
    iterate(straight, sgd, p, {gradients[i]});
    iterate(resumed, sgd, p, {gradients[i]});
    CHECK(resumed.scale() == straight.scale());
    CHECK(resumed.growth_tracker() == straight.growth_tracker());
  }
  CHECK(resumed.history().back().update == straight.history().back().update);
}
