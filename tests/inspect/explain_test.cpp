// inspect::explain() of loops of one's own.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/inspect/explain.h>
#include <gradual/lab/models.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "between.h"

using namespace gradual;
using inspect::Cause;
using test::Between;

namespace {

const data::Dataset& train() {
  static const data::Split split = data::split(data::digits(), 1437, 0);
  return split.train;
}

struct Loop {
  std::function<std::shared_ptr<nn::Module>()> model = [] { return lab::make_mlp(64, 10); };
  data::Dataset data = train();
  double lr = 2e-3;
  int epochs = 1;

  void operator()(inspect::Collector& c) const {
    const auto m = model();
    amp::RecipeRun run(c.recipe(), *m, optim::AdamWOptions{.lr = lr});
    data::DataLoader loader(data, {.batch = 64, .shuffle = true});
    for (int epoch = 0; epoch < epochs; ++epoch)
      for (const data::Batch& b : loader)
        if (!c.step(run, [&] { return cross_entropy((*m)(b.inputs), b.targets); })) return;
  }
};

inspect::Explained explained(const std::string& recipe, const Loop& loop, int trials = 6) {
  manual_seed(0);
  const inspect::Explained e = inspect::explain(amp::recipe(recipe), loop, {.trials = trials});
  MESSAGE(to_string(e));
  return e;
}

struct Negated : Function {
  std::vector<Tensor> forward(const std::vector<Tensor>& x) override { return {x[0] * 3}; }
  std::vector<Tensor> backward(const std::vector<Tensor>& dy) override { return {dy[0] * -3}; }
  std::string name() const override { return "negated"; }
};

}  // namespace

TEST_CASE("a loop that diverges is explained, with its cure tried") {
  const inspect::Explained e = explained("fp16-pure", {});
  CHECK(e.fails);
  CHECK_FALSE(e.fp32_fails);
  CHECK(e.step == 1);
  REQUIRE(!e.findings.empty());
  CHECK(e.findings[0].cause == Cause::adam_eps);
  CHECK(e.findings[0].undone == 1);
  REQUIRE(!e.findings[0].cures.empty());
}

TEST_CASE("a loop with a slow loss is explained by what undoes it") {
  const inspect::Explained e = explained("e3m2", {.epochs = 2}, 8);
  CHECK(e.fails);
  CHECK(e.step == -1);
  REQUIRE(!e.findings.empty());
  CHECK(e.findings[0].cause == Cause::gradient_underflow);
  REQUIRE(e.findings[0].undone);
  CHECK(*e.findings[0].undone > 0.5);
}

TEST_CASE("a loop that trains as fp32 does has no findings, and is run twice alone") {
  const inspect::Explained e = explained("tf32", {});
  CHECK_FALSE(e.fails);
  CHECK(e.findings.empty());
  CHECK(e.runs == 2);
}

TEST_CASE("observation changes no bit of a loop") {
  std::vector<double> plain;
  {
    manual_seed(0);
    const auto m = lab::make_mlp(64, 10);
    amp::RecipeRun run(amp::recipe("amp-bf16"), *m, optim::AdamWOptions{.lr = 2e-3});
    data::DataLoader loader(train(), {.batch = 64, .shuffle = true});
    for (const data::Batch& b : loader)
      plain.push_back(run.step([&] { return cross_entropy((*m)(b.inputs), b.targets); }).loss.item());
  }
  CHECK(explained("amp-bf16", {}).losses == plain);
}

TEST_CASE("a loop whose data hold NaN is the data's fault; one whose backward is wrong the function's") {
  Loop bad;
  bad.data.inputs = bad.data.inputs.clone();
  bad.data.inputs.narrow(0, 3, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  const inspect::Explained data = explained("amp-bf16", bad);
  REQUIRE(!data.findings.empty());
  CHECK(data.findings[0].cause == Cause::data);

  const auto wrong = [](const Tensor& x) { return relu(apply(std::make_shared<Negated>(), {x})[0]); };
  const inspect::Explained code = explained("amp-bf16", {.model = [&] { return std::make_shared<Between>(wrong); }});
  CHECK(code.fp32_fails);
  REQUIRE(!code.findings.empty());
  CHECK(code.findings[0].cause == Cause::wrong_gradient);
  CHECK(code.findings[0].op == "negated");
}

TEST_CASE("a loop that does not begin anew, or makes no step, is an Error that says so") {
  const auto m = lab::make_mlp(64, 10);
  const auto goes_on = [&](inspect::Collector& c) {
    amp::RecipeRun run(c.recipe(), *m, optim::SGDOptions{.lr = 10});
    const data::Batch b = data::take(train(), {0, 1, 2, 3});
    for (int i = 0; i < 4; ++i) c.step(run, [&] { return cross_entropy((*m)(b.inputs), b.targets); });
  };
  CHECK_THROWS_WITH_AS(inspect::explain(amp::recipe("amp-bf16"), goes_on), doctest::Contains("must begin anew"), Error);
  CHECK_THROWS_WITH_AS(inspect::explain(amp::recipe("amp-bf16"), [](inspect::Collector&) {}),
                       doctest::Contains("made no step"), Error);
}

// A model that is trained on from one pass to the next learns in both: no loss of a replay tells.
TEST_CASE("a loop that goes on with the parameters of the pass before is an Error that names one") {
  for (const char* recipe : {"tf32", "amp-bf16", "fp8-current"}) {
    manual_seed(0);
    const auto m = lab::make_mlp(64, 10);
    const auto goes_on = [&](inspect::Collector& c) {
      amp::RecipeRun run(c.recipe(), *m, optim::SGDOptions{.lr = 0.1});
      data::DataLoader loader(train(), {.batch = 64, .shuffle = true});
      for (const data::Batch& b : loader)
        if (!c.step(run, [&] { return cross_entropy((*m)(b.inputs), b.targets); })) return;
    };
    CHECK_THROWS_WITH_AS(inspect::explain(amp::recipe(recipe), goes_on),
                         doctest::Contains("called again under fp32 and starts with another"), Error);
  }
}

TEST_CASE("a loop whose model stays half from the pass before is told to make it anew") {
  for (const char* recipe : {"fp16-pure", "bf16-pure", "bf16-master"}) {
    const auto m = lab::make_mlp(64, 10);
    const auto goes_on = [&](inspect::Collector& c) {
      amp::RecipeRun run(c.recipe(), *m, optim::SGDOptions{.lr = 0.1});
      const data::Batch b = data::take(train(), {0, 1, 2, 3});
      c.step(run, [&] { return cross_entropy((*m)(b.inputs), b.targets); });
    };
    CHECK_THROWS_WITH_AS(inspect::explain(amp::recipe(recipe), goes_on),
                         doctest::Contains("if the model was made outside of the loop, make it inside"), Error);
  }
}

TEST_CASE("an Error of the loop itself in a replay is told first") {
  int calls = 0;
  const auto fails_later = [&](inspect::Collector& c) {
    if (++calls > 1) throw Error("mine: no such file");
    const auto m = lab::make_mlp(64, 10);
    amp::RecipeRun run(c.recipe(), *m, optim::SGDOptions{.lr = 0.1});
    const data::Batch b = data::take(train(), {0, 1, 2, 3});
    c.step(run, [&] { return cross_entropy((*m)(b.inputs), b.targets); });
  };
  try {
    inspect::explain(amp::recipe("amp-bf16"), fails_later);
    FAIL("no Error");
  } catch (const Error& e) { CHECK(std::string(e.what()).starts_with("mine: no such file")); }
}

TEST_CASE("a loop that begins anew is taken, whatever its recipe keeps of the weights") {
  for (const char* recipe : {"fp16-pure", "bf16-pure", "fp8-current", "pure:e4m3"})
    CHECK_NOTHROW(explained(recipe, {}, 1));
}
