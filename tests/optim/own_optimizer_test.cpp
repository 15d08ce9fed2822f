// Optimizers written with ops: against PyTorch and the papers, in every way to update low-precision parameters, with
// the scaler, clipping, state dicts and recipes.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <gradual/amp/recipe.h>
#include <gradual/nn/linear.h>
#include <gradual/optim/clip.h>
#include <gradual/optim/grad_scaler.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "../../examples/own_optimizers.h"
#include "../support/source_dir.h"
#include "helpers.h"

using namespace gradual;
using namespace gradual::optim;
using namespace gradual::test;

namespace {

// SGD with momentum, as the fused row computes it.
struct Momentum : Optimizer {
  Momentum(std::vector<ParamGroup> groups, double lr, double momentum, const UpdateOptions& precision = {})
      : Optimizer("own-momentum", {"momentum"}, std::move(groups), {.lr = lr, .momentum = momentum}, precision) {}
  Tensor update(const Update& u) override {
    Tensor& m = u.state[0];
    m = u.step == 1 ? u.gradient : *u.group.momentum * m + u.gradient;
    return u.weight - *u.group.lr * m;
  }
};

Tensor wave(const Shape& shape, double (*f)(double), double shift) {
  Values values(static_cast<std::size_t>(numel(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = f(static_cast<double>(i) + shift);
  return from_data(values, shape, {.dtype = DType::f64});
}

std::vector<ParamGroup> group_of(const Tensor& p) { return {{.params = {p}, .names = {"w"}}}; }

struct Broken : Optimizer {
  explicit Broken(const Tensor& p, int how) : Optimizer("broken", {"s"}, group_of(p), {.lr = 1}, {}), how_(how) {}
  Tensor update(const Update& u) override {
    if (how_ == 0) return Tensor();
    if (how_ == 1) return u.weight.sum();
    u.state[0] = u.state[0].to(DType::f16);
    return u.weight + 1;
  }
  int how_;
};

}  // namespace

TEST_CASE("RMSprop and Muon written with ops take PyTorch's steps") {
  std::ifstream file(source_dir() + "/tests/golden/optimizers.json");
  const auto golden = nlohmann::json::parse(file);
  for (const auto& c : golden["cases"]) {
    const Shape shape{c["shape"][0].get<std::int64_t>(), c["shape"][1].get<std::int64_t>()};
    CAPTURE(c["name"].get<std::string>());
    const Tensor w = wave(shape, std::sin, 0).set_requires_grad();
    std::unique_ptr<Optimizer> optimizer;
    if (c["name"] == "muon")
      optimizer = std::make_unique<example::Muon>(group_of(w), ParamGroup{.lr = 0.02, .weight_decay = 0.1});
    else
      optimizer = std::make_unique<example::RMSProp>(group_of(w), ParamGroup{.lr = 0.01, .weight_decay = 0.1},
                                                     UpdateOptions{}, 0.9);
    for (int t = 1; t <= golden["steps"].get<int>(); ++t) {
      w.set_grad(wave(shape, std::cos, t));
      optimizer->step();
    }
    CHECK(max_difference(w.to_vector<double>(), c["weight"].get<Values>()) < 1e-10);
  }
}

TEST_CASE("Muon with its momentum in linear codes of 8 bits follows that of f32 and resumes to the bit") {
  UpdateOptions coded;
  coded.moments[0] = amp::recipe("muon8").quantization->moment1;
  // Of full rank: the nearest orthogonal matrix to one of low rank is decided by what rounding adds.
  const auto gradient = [](int step) {
    Generator g(static_cast<std::uint64_t>(step));
    return randn({64, 48}, {}, g);
  };
  const auto weight = [] { return wave({64, 48}, std::sin, 0).to(DType::f32).set_requires_grad(); };
  const Tensor exact = weight();
  const Tensor low = weight();
  const Tensor resumed = weight();
  example::Muon f32(group_of(exact), {.lr = 0.02});
  example::Muon codes(group_of(low), {.lr = 0.02}, coded);
  example::Muon second(group_of(resumed), {.lr = 0.02}, coded);
  for (int t = 1; t <= 20; ++t) {
    if (t == 11) {
      resumed.detach().copy_(low.detach());
      second.load_state_dict(codes.state_dict());
    }
    exact.set_grad(gradient(t));
    low.set_grad(gradient(t));
    resumed.set_grad(gradient(t));
    f32.step();
    codes.step();
    if (t >= 11) second.step();
  }
  const double moved = norm(exact.detach() - weight().detach()).item();
  const double off = norm(low.detach() - exact.detach()).item();
  CHECK(off > 0);
  CHECK(off < 0.1 * moved);
  CHECK(resumed.to_vector<float>() == low.to_vector<float>());
}

TEST_CASE("Lion written with ops follows its paper's formula") {
  const Tensor w = wave({7}, std::sin, 0).set_requires_grad();
  Values expected = w.to_vector<double>();
  Values m(7);
  example::Lion lion(group_of(w), {.lr = 0.01, .weight_decay = 0.1});
  for (int t = 1; t <= 6; ++t) {
    const Values g = wave({7}, std::cos, t).to_vector<double>();
    w.set_grad(wave({7}, std::cos, t));
    lion.step();
    for (std::size_t i = 0; i < m.size(); ++i) {
      const double c = 0.9 * m[i] + 0.1 * g[i];
      expected[i] -= 0.01 * ((c > 0) - (c < 0) + 0.1 * expected[i]);
      m[i] = 0.99 * m[i] + 0.01 * g[i];
    }
  }
  CHECK(max_difference(w.to_vector<double>(), expected) < 1e-14);
}

TEST_CASE("an update written with ops has the fused row's bits under masters, Kahan and none") {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const LowPrecisionUpdate update :
         {LowPrecisionUpdate::none, LowPrecisionUpdate::masters, LowPrecisionUpdate::kahan}) {
      CAPTURE(to_string(dtype));
      CAPTURE(to_string(update));
      const Values start = numbers(300, 1);
      const Tensor a = leaf(start, dtype);
      const Tensor b = leaf(start, dtype);
      Momentum own(group_of(a), 3e-3, 0.9, {.update = update});
      SGD fused(group_of(b), {.lr = 3e-3, .momentum = 0.9, .precision = {.update = update}});
      for (std::uint64_t step = 0; step < 8; ++step) {
        const Values g = numbers(300, 10 + step);
        set_gradient(a, g, dtype);
        set_gradient(b, g, dtype);
        own.step();
        fused.step();
        CHECK(same_bits(a, b));
        CHECK(same_bits(own.master(a), fused.master(b)));
      }
    }
}

TEST_CASE("a stochastic update written with ops arrives on average, and none is lost") {
  const Tensor p = leaf(Values(4000, 1.0), DType::bf16);
  Momentum own(group_of(p), 1, 0, {.update = LowPrecisionUpdate::stochastic, .seed = 3});
  for (int i = 0; i < 8; ++i) {
    set_gradient(p, Values(4000, 1.0 / 1024), DType::f32);
    own.step();
  }
  double mean = 0;
  for (const double v : p.to_vector<double>()) mean += v / 4000;
  CHECK(mean == doctest::Approx(1 - 8.0 / 1024).epsilon(3e-4));  // the spacing below 1 is 1/256
  const Tensor q = leaf(Values(4000, 1.0), DType::bf16);
  Momentum plain(group_of(q), 1, 0, {});
  set_gradient(q, Values(4000, 1.0 / 1024), DType::f32);
  plain.step();
  CHECK(q.to_vector<double>() == Values(4000, 1.0));
}

TEST_CASE("pure arithmetic rounds every op of an own update to the parameter's dtype") {
  const Tensor p = leaf({1, 2, 3}, DType::f16);
  Momentum own(group_of(p), 1e-5, 0.9, {.pure_arithmetic = true});
  set_gradient(p, {1, 1, 1}, DType::f16);
  own.step();
  CHECK(p.to_vector<double>() == Values{1, 2, 3});  // 1e-5 is below half a spacing
  CHECK(own.state_dict().tensor("params.0.momentum").dtype() == DType::f16);
}

TEST_CASE("the scaler skips an own optimizer's step, unscales and clips for it") {
  const Tensor p = leaf({1, 2, 3}, DType::f16);
  Momentum own(group_of(p), 0.5, 0.9, {.update = LowPrecisionUpdate::masters});
  GradScaler scaler({.init_scale = 4, .growth_interval = 100});
  const auto step = [&](const Values& gradient) {
    scaler.scale(from_data(Values{1}, {}, {}));
    set_gradient(p, gradient, DType::f16);
    const StepResult result = scaler.step(own);
    scaler.update();
    return result.applied();
  };
  CHECK(step({4, 8, -4}));
  CHECK(p.to_vector<double>() == Values{0.5, 1, 3.5});
  const StateDict before = own.state_dict();
  CHECK_FALSE(step({INFINITY, 1, 1}));
  CHECK(p.to_vector<double>() == Values{0.5, 1, 3.5});
  CHECK(own.state_dict().integer("params.0.steps") == 1);
  CHECK(scaler.scale() == 2);

  scaler.scale(from_data(Values{1}, {}, {}));
  set_gradient(p, {6, 8, 0}, DType::f16);  // 3, 4, 0 unscaled: norm 5
  scaler.unscale_(own);
  clip_grad_norm_(own, 1);
  scaler.step(own);
  const Values m = own.state_dict().tensor("params.0.momentum").to_vector<double>();
  CHECK(m[0] == doctest::Approx(0.9 * 1 + 0.6));
  CHECK(m[1] == doctest::Approx(0.9 * 2 + 0.8));
}

TEST_CASE("an own optimizer resumes from its state dict to the bit, and refuses that of another") {
  const auto make = [](const Tensor& p) {
    return std::make_unique<Momentum>(group_of(p), 1e-2, 0.9, UpdateOptions{.update = LowPrecisionUpdate::kahan});
  };
  const Tensor p = leaf(numbers(50, 1), DType::bf16);
  const Tensor q = leaf(Values(50, 0.0), DType::bf16);
  const auto own = make(p);
  const auto other = make(q);
  const auto step = [](Optimizer& o, const Tensor& w, std::uint64_t t) {
    set_gradient(w, numbers(50, t), DType::bf16);
    o.step();
  };
  for (std::uint64_t t = 0; t < 3; ++t) step(*own, p, t);
  {
    const NoGrad off;
    q.copy_(p);
  }
  other->load_state_dict(own->state_dict());
  for (std::uint64_t t = 3; t < 6; ++t) {
    step(*own, p, t);
    step(*other, q, t);
  }
  CHECK(same_bits(p, q));
  SGD sgd({leaf({1})}, {.lr = 1});
  CHECK(error_of([&] { sgd.load_state_dict(own->state_dict()); }) ==
        "load_state_dict: the state of 'own-momentum' does not fit 'sgd'");
}

TEST_CASE("what an update gives is checked before anything is written") {
  for (int how = 0; how < 3; ++how) {
    const Tensor p = leaf({1, 2});
    Broken broken(p, how);
    set_gradient(p, {1, 1});
    const std::string message = error_of([&] { broken.step(); });
    CAPTURE(message);
    CHECK(message.find(how == 2 ? "update() gave s [2] f16 for w; it must be [2] f32 on cpu"
                                : "update() gave a weight") != std::string::npos);
    CHECK(p.to_vector<double>() == Values{1, 2});
  }
}

namespace {

// Both state tensors change places, and the weight becomes what the second one was.
struct Swaps : Optimizer {
  explicit Swaps(const Tensor& p) : Optimizer("swaps", {"a", "b"}, group_of(p), {.lr = 1}, {}) {}
  Tensor update(const Update& u) override {
    if (u.step == 1) {
      u.state[0] = u.gradient;
      u.state[1] = 2 * u.gradient;
    }
    const Tensor old = u.state[1];
    std::swap(u.state[0], u.state[1]);
    return old;
  }
};

struct Named : Optimizer {
  Named(const Tensor& p, std::vector<std::string> state)
      : Optimizer("named", std::move(state), group_of(p), {.lr = 1}, {}) {}
};

struct WithStatistics : Optimizer {
  WithStatistics(const Tensor& p, std::vector<std::string> names)
      : Optimizer("observant", {"m"}, group_of(p), {.lr = 1}, {}), names_(std::move(names)) {}
  Tensor update(const Update& u) override { return u.weight + 1; }
  std::vector<Statistic> statistics(const Tensor&) const override {
    std::vector<Statistic> out;
    for (const std::string& name : names_) out.push_back({name, {2}});
    return out;
  }
  std::vector<std::string> names_;
};

}  // namespace

TEST_CASE("results of an update may lie in each other's memory") {
  const Tensor p = leaf({0, 0});
  Swaps swaps(p);
  set_gradient(p, {1, 3});
  swaps.step();
  CHECK(swaps.state_dict().tensor("params.0.a").to_vector<double>() == Values{2, 6});
  CHECK(p.to_vector<double>() == Values{2, 6});
  swaps.step();
  CHECK(swaps.state_dict().tensor("params.0.a").to_vector<double>() == Values{1, 3});
  CHECK(swaps.state_dict().tensor("params.0.b").to_vector<double>() == Values{2, 6});
  CHECK(p.to_vector<double>() == Values{1, 3});
}

TEST_CASE("state tensors have names that a state dict can tell apart") {
  const Tensor p = leaf({1});
  for (const char* name : {"steps", "master", "compensation", ""})
    CHECK(error_of([&] { Named(p, {name}); }).find("names differ, and none is '', steps, master or compensation") !=
          std::string::npos);
  CHECK(error_of([&] { Named(p, {"m", "m"}); }).find("names a state tensor 'm'") != std::string::npos);
  for (const std::vector<std::string>& names : {std::vector<std::string>{"m", "m.codes"}, {"m.codes", "m"}})
    CHECK(error_of([&] { Named(p, names); }).find("names a state tensor 'm.codes'; names differ") != std::string::npos);
  CHECK(error_of([&] {
          Named(p, {"a", "b", "c", "d", "e"});
        }) == "optimizer: named names 5 state tensors; allowed are at most 4");
}

TEST_CASE("statistics have names that a state dict can tell apart from those of other state") {
  const Tensor p = leaf({1});
  set_gradient(p, {1});
  const std::vector<std::vector<std::string>> bad = {{"m"}, {"steps"},   {"master"},      {"compensation"},
                                                     {""},  {"m.codes"}, {"m.quantizer"}, {"s", "s"}};
  for (const std::vector<std::string>& names : bad) {
    WithStatistics own(p, names);
    const std::string expected = fmt::format(
        "optimizer: observant names a statistic '{}'; names differ, and none is '', steps, master or compensation, "
        "nor that of a moment with .quantizer, .codes, .scales or .global_scale",
        names.back());
    CHECK(error_of([&] { own.step(); }) == expected);
    CHECK(error_of([&] { own.state_dict(); }) == expected);
    CHECK(p.item() == 1);
  }
  WithStatistics own(p, {"s", "m.0"});
  own.step();
  CHECK(own.state_dict().tensor("params.0.m.0").sizes() == Shape{2});
  CHECK(own.state_dict().tensor("params.0.m").sizes() == Shape{1});
}

TEST_CASE("a rate that was unset later is an Error, and a schedule needs one") {
  const Tensor p = leaf({1});
  SGD sgd({p}, {.lr = 1});
  set_gradient(p, {1});
  sgd.param_groups()[0].lr.reset();
  CHECK(error_of([&] { sgd.step(); }) == "optimizer: lr of group 0 is unset; assign a number");
  sgd.param_groups()[0].lr = NAN;
  CHECK(error_of([&] { sgd.step(); }) == "optimizer: lr nan is out of range; it must be at least 0 and finite");
}

TEST_CASE("a recipe run takes an optimizer's options, and functions that make an own optimizer") {
  for (const char* name : {"fp32", "amp-bf16", "fp16-master", "bf16-pure"}) {
    CAPTURE(name);
    const auto train = [&](const amp::MakeOptimizer& make) {
      manual_seed(1);
      nn::Linear net(4, 3);
      amp::RecipeRun run(amp::recipe(name), net, make);
      const Tensor x = random_tensor({5, 4}, 2, DType::f32);
      for (int i = 0; i < 3; ++i) run.step([&] { return net(x).square().mean(); });
      return net.weight.detach().clone();
    };
    CHECK(same_bits(train(SGDOptions{.lr = 0.1}), train([](auto groups, const UpdateOptions& precision) {
                      return std::make_unique<SGD>(std::move(groups), SGDOptions{.lr = 0.1, .precision = precision});
                    })));
    CHECK(same_bits(train(AdamWOptions{.lr = 0.1}), train([](auto groups, const UpdateOptions& precision) {
                      return std::make_unique<AdamW>(std::move(groups),
                                                     AdamWOptions{.lr = 0.1, .precision = precision});
                    })));
    const Tensor own = train([](auto groups, const UpdateOptions& precision) {
      return std::make_unique<example::Lion>(std::move(groups), ParamGroup{.lr = 0.1}, precision);
    });
    CHECK_FALSE(same_bits(own, train(AdamOptions{.lr = 0.1})));
  }
}

TEST_CASE("a rate that is NaN is an Error that names what is allowed") {
  const Tensor p = leaf({1});
  CHECK(error_of([&] { SGD({p}, {.lr = NAN}); }) ==
        "optimizer: lr nan is out of range; it must be at least 0 and finite");
  CHECK(error_of([&] { Adam({p}, {.beta1 = NAN}); }) == "optimizer: beta1 nan is out of range; it must be in [0, 1)");
}
