#include "../../amp/precision_observer.h"

#include <doctest/doctest.h>

#include <numeric>

#include "../../nn/activation.h"
#include "../../nn/linear.h"
#include "../../nn/sequential.h"
#include "../../optim/sgd.h"
#include "support.h"

using namespace gradual;
using amp::GradientRole;
using amp::GradientStats;
using amp::GradientTally;

namespace {

// y = (w a) b for eight elements; the gradients on the way are b (an error) and a b (of the weight w).
void backward_of_products(double a, double b, DType dtype) {
  Tensor w = ones({8}, {.dtype = dtype}).set_requires_grad();
  const Tensor left = full({8}, a, {.dtype = dtype});
  const Tensor right = full({8}, b, {.dtype = dtype});
  sum(w * left * right).backward();
}

std::uint64_t all_of(const GradientTally& t) {
  return std::accumulate(t.exponents.begin(), t.exponents.end(), t.zeros);
}

}  // namespace

TEST_CASE("a gradient that vanishes and one that overflows, by role") {
  GradientStats stats;
  {
    const auto watch = stats.watch(0);
    backward_of_products(0x1p-15, 0x1p-15, DType::f16);  // 2^-30 is below half of 2^-24
  }
  CHECK(stats.of(GradientRole::error).counts.elements == 8);
  CHECK(stats.of(GradientRole::error).counts.subnormal == 8);
  CHECK(stats.of(GradientRole::error).underflow_percent() == 0);
  CHECK(stats.of(GradientRole::weight).counts.elements == 8);
  CHECK(stats.of(GradientRole::weight).underflow_percent() == 100);
  CHECK(stats.total().underflow_percent() == 50);
  CHECK(stats.total().overflow_percent() == 0);
  CHECK(stats.of(GradientRole::error).exponents[127 - 15] == 8);
  CHECK(stats.of(GradientRole::weight).zeros == 8);
  {
    const auto watch = stats.watch(1);
    backward_of_products(300, 300, DType::f16);  // 90,000
  }
  CHECK(stats.last().overflow_percent() == 50);
  CHECK(stats.last().underflow_percent() == 0);
  CHECK(stats.total().overflow_percent() == 25);
  CHECK(stats.total().underflow_percent() == 25);
  CHECK(stats.of(GradientRole::weight).exponents[255] == 8);
  CHECK(stats.watched() == 2);
}

TEST_CASE("in bf16 neither happens, f32 gradients count only as if they were cast") {
  GradientStats stats;
  const auto count = [&](GradientStats& s, DType dtype) {
    const auto watch = s.watch(0);
    backward_of_products(0x1p-15, 0x1p-15, dtype);
  };
  count(stats, DType::bf16);
  CHECK(stats.total().counts.elements == 16);
  CHECK(stats.total().underflow_percent() == 0);
  GradientStats exact;
  count(exact, DType::f32);
  CHECK(exact.total().counts.elements == 0);
  CHECK(exact.total().underflow_percent() == 0);
  GradientStats as_if(amp::gradient_stats_options(amp::recipe("fp32")));
  count(as_if, DType::f32);
  CHECK(as_if.of(GradientRole::weight).underflow_percent() == 100);
  CHECK(as_if.of(GradientRole::weight).counts.elements == 8);
  CHECK(as_if.of(GradientRole::weight).exponents[127 - 30] == 8);  // as they are
  CHECK(as_if.of(GradientRole::error).underflow_percent() == 0);
}

TEST_CASE("numbers that are handed on again are counted once, a sum of gradients is a new rounding") {
  Tensor w = full({2, 4}, 1, {.dtype = DType::f16}).set_requires_grad();
  const Tensor c = full({4, 2}, 0x1p-24, {.dtype = DType::f16});
  {
    GradientStats stats;
    {
      const auto watch = stats.watch(0);
      sum(w.reshape({8}).reshape({4, 2}) * c * 0.25).backward();
    }
    CHECK(stats.of(GradientRole::weight).counts.elements == 8);  // three nodes and the leaf see these eight
    CHECK(stats.of(GradientRole::weight).counts.underflow == 8);
  }
  w.zero_grad();
  GradientStats stats;
  {
    const auto watch = stats.watch(0);
    const Tensor d = full({2, 4}, 0.5, {.dtype = DType::f16});
    (sum(w * d) + sum(w * d)).backward();
  }
  CHECK(stats.of(GradientRole::weight).counts.elements == 3 * 8);  // two products and their sum
}

TEST_CASE("under autocast the weight's gradient is the f16 one before the cast back") {
  Tensor w = random({4, 6}, 1).set_requires_grad();
  Tensor x = random({3, 6}, 2);
  GradientStats stats;
  {
    const auto watch = stats.watch(0);
    Tensor loss;
    {
      const amp::Autocast scope({.dtype = DType::f16});
      loss = mse_loss(linear(x, w), zeros({3, 4}));
    }
    loss.backward();
  }
  CHECK(stats.of(GradientRole::weight).counts.elements == 24);
  CHECK(stats.of(GradientRole::error).counts.elements == 12);  // the loss's gradient, cast to f16
  CHECK(all_of(stats.total()) == 36);
}

TEST_CASE("loss scaling brings the vanished gradients back") {
  const auto underflow = [](const std::string& name) {
    manual_seed(1);
    nn::Sequential net(nn::Linear(16, 32), nn::ReLU(), nn::Linear(32, 4));
    amp::RecipeRun run(amp::recipe(name), net, [](auto groups, const auto& precision) {
      return std::make_unique<optim::SGD>(std::move(groups), optim::SGDOptions{.lr = 0, .precision = precision});
    });
    GradientStats stats(amp::gradient_stats_options(run.recipe()));
    const Tensor x = random({32, 16}, 5) * 1e-2;
    const Tensor y = zeros({32}, {.dtype = DType::i64});
    {
      const auto watch = stats.watch(0);
      run.step([&] { return cross_entropy(net(x), y) * 1e-5; });
    }
    CHECK(stats.total().counts.elements > 0);
    CHECK(stats.total().overflow_percent() == 0);
    return stats.total().underflow_percent();
  };
  const double unscaled = underflow("fp16-static:1");
  CHECK(unscaled > 20);  // gradients of 1e-7
  CHECK(underflow("fp16-static:16384") < 0.1 * unscaled);
  CHECK(underflow("bf16-master") == 0);
  const double as_if = underflow("fp32");
  CHECK(as_if > 10);
  CHECK(underflow("tf32") == doctest::Approx(as_if).epsilon(0.1));
}

TEST_CASE("only every k-th step is watched, and nothing stays installed") {
  GradientStats stats({.every = 3});
  for (int step = 0; step < 7; ++step) {
    const auto watch = stats.watch(step);
    CHECK((watch != nullptr) == (step % 3 == 0));
    CHECK((chain().observe != nullptr) == (step % 3 == 0));
    backward_of_products(0.5, 0.5, DType::f16);
  }
  CHECK(chain().observe == nullptr);
  CHECK(stats.watched() == 3);
  CHECK(stats.total().counts.elements == 3 * 16);
  CHECK(message_of([] { GradientStats({.every = 0}); }) == "GradientStats: every is at least 1, not 0");
  CHECK(message_of([] { GradientStats({.as_if = DType::f32}); }) == "GradientStats: as_if is f16 or bf16, not f32");
}
