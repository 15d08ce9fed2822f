// What monitors see becomes findings above thresholds, with a cure; below them, and where the recipe rounds nothing
// there, it does not. Trials decide about them (planted_test.cpp).
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/inspect/diagnosis.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

using namespace gradual;
using inspect::Cause, inspect::Evidence, inspect::Finding;

namespace {

std::vector<Finding> found(const amp::Recipe& recipe, const std::function<void(inspect::ObservedStep&)>& seen,
                           const std::optional<amp::Quantization>& quantization = {}) {
  Evidence e{.recipe = &recipe, .quantization = quantization, .steps = 10};
  e.late.emplace().step = 10;
  seen(*e.late);
  return inspect::diagnose(e);
}

amp::Recipe named(const char* base, const std::function<void(amp::Recipe&)>& change = {}) {
  amp::Recipe r = amp::recipe(base);
  r.name = "mine";
  if (change) change(r);
  return r;
}

// 16 channels of size 1, of which `count` are `size` times as large.
inspect::ActivationRow row(std::size_t count, double size) {
  inspect::ActivationRow r{.layer = "fc", .operand = "x", .elements = 160};
  r.features.assign(16, 10.0);
  for (std::size_t c = 0; c < count; ++c) r.features[3 * c] = 10 * size * size;
  return r;
}

struct Net final : nn::Module {
  nn::Linear& fc = register_module("fc", nn::Linear(16, 16));
  nn::Linear& head = register_module("head", nn::Linear(16, 4));
  Tensor forward(const Tensor& x) override { return head(fc(x)); }
};

}  // namespace

TEST_CASE("outlier channels: a few that are ten times as large, under scales that they share") {
  const auto of = [](const amp::Recipe& recipe, const inspect::ActivationRow& r) {
    return found(recipe, [&](inspect::ObservedStep& step) { step.activations = {r}; });
  };
  const amp::Recipe fp4 = named("mxfp4");
  const std::vector<Finding> one = of(fp4, row(2, 12));
  REQUIRE(one.size() == 1);
  CHECK(one[0].cause == Cause::outlier_channels);
  CHECK(one[0].site == "fc");
  CHECK(one[0].weak);
  CHECK(one[0].role == inspect::NumberRole::activation);
  CHECK(one[0].sentence ==
        "layer fc: 2 of the 16 channels of x are up to 12 times as large as the median of the others, and share scales "
        "with them");
  CHECK(of(fp4, row(1, 12)).at(0).sentence ==
        "layer fc: 1 of the 16 channels of x is 12 times as large as the median of the others, and shares scales with "
        "them");
  REQUIRE(one[0].cures.size() == 1);
  CHECK(one[0].cures[0].recipe.quantization->outliers == amp::OutlierChannels{.share = 0.125, .window = 1});
  CHECK(of(fp4, row(4, 12)).size() == 1);
  CHECK(of(fp4, row(5, 12)).empty());  // more than a quarter
  CHECK(of(fp4, row(2, 9)).empty());   // not ten times as large
  CHECK(of(fp4, row(0, 1)).empty());
  CHECK(of(named("fp8-current"), row(1, 1000)).size() == 1);
  CHECK(of(named("unscaled-fp8"), row(1, 1000)).empty());  // no scales
  CHECK(of(named("fp32"), row(1, 1000)).empty());
  CHECK(of(named("mxfp4", [](amp::Recipe& r) { r.quantization->outliers.emplace(); }), row(1, 1000)).empty());
  CHECK(of(named("mxfp4", [](amp::Recipe& r) { r.quantization->modules = {{"fc", "fp32"}}; }), row(1, 1000)).empty());
  inspect::ActivationRow dead = row(4, 12);  // and 3 * 4 other channels; most of them are 0 in all samples
  for (const std::size_t c : {1, 2, 4, 5, 7, 8, 10, 11}) dead.features[c] = 0;
  CHECK(of(fp4, dead).size() == 1);
  inspect::ActivationRow few = row(1, 1000);
  few.features.resize(6);
  CHECK(of(fp4, few).empty());
  for (const double bad : {HUGE_VAL, std::nan("")}) {
    inspect::ActivationRow broken = row(1, 1000);
    broken.features[5] = bad;
    CHECK(of(fp4, broken).empty());
  }
}

TEST_CASE("outlier channels: only in layers that a change of the recipe's own quantisation reaches") {
  const auto of = [](const amp::Recipe& recipe, const std::optional<amp::Quantization>& quantization = {}) {
    return found(
        recipe, [](inspect::ObservedStep& step) { step.activations = {row(1, 1000)}; }, quantization);
  };
  CHECK(of(named("mxfp4")).size() == 1);
  Net model;
  const amp::Recipe first = named("mxfp4", [](amp::Recipe& r) { r.quantization->modules = {{"first", "fp32"}}; });
  const amp::Recipe last = named("mxfp4", [](amp::Recipe& r) { r.quantization->modules = {{"last", "fp32"}}; });
  CHECK(of(first, inspect::resolved_quantization(first, model)).empty());
  CHECK(of(last, inspect::resolved_quantization(last, model)).size() == 1);
  CHECK(of(named("mxfp4", [](amp::Recipe& r) { r.quantization->modules = {{"fc", "nvfp4"}}; })).empty());
  CHECK(of(named("mxfp4", [](amp::Recipe& r) { r.schedule = {{.last = 0.5, .recipe = "mxfp8"}}; })).empty());
}

TEST_CASE("changed routes: more than 2% of the tokens, of a router that the recipe rounds") {
  const auto of = [](const amp::Recipe& recipe, std::int64_t changed) {
    return found(recipe, [&](inspect::ObservedStep& step) {
      step.routes = {{.path = "mixture", .changed = {.tokens = 100, .changed = changed, .choices = 200, .moved = 5}}};
    });
  };
  const std::vector<Finding> one = of(named("mxfp4"), 3);
  REQUIRE(one.size() == 1);
  CHECK(one[0].cause == Cause::changed_routes);
  CHECK(one[0].site == "mixture.router");
  CHECK(one[0].weak);
  REQUIRE(one[0].cures.size() == 1);
  CHECK(one[0].cures[0].recipe.quantization->modules ==
        std::vector<std::pair<std::string, std::string>>{{"mixture.router", "fp32"}});
  CHECK(of(named("mxfp4"), 2).empty());
  CHECK(of(named("fp32"), 50).empty());
  // A model that is the mixture itself.
  const auto of_model = [](const amp::Recipe& recipe) {
    return found(recipe, [](inspect::ObservedStep& step) {
      step.routes = {{.path = "", .changed = {.tokens = 100, .changed = 50, .choices = 200, .moved = 5}}};
    });
  };
  CHECK(of_model(named("mxfp4")).size() == 1);
  CHECK(of_model(named("mxfp4", [](amp::Recipe& r) { r.quantization->modules = {{"router", "fp32"}}; })).empty());
  CHECK(of(named("mxfp4", [](amp::Recipe& r) { r.quantization->modules = {{"mixture", "fp32"}}; }), 50).empty());
}

TEST_CASE("attention's logits: rounding q and k moves the largest by more than 0.25") {
  const auto of = [](const amp::Recipe& recipe, double logit, bool attention = true) {
    return found(recipe, [&](inspect::ObservedStep& step) {
      step.probabilities = {{.layer = "attn", .attention = attention, .queries = 4, .largest_logit = logit}};
    });
  };
  const amp::Recipe fp8 = named("fp8-attention");  // e4m3: 2^-4 of a number
  const std::vector<Finding> one = of(fp8, 5);
  REQUIRE(one.size() == 1);
  CHECK(one[0].cause == Cause::attention_logits);
  CHECK(one[0].weak);
  REQUIRE(one[0].exact.size() == 2);
  CHECK(to_string(one[0].exact[0]) == "operand of attn.q");
  CHECK(to_string(one[0].exact[1]) == "operand of attn.k");
  REQUIRE(one[0].cures.size() == 1);
  CHECK_FALSE(one[0].cures[0].recipe.quantization->attention->q);
  CHECK_FALSE(one[0].cures[0].recipe.quantization->attention->k);
  CHECK(one[0].cures[0].recipe.quantization->attention->v);
  CHECK(of(fp8, 3.9).empty());
  CHECK(of(fp8, 50, false).empty());  // a softmax that is no attention
  CHECK(of(named("mxfp4"), 50).empty());
  CHECK(of(named("bf16-flash"), 100).size() == 1);  // 2^-8
  CHECK(of(named("bf16-flash"), 60).empty());
}
