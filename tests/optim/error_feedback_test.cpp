// LowPrecisionUpdate::eco against the formulas in plain C++, with the weight's rounding as the only rounding to bf16.
#include <doctest/doctest.h>

#include "gradual/optim/amsgrad.h"
#include "helpers.h"
#include "support/bf16.h"
#include "support/files.h"

using namespace gradual;
using namespace gradual::optim;
using namespace gradual::test;
using ::test::message_of;
using testing::bf16;

namespace {

constexpr std::size_t kSize = 700;
const UpdateOptions kEco{.update = LowPrecisionUpdate::eco};

struct Weight {
  float w;
  float m = 0;
  float v = 0;
};

void sgd(Weight& s, float g, float lr, float mu, bool nesterov) {
  s.m = mu * s.m + g;
  const float wide = s.w - lr * (nesterov ? g + mu * s.m : s.m);
  s.w = bf16(wide);
  s.m += static_cast<float>((1 - 1 / double{mu}) / (double{lr} * (nesterov ? mu : 1))) * (wide - s.w);
}

void adam(Weight& s, float g, double lr, double beta1, double beta2, double eps, int step) {
  const double c1 = 1 - std::pow(beta1, step);
  const double root2 = std::sqrt(1 - std::pow(beta2, step));
  s.m += static_cast<float>(1 - beta1) * (g - s.m);
  s.v = static_cast<float>(beta2) * s.v + static_cast<float>(1 - beta2) * g * g;
  const float denominator = std::sqrt(s.v) / static_cast<float>(root2) + static_cast<float>(eps);
  const float wide = s.w - static_cast<float>(lr / c1) * s.m / denominator;
  s.w = bf16(wide);
  s.m += (wide - s.w) * denominator * static_cast<float>((1 - 1 / beta1) * c1 / lr);
}

// The largest difference, relative to the magnitude of what is wanted.
double off(const Tensor& got, const std::vector<Weight>& want, float Weight::*field) {
  const Values values = got.to_vector<double>();
  double worst = 0;
  for (std::size_t i = 0; i < want.size(); ++i)
    worst = std::max(worst, std::abs(values[i] - want[i].*field) / (std::abs(want[i].*field) + 1e-6));
  return worst;
}

Values rounded_start() {
  Values start = numbers(kSize, 1);
  for (double& x : start) x = bf16(static_cast<float>(x));
  return start;
}

// Steps of the optimizer and of the formula by the same gradients.
template <class F> void compare(Optimizer& optimizer, const Tensor& p, const char* momentum, const F& formula) {
  std::vector<Weight> all;
  for (const double x : p.to_vector<double>()) all.push_back({.w = static_cast<float>(x)});
  for (int step = 1; step <= 12; ++step) {
    Values g = numbers(kSize, 10 + static_cast<std::uint64_t>(step), 0.01);
    for (double& x : g) x = bf16(static_cast<float>(x));
    set_gradient(p, g);
    optimizer.step();
    for (std::size_t i = 0; i < kSize; ++i) formula(all[i], static_cast<float>(g[i]), step);
    CHECK(off(p, all, &Weight::w) == 0);
    CHECK(off(optimizer.state_dict().tensor(std::string("params.0.") + momentum), all, &Weight::m) < 1e-4);
  }
}

}  // namespace

TEST_CASE("eco: SGD's momentum takes what rounding the weight loses") {
  for (const bool nesterov : {false, true}) {
    CAPTURE(nesterov);
    const Tensor p = leaf(rounded_start(), DType::bf16);
    SGD optimizer({p}, {.lr = 0.125, .momentum = 0.875, .nesterov = nesterov, .precision = kEco});
    compare(optimizer, p, "momentum", [&](Weight& s, float g, int) { sgd(s, g, 0.125F, 0.875F, nesterov); });
  }
}

TEST_CASE("eco: Adam's first moment takes it, times the denominator of the step") {
  const Tensor p = leaf(rounded_start(), DType::bf16);
  Adam optimizer({p}, {.lr = 0.01, .beta1 = 0.875, .beta2 = 0.96875, .precision = kEco});
  compare(optimizer, p, "exp_avg", [](Weight& s, float g, int step) { adam(s, g, 0.01, 0.875, 0.96875, 1e-8, step); });
}

TEST_CASE("eco: updates below half an ulp apply, late; without it nothing moves") {
  constexpr double kLr = 1e-3;
  constexpr double kMu = 0.9;
  constexpr double kGradient = 0.0078125;
  constexpr int kSteps = 1000;
  // Where the weight is, and where the momentum alone would still take it.
  struct Place {
    double now, at_last;
  };
  const auto run = [&](LowPrecisionUpdate update, DType dtype) {
    const Tensor p = leaf(Values(64, 1), dtype);
    SGD optimizer({p}, {.lr = kLr, .momentum = kMu, .precision = {.update = update}});
    for (int step = 0; step < kSteps; ++step) {
      set_gradient(p, Values(64, kGradient));
      optimizer.step();
    }
    const double now = p.to(DType::f64).mean().item<double>();
    const double m = optimizer.state_dict().tensor("params.0.momentum").mean().item<double>();
    return Place{now, now - kLr * kMu / (1 - kMu) * m};
  };
  const Place exact = run(LowPrecisionUpdate::none, DType::f64);
  const Place eco = run(LowPrecisionUpdate::eco, DType::bf16);
  CHECK(run(LowPrecisionUpdate::none, DType::bf16).now == 1);
  CHECK(exact.now < 0.93);
  // Nothing is lost: the errors of 1000 steps in f32 aside, both end in the same place.
  CHECK(std::abs(eco.at_last - exact.at_last) < 1e-5);
  // The weight moves when a step is half its gap, 2^-8 below 1. Then the momentum holds mu / (1 - mu) such steps.
  const double lag = 0x1p-9 * kMu / (1 - kMu);
  CHECK(std::abs(eco.now - exact.now) < lag + 0x1p-9);
  CHECK(std::abs(eco.now - exact.now) > 0x1p-8);
}

TEST_CASE("eco: feed_back adds the error of a caller's rounding; other updates ignore it") {
  const Tensor p = leaf(numbers(8, 1));
  const Tensor q = leaf(numbers(8, 1));
  SGD eco({p}, {.lr = 0.5, .momentum = 0.5, .precision = kEco});
  SGD plain({q}, {.lr = 0.5, .momentum = 0.5});
  const Tensor error = full({8}, 0.25);
  eco.feed_back(p, error);  // no step yet
  for (auto [optimizer, param] : {std::pair<Optimizer*, Tensor>{&eco, p}, {&plain, q}}) {
    set_gradient(param, Values(8, 1));
    optimizer->step();
    optimizer->feed_back(param, error);
  }
  CHECK(eco.state_dict().tensor("params.0.momentum").to_vector<double>() == Values(8, 1 - 0.25 * 2));
  CHECK(plain.state_dict().tensor("params.0.momentum").to_vector<double>() == Values(8, 1));
  CHECK(message_of([&] { eco.feed_back(p, ones({4})); }).find("is [4]; its parameter is [8]") != std::string::npos);
}

TEST_CASE("what eco refuses") {
  const auto of = [](auto make) {
    return message_of([&] {
      const Tensor p = leaf(numbers(8, 1), DType::bf16);
      auto optimizer = make(p);
      set_gradient(p, Values(8, 1));
      optimizer->step();
    });
  };
  CHECK(of([](const Tensor& p) { return std::make_unique<SGD>(std::vector{p}, SGDOptions{.precision = kEco}); }) ==
        "optimizer: eco updates add to the momentum; momentum of sgd is 0");
  CHECK(of([](const Tensor& p) {
          AmsGradOptions o;
          o.precision = kEco;
          return std::make_unique<AmsGrad>(std::vector{p}, o);
        }).find("eco updates are for SGD, Adam and AdamW") != std::string::npos);
}
