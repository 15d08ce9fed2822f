// Recipes whose operands change their quantizers during a run.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../../amp/recipe.h"
#include "../../inspect/update_meter.h"
#include "../../nn/linear.h"
#include "../../nn/module.h"
#include "support.h"

using namespace gradual;
using amp::Recipe, amp::RecipeRun;

namespace {

struct Net : nn::Module {
  nn::Linear& a = register_module("a", nn::Linear(32, 32));
  nn::Linear& b = register_module("b", nn::Linear(32, 8));
  Tensor forward(const Tensor& x) override { return b(relu(a(x))); }
};

Recipe from_json(const std::string& schedule) {
  return amp::recipe_from_json(R"({"name": "mine", "base": "mxfp4", "schedule": )" + schedule + "}");
}

// A net, its run, and steps that are the same for all.
struct Trained {
  std::shared_ptr<Net> net;
  std::unique_ptr<RecipeRun> run;

  explicit Trained(const Recipe& recipe, std::int64_t steps = 6) {
    default_generator().manual_seed(1);
    net = std::make_shared<Net>();
    run = std::make_unique<RecipeRun>(recipe, *net, optim::AdamOptions{.lr = 0.01}, amp::RunOptions{.steps = steps});
  }
  void step(int k) const {
    const Tensor x = random({16, 32}, static_cast<std::uint64_t>(k));
    run->step([&] { return square((*net)(x)).mean(); });
  }
  void steps(int begin, int end) const {
    for (int k = begin; k < end; ++k) step(k);
  }
};

// Two runs of 6 steps with the same random numbers: an unbroken one, and one that begins with its state after some
// steps.
std::pair<Trained, Trained> whole_and_resumed(const Recipe& recipe, int broken) {
  Trained whole(recipe);
  whole.steps(0, broken);
  const StateDict state = whole.run->state_dict();
  Trained resumed(recipe);
  resumed.run->load_state_dict(state);
  const RandomKey key = default_generator().state();
  resumed.steps(broken, 6);
  default_generator().set_state(key);
  whole.steps(broken, 6);
  return {std::move(whole), std::move(resumed)};
}

void check_same(const Trained& a, const Trained& b) {
  const auto theirs = b.net->named_parameters();
  for (const auto& [name, p] : a.net->named_parameters()) {
    CAPTURE(name);
    for (const auto& [other, q] : theirs)
      if (other == name) CHECK(same_bits(p, q));
  }
}

}  // namespace

TEST_CASE("schedule: a phase begins with its step, and its products are those of its recipe") {
  const Trained scheduled(from_json(R"([{"from": 3, "recipe": "fp32"}])"));
  const Trained mxfp4(amp::recipe("mxfp4"));
  scheduled.steps(0, 3);
  mxfp4.steps(0, 3);
  check_same(scheduled, mxfp4);

  Recipe none = amp::recipe("mxfp4");
  none.name = "none";
  none.quantization = amp::Quantization{};
  const Trained exact(none);
  exact.net->load_state_dict(mxfp4.net->state_dict());
  exact.run->optimizer().load_state_dict(mxfp4.run->optimizer().state_dict());
  exact.steps(3, 6);
  scheduled.steps(3, 6);
  mxfp4.steps(3, 6);
  check_same(scheduled, exact);
  CHECK_FALSE(same_bits(scheduled.net->a.weight, mxfp4.net->a.weight));
}

TEST_CASE("schedule: the last share of a run, and named layers") {
  const Recipe last = from_json(R"([{"last": 0.5, "recipe": "mxfp8"}])");
  CHECK(amp::recipe_in_step(last, 2, 6).quantization == amp::recipe("mxfp4").quantization);
  CHECK(amp::recipe_in_step(last, 3, 6).quantization->forward_x == amp::recipe("mxfp8").quantization->forward_x);
  CHECK(amp::recipe_in_step(last, 3, 6).schedule.empty());
  CHECK(message_of([&] { amp::recipe_in_step(last, 0, 0); }).find("RunOptions::steps") != std::string::npos);
  const Trained halves(last);
  halves.steps(0, 3);
  CHECK(halves.run->recipe_now().quantization->forward_x == amp::recipe("mxfp8").quantization->forward_x);

  const Recipe layer = from_json(R"([{"from": 2, "recipe": "fp32", "modules": ["last"]}])");
  const Trained with_layer(layer);
  CHECK(with_layer.run->quantization()->of_module("b") != nullptr);
  with_layer.steps(0, 2);
  CHECK(with_layer.run->quantization()->of_module("b") == nullptr);
  CHECK(with_layer.run->quantization()->of_module("a") != nullptr);
  const Trained plain(amp::recipe("mxfp4"));
  plain.steps(0, 2);
  check_same(with_layer, plain);
}

TEST_CASE("schedule: layers that a phase does not name keep their histories") {
  const Recipe recipe = amp::recipe_from_json(
      R"({"name": "mine", "base": "fp8-delayed", "schedule": [{"from": 3, "recipe": "fp32", "modules": ["b"]}]})");
  const Trained scheduled(recipe);
  const Trained plain(amp::recipe("fp8-delayed"));
  scheduled.steps(0, 3);
  plain.steps(0, 3);
  CHECK(scheduled.run->quantization()->of_module("b") == nullptr);
  const auto scales = [](const Trained& t) {
    std::vector<float> all;
    for (const auto& site : t.run->quantization()->sites())
      if (to_string(site->name) == "a") all = {site->x.scale, site->w.scale, site->dy.scale};
    return all;
  };
  REQUIRE(scales(plain).size() == 3);
  CHECK(scales(plain)[0] != 1);
  CHECK(scales(scheduled) == scales(plain));
}

TEST_CASE("schedule: phases that the length of the run puts in another order, or gives no step, are Errors") {
  const auto message = [](const char* schedule) { return message_of([&] { Trained(from_json(schedule), 6); }); };
  CHECK(message(R"([{"from": 5, "recipe": "fp32"}, {"last": 0.5, "recipe": "mxfp8"}])")
            .find("in a run of 6 steps the phase 'mxfp8' begins with step 3, before") != std::string::npos);
  CHECK(message(R"([{"last": 0.01, "recipe": "fp32"}])").find("the last 0.01 of 6 steps is no step") !=
        std::string::npos);
  CHECK(message(R"([{"last": 1, "recipe": "fp32"}, {"from": 5, "recipe": "mxfp8"}])").find("in the order") !=
        std::string::npos);
}

TEST_CASE("schedule: a run that is resumed in or before a phase has the bits of an unbroken one") {
  const Recipe recipe = from_json(
      R"([{"from": 1, "recipe": "fp8-delayed"}, {"from": 3, "recipe": "nvfp4"}, {"last": 0.2, "recipe": "fp32"}])");
  for (const int broken : {1, 2, 3, 4}) {
    CAPTURE(broken);
    const auto [whole, resumed] = whole_and_resumed(recipe, broken);
    check_same(resumed, whole);
  }
}

namespace {

// mxfp4 with outlier channels, as a recipe that a phase can name.
Recipe with_outliers(const amp::OutlierChannels& outliers) {
  Recipe r = amp::recipe("mxfp4");
  r.name = fmt::format("outliers from {} every {}", outliers.from, outliers.period);
  r.quantization->outliers = outliers;
  amp::register_recipe(r);
  return r;
}

// The outlier channels of the first product; empty: none.
std::vector<double> outliers_of(const Trained& trained) {
  const Tensor& mask = trained.run->quantization()->sites().at(0)->channels.outliers();
  return mask.defined() ? mask.to(DType::f64).to_vector<double>() : std::vector<double>{};
}

}  // namespace

TEST_CASE("schedule: outlier channels are chosen by the steps of the training, in phases without them too") {
  const Recipe late = with_outliers({.share = 0.1, .from = 4, .window = 1});
  const Trained trained(from_json(R"([{"from": 3, "recipe": ")" + late.name + R"("}])"));
  trained.steps(0, 4);
  CHECK(outliers_of(trained).empty());
  trained.steps(4, 5);
  CHECK(outliers_of(trained).size() == 32);

  Recipe often = with_outliers({.share = 0.1, .window = 1, .period = 2});
  const std::string name = often.name;
  often.name = "interrupted";
  often.schedule = from_json(R"([{"from": 1, "recipe": "mxfp8"}, {"from": 3, "recipe": ")" + name + R"("}])").schedule;
  for (const int broken : {1, 2, 3, 4}) {
    CAPTURE(broken);
    const auto [whole, resumed] = whole_and_resumed(often, broken);
    check_same(resumed, whole);
    CHECK(outliers_of(resumed) == outliers_of(whole));
  }
}

TEST_CASE("schedule: in a file, and what contradicts") {
  const Recipe r = from_json(R"([{"from": 3, "recipe": "fp32", "modules": ["a"]}, {"last": 0.25, "recipe": "mxfp8"}])");
  CHECK(r.schedule.size() == 2);
  CHECK(amp::recipe_from_json(amp::to_json(r)).schedule == r.schedule);
  CHECK(amp::to_json(amp::recipe("mxfp4")).find("schedule") == std::string::npos);
  const std::vector<std::pair<std::string, std::string>> rows = {
      {R"([{"from": 3}])", "\"recipe\" is missing"},
      {R"([{"recipe": "fp32"}])", "it has one of \"from\", \"last\" and \"when\""},
      {R"([{"from": 3, "last": 0.5, "recipe": "fp32"}])", "it has one of \"from\", \"last\" and \"when\""},
      {R"([{"last": 1.5, "recipe": "fp32"}])", "above 0 and at most 1"},
      {R"([{"last": 0, "recipe": "fp32"}])", "above 0 and at most 1"},
      {R"([{"from": -1, "recipe": "fp32"}])", "from is -1"},
      {R"([{"from": 3, "recipe": "fp32"}, {"from": 2, "recipe": "mxfp4"}])", "in the order of their steps"},
      {R"([{"from": 3, "recipe": "fp33"}])", "no recipe 'fp33'"},
      {R"({"from": 3})", "allowed is a list such as"},
      {R"([{"from": 3, "recipe": "fp32", "modules": "a"}])", "allowed is a list of texts"},
      {R"([{"from": 3, "recipe": "fp32", "step": 3}])", "unknown key \"step\""},
      {R"([{"from": 3, "when": {"quantity": "gradient_norm", "below": 1}, "recipe": "fp32"}])", "it has one of"},
      {R"([{"when": "none", "recipe": "fp32"}])", "allowed is an object such as"},
      {R"([{"when": {"below": 1}, "recipe": "fp32"}])", "\"quantity\" is missing"},
      {R"([{"when": {"quantity": "noise", "below": 1}, "recipe": "fp32"}])",
       "allowed is one of gradient_to_noise, gradient_norm"},
      {R"([{"when": {"quantity": "gradient_norm"}, "recipe": "fp32"}])", "when: below is 0; allowed is a number above"},
      {R"([{"when": {"quantity": "gradient_norm", "below": 1, "steps": 0}, "recipe": "fp32"}])",
       "when: steps is 0; allowed is at least 1"}};
  for (const auto& [schedule, message] : rows) {
    CAPTURE(schedule);
    CHECK(message_of([&] { from_json(schedule); }).find(message) != std::string::npos);
  }
  CHECK(message_of([] {
          amp::recipe_from_json(R"({"name": "a", "base": "fp32", "schedule": [{"from": 1, "recipe": "mxfp4"}]})");
        }).find("the recipe has no quantization") != std::string::npos);
  Net net;
  CHECK(message_of([&] {
          amp::check_valid(from_json(R"([{"from": 3, "recipe": "fp32", "modules": ["c"]}])"), net);
        }).find("the model has no module 'c'") != std::string::npos);
}

namespace {

constexpr double kAlways = 1e30;

Recipe when(const std::string& quantity, double below, int steps = 1, const std::string& rest = "") {
  return from_json(fmt::format(R"([{{"when": {{"quantity": "{}", "below": {}, "steps": {}}}, "recipe": "fp32"}}{}])",
                               quantity, below, steps, rest));
}

// By the update meter, which observes: |gradient| / |noise| of each step of mxfp4.
std::vector<double> ratios_of_meter(int steps) {
  const Trained plain(amp::recipe("mxfp4"));
  std::vector<double> all;
  for (int k = 0; k < steps; ++k) {
    inspect::UpdateMeter meter(*plain.net);
    {
      const ObserverScope scope(meter);
      plain.step(k);
    }
    double gradient = 0;
    double noise = 0;
    for (const inspect::GradientNoise& layer : meter.gradient_noise()) {
      gradient += layer.gradient_squares;
      noise += layer.noise_squares;
    }
    all.push_back(std::sqrt(gradient / noise));
  }
  return all;
}

double squares(const Tensor& t) { return sum(square(t.to(DType::f64))).item(); }

}  // namespace

TEST_CASE("measured phases: gradient to noise is that of products with and without rounding") {
  // One layer: the gradient of its output is known.
  default_generator().manual_seed(4);
  nn::Linear net(32, 8);
  RecipeRun run(when("gradient_to_noise", kAlways), net, optim::SGDOptions{.lr = 0.1});
  const Tensor x = random({16, 32}, 1);
  const Tensor y = run.evaluate([&] { return net(x); });
  const Tensor dy = y * (2.0 / static_cast<double>(y.numel()));
  const Quantizer q = *amp::recipe("mxfp4").quantization->wgrad_x;
  const auto product = [](const Tensor& a, const Tensor& b) {
    return matmul(a.to(DType::f64).t().contiguous(), b.to(DType::f64));
  };
  const Tensor exact = product(dy, x);
  const Tensor rounded = product(fake_quantize(dy, q, {.axis = 0}), fake_quantize(x, q, {.axis = 0}));
  CHECK(run.phase_starts().empty());
  run.step([&] { return square(net(x)).mean(); });
  REQUIRE(run.phase_starts().size() == 1);
  CHECK(run.phase_starts()[0].step == 1);
  const double ratio = std::sqrt(squares(exact) / squares(rounded - exact));
  CHECK(run.phase_starts()[0].value == doctest::Approx(ratio).epsilon(1e-4));
}

TEST_CASE("measured phases: one begins when the update meter's measure falls below the threshold") {
  const std::vector<double> ratios = ratios_of_meter(6);
  std::size_t least = 1;
  for (std::size_t k = 2; k < 5; ++k)
    if (ratios[k] < ratios[least]) least = k;
  REQUIRE(ratios[least] < ratios[0]);
  double before = ratios[0];
  for (std::size_t k = 0; k < least; ++k) before = std::min(before, ratios[k]);
  const Recipe recipe = when("gradient_to_noise", (ratios[least] + before) / 2);
  const Trained measured(recipe);
  measured.steps(0, 6);
  REQUIRE(measured.run->phase_starts().size() == 1);
  const amp::PhaseStart start = measured.run->phase_starts()[0];
  CHECK(start.step == static_cast<std::int64_t>(least) + 1);
  CHECK(start.value == doctest::Approx(ratios[least]).epsilon(1e-3));
  // The rest is that of a phase with this step.
  const Trained given(from_json(fmt::format(R"([{{"from": {}, "recipe": "fp32"}}])", start.step)));
  given.steps(0, 6);
  check_same(measured, given);
  // Nothing depends on observers.
  const Trained observed(recipe);
  for (int k = 0; k < 6; ++k) {
    inspect::UpdateMeter meter(*observed.net);
    const ObserverScope scope(meter);
    observed.step(k);
  }
  check_same(observed, measured);
  CHECK(observed.run->phase_starts()[0].value == start.value);
}

TEST_CASE("measured phases: so many steps in a row, one after the other, and none after a phase whose step came") {
  const Trained three(when("gradient_norm", kAlways, 3));
  three.steps(0, 6);
  REQUIRE(three.run->phase_starts().size() == 1);
  CHECK(three.run->phase_starts()[0].step == 3);
  const Trained never(when("gradient_norm", 1e-30));
  never.steps(0, 6);
  CHECK(never.run->phase_starts().empty());
  check_same(never, [] {
    Trained plain(amp::recipe("mxfp4"));
    plain.steps(0, 6);
    return plain;
  }());
  const std::string second =
      R"(, {"when": {"quantity": "gradient_to_noise", "below": 1e30, "steps": 2}, "recipe": "mxfp8"})";
  const Trained both(when("gradient_norm", kAlways, 1, second));
  both.steps(0, 1);
  CHECK_FALSE(both.run->recipe_now().quantization->forward_x);
  both.steps(1, 6);  // in f32 there is no noise
  CHECK(both.run->phase_starts().size() == 1);
  const Trained late(when("gradient_norm", kAlways, 4, R"(, {"from": 2, "recipe": "mxfp8"})"));
  late.steps(0, 6);
  REQUIRE(late.run->phase_starts().size() == 1);
  CHECK(late.run->phase_starts()[0].phase == 1);
  CHECK(std::isnan(late.run->phase_starts()[0].value));
}

TEST_CASE("measured phases: the loss scale and micro-batches do not change what is measured") {
  const auto value = [](const Recipe& recipe, int parts) {
    const Trained t(recipe);
    for (int k = 0; k < parts; ++k) {
      const Tensor x = random({16, 32}, 0);
      t.run->backward(t.run->forward([&] { return square((*t.net)(x)).mean() * (1.0 / parts); }));
    }
    t.run->update();
    return t.run->phase_starts().at(0).value;
  };
  for (const char* quantity : {"gradient_to_noise", "gradient_norm"}) {
    CAPTURE(quantity);
    const Recipe plain = when(quantity, kAlways);
    Recipe scaled = plain;
    scaled.scaling = optim::GradScalerOptions{.init_scale = 1024};
    CHECK(value(scaled, 1) == doctest::Approx(value(plain, 1)).epsilon(1e-5));
  }
  CHECK(value(when("gradient_norm", kAlways), 4) ==
        doctest::Approx(value(when("gradient_norm", kAlways), 1)).epsilon(1e-5));
  // Four times the same part: the noise counts as independent, although here it is the same.
  const double once = value(when("gradient_to_noise", kAlways), 1);
  const double four = value(when("gradient_to_noise", kAlways), 4);
  CHECK(four > 1.5 * once);
  CHECK(four < 2.5 * once);
}

TEST_CASE("measured phases: a step with an overflow is not below the threshold") {
  Recipe recipe = when("gradient_norm", kAlways);
  recipe.scaling = optim::GradScalerOptions{};
  const Trained t(recipe);
  const Tensor x = random({16, 32}, 0);
  t.run->step([&] { return (*t.net)(x).mean() * HUGE_VAL; });
  CHECK(t.run->phase_starts().empty());
  t.step(1);
  CHECK(t.run->phase_starts().size() == 1);
}

TEST_CASE("measured phases: a resumed run has the bits of an unbroken one, and begins the phase in the same step") {
  const Recipe recipe = when("gradient_to_noise", kAlways, 3, R"(, {"last": 0.2, "recipe": "mxfp8"})");
  for (const int broken : {1, 2, 3, 4}) {
    CAPTURE(broken);
    const auto [whole, resumed] = whole_and_resumed(recipe, broken);
    check_same(resumed, whole);
    REQUIRE(resumed.run->phase_starts().size() == 2);
    CHECK(resumed.run->phase_starts()[0].step == 3);
    CHECK(resumed.run->phase_starts()[0].value == whole.run->phase_starts()[0].value);
  }
}

TEST_CASE("measured phases: operands that are kept as random codes count as exact") {
  // x is rounded at random and saved as codes; dy to nearest. W is the identity, so that y is the rounded x.
  nn::Linear net(16, 16, {.bias = false});
  {
    const NoGrad off;
    net.weight.copy_(eye(16));
  }
  Recipe r = amp::recipe("fp32");
  r.name = "random codes";
  const Quantizer random_x{.format = format("e2m1"), .rounding = {RoundingMode::stochastic}, .scaling = TensorScale{}};
  const Quantizer dy{.format = format("e2m1"), .scaling = TensorScale{}};
  r.quantization = amp::Quantization{.forward_x = random_x, .wgrad_x = random_x, .wgrad_dy = dy};
  r.schedule = {{.recipe = "fp32",
                 .when = amp::PhaseCondition{.quantity = MeasuredQuantity::gradient_to_noise, .below = kAlways}}};
  RecipeRun run(r, net, optim::SGDOptions{.lr = 0});
  const Tensor x = random({24, 16}, 1);
  const Tensor by = random({24, 16}, 2);
  Tensor codes;
  run.step([&] {
    const Tensor y = net(x);
    codes = y.detach().clone();
    return (y * by).sum();
  });
  CHECK_FALSE(same_bits(codes, x));
  REQUIRE(run.phase_starts().size() == 1);
  const auto product = [&](const Tensor& errors) { return matmul(errors.to(DType::f64).t(), codes.to(DType::f64)); };
  const Tensor exact = product(by);
  const Tensor given = product(fake_quantize(by, dy));
  CHECK(run.phase_starts()[0].value ==
        doctest::Approx(std::sqrt(squares(exact) / squares(given - exact))).epsilon(1e-4));
}

TEST_CASE("measured phases: a state in which another phase began by its `when` is refused, and nothing is taken") {
  const Trained measured(when("gradient_norm", kAlways));
  measured.steps(0, 2);
  StateDict state = measured.run->state_dict();
  CHECK(state.integer("phases.begun") == 1);
  for (const std::int64_t phase : {1, 7}) {
    CAPTURE(phase);
    state.set("phases.0.phase", static_cast<std::uint64_t>(phase));
    const Trained other(when("gradient_norm", kAlways, 1, R"(, {"last": 0.2, "recipe": "mxfp8"})"));
    CHECK(message_of([&] {
            other.run->load_state_dict(state);
          }).find(fmt::format("phase {} began by its `when`; the recipe 'mine' has none there", phase)) !=
          std::string::npos);
    CHECK(other.run->phase_starts().empty());
  }
}

TEST_CASE("measured phases: in files") {
  const Recipe r = when("gradient_to_noise", 1.732, 5);
  CHECK(r.schedule[0].when ==
        amp::PhaseCondition{.quantity = MeasuredQuantity::gradient_to_noise, .below = 1.732, .steps = 5});
  CHECK(amp::recipe_from_json(amp::to_json(r)).schedule == r.schedule);
  CHECK(amp::to_json(r).find("\"from\"") == std::string::npos);
}
