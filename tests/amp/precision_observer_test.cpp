#include "../../amp/precision_observer.h"

#include <doctest/doctest.h>

#include <numeric>

#include "../../nn/activation.h"
#include "../../nn/linear.h"
#include "../../nn/sequential.h"
#include "../../optim/sgd.h"
#include "support.h"

using namespace gradual;
using amp::CastStatsTable;
using amp::CastTally;
using amp::PrecisionObserver;
using amp::Role;

namespace {

// y = (w a) b for eight elements; the gradients on the way are b (an error) and a b (of the weight w).
void backward_of_products(double a, double b, DType dtype) {
  Tensor w = ones({8}, {.dtype = dtype}).set_requires_grad();
  const Tensor left = full({8}, a, {.dtype = dtype});
  const Tensor right = full({8}, b, {.dtype = dtype});
  sum(w * left * right).backward();
}

CastStatsTable watched(const char* recipe, const std::function<void()>& f) {
  CastStatsTable table;
  const PrecisionObserver watch(table, amp::recipe(recipe));
  f();
  return table;
}
CastTally of(const CastStatsTable& table, Role role) { return total(table, {role}); }
std::uint64_t in_bins(const CastTally& t) {
  return std::accumulate(t.exponents.bins.begin(), t.exponents.bins.end(), std::uint64_t{0});
}

}  // namespace

TEST_CASE("a gradient that vanishes and one that overflows, by role") {
  // 2^-30 is below half of 2^-24
  const CastStatsTable small = watched("fp16-pure", [] { backward_of_products(0x1p-15, 0x1p-15, DType::f16); });
  CHECK(of(small, Role::error).counts.elements == 8);
  CHECK(of(small, Role::error).counts.subnormal == 8);
  CHECK(of(small, Role::error).underflow_percent() == 0);
  CHECK(of(small, Role::weight_gradient).counts.elements == 8);
  CHECK(of(small, Role::weight_gradient).underflow_percent() == 100);
  CHECK(total(small, amp::kGradients).underflow_percent() == 50);
  CHECK(total(small, amp::kGradients).overflow_percent() == 0);
  CHECK(of(small, Role::error).exponents.bins[127 - 15] == 8);
  CHECK(in_bins(of(small, Role::weight_gradient)) == 0);  // what was stored: zeros
  const CastStatsTable large = watched("fp16-pure", [] { backward_of_products(300, 300, DType::f16); });  // 90,000
  CHECK(total(large, amp::kGradients).overflow_percent() == 50);
  CHECK(total(large, amp::kGradients).underflow_percent() == 0);
  CHECK(of(large, Role::weight_gradient).exponents.bins[255] == 8);
  CastStatsTable both = small;
  add(both, large);
  CHECK(total(both, amp::kGradients).overflow_percent() == 25);
  CHECK(total(both, amp::kGradients).underflow_percent() == 25);
}

TEST_CASE("in bf16 neither happens, f32 gradients count only as if they were cast") {
  const auto count = [](const char* recipe, DType dtype) {
    return watched(recipe, [&] { backward_of_products(0x1p-15, 0x1p-15, dtype); });
  };
  const CastTally bf16 = total(count("bf16-pure", DType::bf16), amp::kGradients);
  CHECK(bf16.counts.elements == 16);
  CHECK(bf16.underflow_percent() == 0);
  CHECK(count("bf16-master", DType::f32).empty());
  const CastStatsTable as_if = count("fp32", DType::f32);
  CHECK(of(as_if, Role::weight_gradient).underflow_percent() == 100);
  CHECK(of(as_if, Role::weight_gradient).counts.elements == 8);
  CHECK(of(as_if, Role::weight_gradient).exponents.bins[127 - 30] == 8);  // as they are
  CHECK(of(as_if, Role::error).underflow_percent() == 0);
}

TEST_CASE("numbers that are handed on again are counted once, a sum of gradients is a new rounding") {
  Tensor w = full({2, 4}, 1, {.dtype = DType::f16}).set_requires_grad();
  const Tensor c = full({4, 2}, 0x1p-24, {.dtype = DType::f16});
  const CastStatsTable once = watched("fp16-pure", [&] { sum(w.reshape({8}).reshape({4, 2}) * c * 0.25).backward(); });
  CHECK(of(once, Role::weight_gradient).counts.elements == 8);  // three nodes and the leaf see these eight
  CHECK(of(once, Role::weight_gradient).counts.underflow == 8);
  w.zero_grad();
  const CastStatsTable sums = watched("fp16-pure", [&] {
    const Tensor d = full({2, 4}, 0.5, {.dtype = DType::f16});
    (sum(w * d) + sum(w * d)).backward();
  });
  CHECK(of(sums, Role::weight_gradient).counts.elements == 3 * 8);  // two products and their sum
}

TEST_CASE("under autocast casts are counted by what they cast, the weight's gradient before the cast back") {
  Tensor w = random({4, 6}, 1).set_requires_grad();
  Tensor x = random({3, 6}, 2) * 0x1p-20;
  const CastStatsTable table = watched("amp-fp16", [&] {
    Tensor loss;
    {
      const amp::Autocast scope({.dtype = DType::f16});
      loss = mse_loss(linear(x, w), zeros({3, 4}));
    }
    loss.backward();
  });
  CHECK(of(table, Role::weight).counts.elements == 24);
  CHECK(of(table, Role::activation).counts.elements == 18 + 12);  // x, and the product's own store
  CHECK(in_bins(of(table, Role::activation)) > 18);               // of x as it was
  CHECK(of(table, Role::weight_gradient).counts.elements == 24);
  CHECK(of(table, Role::error).counts.elements == 12);  // the loss's gradient, cast to f16
  const CastTally gradients = total(table, amp::kGradients);
  CHECK(in_bins(gradients) + gradients.counts.zeros + gradients.counts.underflow == 36);
}

TEST_CASE("by layer: half models' results, gradients and weights, operands as if they were cast") {
  const auto counted = [](const char* name) {
    manual_seed(1);
    nn::Sequential net(nn::Linear(16, 32), nn::ReLU(), nn::Linear(32, 4));
    amp::RecipeRun run(amp::recipe(name), net, [](auto groups, const auto& precision) {
      return std::make_unique<optim::SGD>(std::move(groups), optim::SGDOptions{.lr = 0.1, .precision = precision});
    });
    const Tensor x = random({8, 16}, 5);
    const Tensor y = zeros({8}, {.dtype = DType::i64});
    CastStatsTable table;
    const PrecisionObserver watch(table, run.recipe());
    run.step([&] { return cross_entropy(net(x), y); });
    return table;
  };
  const auto elements = [](const CastStatsTable& t, Role role, const char* layer) {
    const auto found = t.find({role, layer});
    return found == t.end() ? 0 : found->second.counts.elements;
  };
  const CastStatsTable half = counted("bf16-master");
  CHECK(elements(half, Role::activation, "0") == 8 * 16 + 8 * 32);  // the cast of x and the result
  CHECK(elements(half, Role::activation, "2") == 8 * 4);
  CHECK(elements(half, Role::weight, "0") == 16 * 32 + 32);  // what the optimizer stores
  CHECK(elements(half, Role::weight, "2") == 32 * 4 + 4);
  CHECK(elements(half, Role::weight_gradient, "0") == 16 * 32 + 32);
  CHECK(elements(half, Role::weight_gradient, "2") == 32 * 4 + 4);
  CHECK(elements(half, Role::error, "2") == 8 * 32);
  const CastStatsTable as_if = counted("fp32");
  CHECK(elements(as_if, Role::activation, "0") == 8 * 16);
  CHECK(elements(as_if, Role::activation, "2") == 8 * 32);
  CHECK(elements(as_if, Role::weight, "0") == 16 * 32 + 32);
  CHECK(elements(as_if, Role::weight_gradient, "2") == 32 * 4 + 4);
  CHECK(elements(as_if, Role::error, "2") == 8 * 32);
  const CastStatsTable codes = counted("msamp-o1");
  CHECK(elements(codes, Role::activation, "0") == 8 * 16);  // kept as codes for wgrad
  CHECK(elements(codes, Role::weight, "2") == 32 * 4);
  CHECK(elements(codes, Role::error, "0") == 8 * 32);       // wgrad's: x wants no gradient
  CHECK(elements(codes, Role::error, "2") == 2 * (8 * 4));  // dgrad's and wgrad's
  CHECK(elements(codes, Role::weight_gradient, "2") == 32 * 4);
}

TEST_CASE("the format that a role's numbers meet") {
  using amp::counted_format, amp::recipe;
  CHECK(counted_format(recipe("fp32"), Role::weight) == format("fp16"));
  CHECK(counted_format(recipe("bf16-pure"), Role::error) == format("bf16"));
  CHECK(counted_format(recipe("fp8-delayed"), Role::weight) == format("e4m3fn"));
  CHECK(counted_format(recipe("fp8-delayed"), Role::error) == format("e5m2"));
  CHECK_FALSE(counted_format(recipe("fp8-delayed"), Role::weight_gradient));
  amp::Recipe mixed = recipe("mxfp8");
  mixed.quantization->modules = {{"last", "fp32"}};
  CHECK(counted_format(mixed, Role::weight) == format("e4m3fn"));
  mixed.quantization->modules = {{"last", "mxfp4"}};
  CHECK_FALSE(counted_format(mixed, Role::weight));
  mixed.quantization->modules.clear();
  mixed.quantization->wgrad_x->format = format("e5m2");
  CHECK_FALSE(counted_format(mixed, Role::activation));
}

TEST_CASE("loss scaling brings the vanished gradients back") {
  const auto underflow = [](const std::string& name) {
    manual_seed(1);
    nn::Sequential net(nn::Linear(16, 32), nn::ReLU(), nn::Linear(32, 4));
    amp::RecipeRun run(amp::recipe(name), net, [](auto groups, const auto& precision) {
      return std::make_unique<optim::SGD>(std::move(groups), optim::SGDOptions{.lr = 0, .precision = precision});
    });
    const Tensor x = random({32, 16}, 5) * 1e-2;
    const Tensor y = zeros({32}, {.dtype = DType::i64});
    CastStatsTable table;
    {
      const PrecisionObserver watch(table, run.recipe());
      run.step([&] { return cross_entropy(net(x), y) * 1e-5; });
    }
    CHECK(total(table, amp::kGradients).counts.elements > 0);
    CHECK(total(table, amp::kGradients).overflow_percent() == 0);
    return total(table, amp::kGradients).underflow_percent();
  };
  const double unscaled = underflow("fp16-static:1");
  CHECK(unscaled > 20);  // gradients of 1e-7
  CHECK(underflow("fp16-static:16384") < 0.1 * unscaled);
  CHECK(underflow("bf16-master") == 0);
  const double as_if = underflow("fp32");
  CHECK(as_if > 10);
  CHECK(underflow("tf32") == doctest::Approx(as_if).epsilon(0.1));
}

TEST_CASE("nothing stays installed") {
  watched("fp16-pure", [] { CHECK(chain().observe != nullptr); });
  CHECK(chain().observe == nullptr);
  watched("mxfp8", [] {
    CHECK(chain().observe == nullptr);
    CHECK(amp::cast_tally(Role::error, "") != nullptr);
  });
  CHECK(amp::cast_tally(Role::error, "") == nullptr);
}
