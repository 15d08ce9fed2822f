// AMSGrad and the plateau schedule against PyTorch's definitions.
#include <doctest/doctest.h>
#include <gradual/optim/amsgrad.h>
#include <gradual/optim/schedule.h>
#include <gradual/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "helpers.h"

using namespace gradual;
using namespace gradual::optim;

namespace {

Tensor one(double value) { return full({1}, value, {.dtype = DType::f64}); }

}  // namespace

TEST_CASE("amsgrad follows PyTorch's formula, with L2 and decoupled decay") {
  for (const bool decoupled : {false, true}) {
    const Tensor w = one(1).set_requires_grad();
    AmsGrad optimizer({w}, {{.lr = 0.1, .beta2 = 0.9, .weight_decay = 0.01}, decoupled});
    double weight = 1;
    double first = 0;
    double second = 0;
    double largest = 0;
    for (int t = 1; t <= 8; ++t) {
      const double given = t == 2 ? 10 : 0.1 * t;  // v falls after the second step
      w.set_grad(one(given));
      optimizer.step();
      if (decoupled) weight *= 1 - 0.1 * 0.01;
      const double g = decoupled ? given : given + 0.01 * weight;
      first = 0.9 * first + 0.1 * g;
      second = 0.9 * second + 0.1 * g * g;
      largest = std::max(largest, second);
      const double root = std::sqrt(largest) / std::sqrt(1 - std::pow(0.9, t)) + 1e-8;
      weight -= 0.1 / (1 - std::pow(0.9, t)) * first / root;
      CHECK(w.item() == doctest::Approx(weight).epsilon(1e-12));
    }
    CHECK(largest > second);
  }
}

TEST_CASE("the plateau schedule lowers rates when a metric stops improving, as PyTorch's does") {
  const Tensor w = one(1).set_requires_grad();
  SGD optimizer({w}, {.lr = 1});
  Plateau plateau(optimizer, {.factor = 0.5, .patience = 1, .cooldown = 1, .min_lr = 0.2});
  const auto lr = [&] { return *optimizer.param_groups()[0].lr; };
  std::vector<double> rates;
  for (const double metric : {1.0, 0.9, 0.9, 0.89999, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9}) {
    plateau.step(metric);
    rates.push_back(lr());
  }
  // two bad calls lower the rate; the next call is the cooldown's
  CHECK(rates == std::vector<double>{1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.2, 0.2});
  CHECK(plateau.best() == 0.9);
  Plateau again(optimizer, {.factor = 0.5, .patience = 1, .cooldown = 1, .min_lr = 0.2});
  again.load_state_dict(plateau.state_dict());
  CHECK(again.best() == 0.9);
  Plateau up(optimizer, {.patience = 0, .maximize = true});
  CHECK_FALSE(up.step(1));
  CHECK_FALSE(up.step(2));
  CHECK(up.step(2));
  CHECK_THROWS_AS(Plateau(optimizer, {.factor = 1}), Error);
}
