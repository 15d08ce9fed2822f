// Recipes whose operands change their quantizers during a run.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../../amp/recipe.h"
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
      if (site->name == "a") all = {site->x.scale, site->w.scale, site->dy.scale};
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
    const Trained whole(recipe);
    whole.steps(0, broken);
    const StateDict state = whole.run->state_dict();
    const Trained resumed(recipe);
    resumed.run->load_state_dict(state);
    const RandomKey key = default_generator().state();
    resumed.steps(broken, 6);
    default_generator().set_state(key);
    whole.steps(broken, 6);
    check_same(resumed, whole);
  }
}

TEST_CASE("schedule: in a file, and what contradicts") {
  const Recipe r = from_json(R"([{"from": 3, "recipe": "fp32", "modules": ["a"]}, {"last": 0.25, "recipe": "mxfp8"}])");
  CHECK(r.schedule.size() == 2);
  CHECK(amp::recipe_from_json(amp::to_json(r)).schedule == r.schedule);
  CHECK(amp::to_json(amp::recipe("mxfp4")).find("schedule") == std::string::npos);
  const std::vector<std::pair<std::string, std::string>> rows = {
      {R"([{"from": 3}])", "\"recipe\" is missing"},
      {R"([{"recipe": "fp32"}])", "it has one of \"from\" and \"last\""},
      {R"([{"from": 3, "last": 0.5, "recipe": "fp32"}])", "it has one of \"from\" and \"last\""},
      {R"([{"last": 1.5, "recipe": "fp32"}])", "above 0 and at most 1"},
      {R"([{"last": 0, "recipe": "fp32"}])", "above 0 and at most 1"},
      {R"([{"from": -1, "recipe": "fp32"}])", "from is -1"},
      {R"([{"from": 3, "recipe": "fp32"}, {"from": 2, "recipe": "mxfp4"}])", "in the order of their steps"},
      {R"([{"from": 3, "recipe": "fp33"}])", "no recipe 'fp33'"},
      {R"({"from": 3})", "allowed is a list such as"},
      {R"([{"from": 3, "recipe": "fp32", "modules": "a"}])", "allowed is a list of texts"},
      {R"([{"from": 3, "recipe": "fp32", "step": 3}])", "unknown key \"step\""}};
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
