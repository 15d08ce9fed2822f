// A step happens whole or not at all: what saturation hides from a loss scale, losses that throw, sums of gradients.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "../../amp/quantization.h"
#include "../../amp/quantized_recipes.h"
#include "../../amp/recipe.h"
#include "../../core/ops/ops.h"
#include "../../nn/dropout.h"
#include "../../nn/linear.h"
#include "../../nn/norm.h"
#include "../../optim/adam.h"
#include "../../optim/sgd.h"
#include "recorder.h"
#include "support.h"

using namespace gradual;
using amp::Recipe;
using amp::RecipeRun;

namespace {

constexpr double kInf = HUGE_VAL;

struct Two : nn::Module {
  explicit Two(bool bias) : biased(bias) {}
  bool biased;
  nn::Linear& a = register_module("a", nn::Linear(32, 32, {.bias = biased}));
  nn::Linear& b = register_module("b", nn::Linear(32, 32, {.bias = biased}));
  Tensor forward(const Tensor& x) override { return b(relu(a(x))); }
};

// All that quantise operands, and emulated ones whose formats lack Inf, NaN or both.
std::vector<std::string> quantised_names() {
  std::vector<std::string> names = {"e3m2", "e2m1",     "e4m3",    "q2.13",       "posit8",          "takum8",
                                    "e5m2", "mx:q2.13", "mx:e4m3", "e4m2:to-odd", "e3m2:stochastic", "binary8p3"};
  for (const std::string& name : amp::recipe_names())  // others have registered recipes that name their modules
    if (const auto q = amp::recipe(name).quantization; q && q->modules.empty()) names.push_back(name);
  return names;
}

Recipe scaled(const std::string& name) {
  Recipe r = amp::recipe(name);
  r.name = "scaled";
  r.scaling = optim::GradScalerOptions{.init_scale = 1024};
  return r;
}

std::vector<std::byte> bytes_of(const Tensor& t) {
  const Tensor c = t.detach().contiguous();
  std::vector<std::byte> out(c.nbytes());
  std::memcpy(out.data(), c.raw(), out.size());
  return out;
}

// All of a run's state, and the generator's.
void check_same(RecipeRun& a, RecipeRun& b) {
  const StateDict x = a.state_dict();
  const StateDict y = b.state_dict();
  REQUIRE(x.size() == y.size());
  for (const auto& entry : x) {
    const std::string& name = entry.name;
    CAPTURE(name);
    if (const Tensor* t = std::get_if<Tensor>(&entry.value)) CHECK(bytes_of(*t) == bytes_of(y.tensor(name)));
    else CHECK(describe(entry.value) == describe(y.at(name)));
  }
}

struct Drops : nn::Module {
  nn::Linear& a = register_module("a", nn::Linear(8, 8));
  nn::BatchNorm1d& norm = register_module("norm", nn::BatchNorm1d(8));
  nn::Dropout& drop = register_module("drop", nn::Dropout(0.5));
  nn::Linear& b = register_module("b", nn::Linear(8, 8));
  Tensor forward(const Tensor& x) override { return b(drop(norm(a(x)))); }
};

}  // namespace

TEST_CASE("a loss scale sees Inf and NaN that any quantised recipe hides: in errors, activations and weights") {
  for (const std::string& name : quantised_names())
    for (const bool bias : {false, true})
      for (const double bad : {kInf, -kInf, std::nan("")})
        for (const char* where : {"error", "activation", "weight"}) {
          CAPTURE(name);
          CAPTURE(bias);
          CAPTURE(bad);
          CAPTURE(where);
          manual_seed(0);
          Two net(bias);
          RecipeRun run(scaled(name), net, optim::SGDOptions{.lr = 0.01, .momentum = 0.9});
          const Tensor x = randn({32, 32});
          CHECK(run.step([&] { return square(net(x)).mean(); }).result.applied());
          const std::string place = where;
          Tensor factor = ones({32, 32});
          Tensor input = x.clone();
          if (place == "error") factor[3][4].fill_(bad);
          if (place == "activation") input[3][4].fill_(bad);
          if (place == "weight") {
            const NoGrad off;
            net.a.weight.detach()[3][4].fill_(bad);
          }
          const auto before = bytes_of(net.b.weight);
          const double scale = run.loss_scale();
          const amp::RunStep step = run.step([&] { return (net(input) * factor).sum(); });
          CHECK(step.result.skipped());
          CHECK(bytes_of(net.b.weight) == before);
          CHECK(run.loss_scale() == scale / 2);
          if (place == "weight") continue;
          const amp::RunStep next = run.step([&] { return square(net(x)).mean(); });
          CHECK(next.result.applied());
          CHECK(next.result.hidden() == 0);
        }
}

TEST_CASE("backward does not look again for the Inf that forward has looked for") {
  manual_seed(0);
  Two net(false);
  RecipeRun run(scaled("mxfp8"), net, optim::SGDOptions{.lr = 0.01});
  const Tensor x = randn({32, 32});
  run.step([&] { return square(net(x)).mean(); });
  Recorder recorder;
  run.step([&] { return square(net(x)).mean(); });
  const auto looks = std::ranges::count_if(recorder.seen, [](const Recorder::Seen& s) {
    return s.op == OpId::logical_not && s.cause == "the loss scale's check";
  });
  CHECK(looks == 4 + 3);  // x and w of two layers; dy for both weights, and for the activation between the layers
}

TEST_CASE("which quantizers hide Inf and NaN") {
  const auto forward = [](const char* name) { return *amp::recipe(name).quantization->forward_x; };
  for (const char* name : {"fp8-current", "fp8-delayed", "nvfp4", "msamp-o1", "e3m2", "q2.13", "int8", "mxfp8"})
    CHECK_MESSAGE(amp::hides_nonfinite(forward(name)), name);
  for (const char* name : {"e5m10", "fp8-rowwise"}) CHECK_MESSAGE(!amp::hides_nonfinite(forward(name)), name);
}

TEST_CASE("a loss scale with results that hide what it looks for is a contradiction") {
  Recipe r = amp::recipe("pure:q2.13");
  r.name = "mine";
  r.scaling.emplace();
  CHECK_THROWS_WITH_AS(amp::check_valid(r), doctest::Contains("recipe 'mine': a loss scale skips steps"), Error);
  r = amp::recipe("pure:e5m10");
  r.name = "mine";
  r.scaling.emplace();
  CHECK_NOTHROW(amp::check_valid(r));
}

TEST_CASE("a loss or a gradient that throws leaves the run as it was") {
  for (const char* name : {"fp32", "fp8-delayed", "e4m2:stochastic", "amp-fp16", "bf16-master"})
    for (const char* where : {"loss", "gradient"}) {
      CAPTURE(name);
      CAPTURE(where);
      manual_seed(1);
      Drops ours, theirs;
      theirs.load_state_dict(ours.state_dict());
      RecipeRun run(amp::recipe(name), ours, optim::AdamWOptions{});
      RecipeRun control(amp::recipe(name), theirs, optim::AdamWOptions{});
      const Tensor x = randn({4, 8});
      const Tensor huge = x * 1000;
      Generator generator(7);
      Generator other(7);
      const auto step = [&](RecipeRun& r, Drops& net, Generator& g) {
        const GeneratorScope scope(g);
        r.step([&] { return square(net(x)).mean(); });
      };
      const auto both = [&] {
        step(run, ours, generator);
        step(control, theirs, other);
      };
      both();
      both();
      {
        const GeneratorScope scope(generator);
        const std::string place = where;
        CHECK_THROWS_AS(run.step([&] {
          const Tensor y = ours(huge);
          if (place == "loss") throw_error("no loss");
          y.register_hook([](const Tensor&) -> Tensor { throw_error("no gradient"); });
          return square(y).mean() + square(ours(huge)).mean();
        }),
                        Error);
      }
      CHECK(generator.state() == other.state());
      for (const auto& [path, p] : ours.named_parameters()) CHECK_FALSE(p.grad().defined());
      check_same(run, control);
      both();
      both();
      check_same(run, control);
    }
}

TEST_CASE("a forward that throws outside of step() leaves histories, buffers and the generator") {
  manual_seed(1);
  Drops ours, theirs;
  theirs.load_state_dict(ours.state_dict());
  RecipeRun run(amp::recipe("fp8-delayed"), ours, optim::SGDOptions{});
  RecipeRun control(amp::recipe("fp8-delayed"), theirs, optim::SGDOptions{});
  const Tensor x = randn({4, 8});
  const RandomKey key = default_generator().state();
  CHECK_THROWS_AS(run.forward([&]() -> Tensor {
    ours(x * 1e4);
    throw_error("no loss");
  }),
                  Error);
  CHECK(default_generator().state() == key);
  run.step([&] { return square(ours(x)).mean(); });
  default_generator().set_state(key);
  control.step([&] { return square(theirs(x)).mean(); });
  check_same(run, control);
}

TEST_CASE("gradients over micro-batches add in f32 with masters, and in the storage dtype where a recipe says so") {
  struct Row {
    const char* recipe;
    std::optional<autograd::GradientSums> gradients;
    double update;
  };
  using enum autograd::GradientSums;
  for (const Row& row : {Row{"bf16-master", {}, 1.5}, Row{"bf16-master", storage, 1}, Row{"bf16-pure", {}, 1},
                         Row{"bf16-pure", f32, 1.5}}) {
    CAPTURE(row.recipe);
    Recipe r = amp::recipe(row.recipe);
    r.name = "mine";
    r.gradients = row.gradients;
    nn::Linear layer(1, 1);
    layer.bias.detach().fill_(0);
    RecipeRun run(r, layer, optim::SGDOptions{.lr = 1});
    const Tensor x = ones({1, 1});
    const auto one = [&](double c) { run.backward(run.forward([&] { return (layer(x) * c).sum(); })); };
    one(1);
    for (int i = 0; i < 512; ++i) one(0x1p-10);
    run.update();
    CHECK(run.master_state_dict().tensor("bias").item() == -row.update);
  }
}

TEST_CASE("the field `gradients` of a recipe: what it means, its file, and where it contradicts") {
  using enum autograd::GradientSums;
  CHECK(gradient_sums(amp::recipe("bf16-master")) == f32);
  CHECK(gradient_sums(amp::recipe("fp16-master")) == f32);
  for (const char* name : {"fp32", "bf16-pure", "fp16-pure", "amp-bf16", "mxfp8"})
    CHECK(gradient_sums(amp::recipe(name)) == storage);
  const Recipe r = amp::recipe_from_json(R"({"name": "mine", "base": "bf16-master", "gradients": "storage"})");
  CHECK(r.gradients == storage);
  CHECK(amp::recipe_from_json(amp::to_json(r)).gradients == storage);
  CHECK(amp::to_json(amp::recipe("bf16-master")).find("gradients") == std::string::npos);
  CHECK(amp::recipe_from_json(R"({"name": "mine", "base": "bf16-pure", "gradients": "stochastic"})").gradients ==
        stochastic);
  CHECK_THROWS_WITH_AS(amp::recipe_from_json(R"({"name": "mine", "base": "bf16-master", "gradients": "f16"})"),
                       doctest::Contains("one of storage, f32"), Error);
  CHECK_THROWS_WITH_AS(amp::recipe_from_json(R"({"name": "mine", "gradients": "f32"})"),
                       doctest::Contains("mode full has f32 gradients"), Error);
}

TEST_CASE("a step's result tells of second moments that low precision broke") {
  struct Row {
    const char* recipe;
    double gradient;
    bool overflows, vanishes;
  };
  for (const Row& row : {Row{"f16", 1e4, true, false}, Row{"f16", 1e-3, false, true}, Row{"f16", 1, false, false},
                         Row{"bf16", 1e4, false, false}, Row{"f32", 1e-3, false, false}}) {
    CAPTURE(row.recipe);
    CAPTURE(row.gradient);
    Recipe r = amp::recipe("fp32");
    r.name = "mine";
    r.optimizer_state = dtype_from_name(row.recipe);
    nn::Linear layer(4, 2, {.bias = false});
    RecipeRun run(r, layer, optim::AdamOptions{.lr = 0.01});
    const Tensor x = ones({1, 4});
    const amp::RunStep step = run.step([&] { return (layer(x) * row.gradient).sum(); });
    const optim::MomentFaults faults = step.result.moments();
    CHECK(faults.overflowed == (row.overflows ? 8 : 0));
    CHECK(faults.vanished == (row.vanishes ? 8 : 0));
    CHECK(to_string(faults).empty() == (faults.all() == 0));
    if (faults.all() > 0) CHECK(faults.parameter == "weight");
  }
}
