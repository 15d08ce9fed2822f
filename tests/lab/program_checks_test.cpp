// Trainings that fail in fp32, each for one planted reason. Experiments name it, and nothing else.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <gradual/gradual.h>
#include <gradual/lab/lab.h>
#include <gradual/lab/odd_samples.h>
#include <gradual/lab/program_checks.h>
#include <gradual/lab/target_checks.h>
#include <gradual/lab/verdict.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comparison.h"

using namespace gradual;
using inspect::Cause;

namespace {

data::Split digits() { return data::split(data::digits(), 1437, 0); }

// The digits with one sample's inputs multiplied.
data::Split with_row(std::int64_t row, double factor) {
  data::Split split = digits();
  split.train.inputs = split.train.inputs.clone();
  split.train.inputs.narrow(0, row, 1).mul_(factor);
  return split;
}

data::Split shuffled() {
  data::Split split = digits();
  Generator generator(3);
  split.train.targets = index_select(split.train.targets, 0, randperm(split.train.size(), generator));
  return split;
}

// Doubles, with a gradient of its own.
struct Doubled : Function {
  double slope;
  explicit Doubled(double own) : slope(own) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& x) override { return {x[0] * 2}; }
  std::vector<Tensor> backward(const std::vector<Tensor>& dy) override { return {dy[0] * slope}; }
  std::string name() const override { return "doubled"; }
};

struct WithFunction : nn::Module {
  double slope;
  nn::Linear& in = register_module("in", nn::Linear(64, 64));
  nn::Linear& out = register_module("out", nn::Linear(64, 10));
  explicit WithFunction(double own) : slope(own) {}
  Tensor forward(const Tensor& x) override {
    const Tensor logits = out(relu(in(x.reshape({x.size(0), 64}))));
    return apply(std::make_shared<Doubled>(slope), {logits})[0];
  }
};

// The function between both layers: what comes after it learns, whatever its gradient is.
struct FunctionBetween : nn::Module {
  double slope;
  nn::Linear& in = register_module("in", nn::Linear(64, 64));
  nn::Linear& out = register_module("out", nn::Linear(64, 10));
  explicit FunctionBetween(double own) : slope(own) {}
  Tensor forward(const Tensor& x) override {
    const Tensor h = relu(in(x.reshape({x.size(0), 64})));
    return out(apply(std::make_shared<Doubled>(slope), {h})[0]);
  }
};

lab::Options options(const std::string& optimizer, double lr, int epochs = 3) {
  lab::Options o;
  o.optimizer = optimizer;
  o.lr = lr;
  o.epochs = epochs;
  return o;
}

// The findings of fp32.
std::vector<lab::Finding> findings(const lab::MakeModel& model, const data::Split& data, const lab::Options& o) {
  const auto results = lab::compare(model, data, {amp::recipe("fp32"), amp::recipe("amp-bf16")}, "", o);
  MESSAGE(to_string(results[0].verdict));
  for (const lab::Finding& f : results[0].findings) MESSAGE("   " << f.op << " | " << f.site << " | " << to_string(f));
  CHECK(results[1].verdict.kind == lab::VerdictKind::not_precision);
  REQUIRE(!results[0].findings.empty());
  REQUIRE(!results[1].findings.empty());
  CHECK(results[1].findings[0].cause == results[0].findings[0].cause);
  for (const lab::Finding& f : results[0].findings) CHECK_FALSE(f.precision);
  return results[0].findings;
}

lab::Finding only_finding(const lab::MakeModel& model, const data::Split& data, const lab::Options& o, Cause cause) {
  const std::vector<lab::Finding> all = findings(model, data, o);
  REQUIRE(!all.empty());
  CHECK(all[0].cause == cause);
  for (const lab::Finding& f : all)
    for (const Cause other :
         {Cause::wrong_gradient, Cause::broken_sample, Cause::labels, Cause::learning_rate, Cause::small_rate})
      if (other != cause) CHECK(f.cause != other);
  return all[0];
}

}  // namespace

TEST_CASE("fp32 fails: the backward of a user's function has the wrong sign") {
  const lab::MakeModel wrong = [] { return std::make_shared<WithFunction>(-2.0); };
  const lab::Finding f = only_finding(wrong, digits(), options("adamw", 0), Cause::wrong_gradient);
  CHECK(f.op == "doubled");
  CHECK(f.site.starts_with("program_checks_test.cpp:"));
}

TEST_CASE("fp32 fails: a backward that gives 0 is a wrong gradient, not only zeros") {
  const lab::MakeModel lost = [] { return std::make_shared<WithFunction>(0.0); };
  const lab::Finding f = only_finding(lost, digits(), options("adamw", 0), Cause::wrong_gradient);
  CHECK(f.op == "doubled");
}

TEST_CASE("fp32 learns without the gradients that a function lost: they are named, for every recipe") {
  for (const char* optimizer : {"adamw", "sgd"}) {
    const lab::MakeModel lost = [] { return std::make_shared<FunctionBetween>(0.0); };
    const auto results =
        lab::compare(lost, digits(), {amp::recipe("fp32"), amp::recipe("tf32")}, "", options(optimizer, 0));
    CHECK(results[0].verdict.kind == lab::VerdictKind::baseline);
    CHECK_FALSE(results[0].verdict.own);
    for (const lab::Result& r : results) {
      REQUIRE(r.findings.size() == 1);
      CHECK(r.findings[0].cause == Cause::wrong_gradient);
      CHECK(r.findings[0].op == "doubled");
      CHECK_FALSE(r.findings[0].precision);
      CHECK(r.findings[0].sentence.find("is 0, and along a random direction") != std::string::npos);
    }
    CHECK(lab::is_alarm(results[1]));
    const lab::MakeModel right = [] { return std::make_shared<FunctionBetween>(2.0); };
    for (const lab::Result& r : lab::compare(right, digits(), {amp::recipe("fp32")}, "", options(optimizer, 0)))
      CHECK(r.findings.empty());
  }
}

TEST_CASE("each parameter that may have lost its gradient is compared, of any number") {
  struct Wide : nn::Module {
    std::vector<nn::Linear*> layers;
    Wide() {
      for (int i = 0; i < 20; ++i) layers.push_back(&register_module(fmt::format("l{}", i), nn::Linear(64, 10)));
    }
    Tensor forward(const Tensor& x) override {
      const Tensor rows = x.reshape({x.size(0), 64});
      Tensor sum = apply(std::make_shared<Doubled>(0), {(*layers[2])(rows)})[0];
      for (std::size_t i = 0; i < layers.size(); ++i)
        if (i != 2) sum = sum + (*layers[i])(rows);
      return sum;
    }
  };
  const lab::MakeModel wide = [] { return std::make_shared<Wide>(); };
  inspect::Update update;
  update.parameter = "l2.weight";
  update.elements = 640;
  const auto found = lab::lost_gradient(wide, digits(), 0, options("adamw", 0), {update});
  REQUIRE(found);
  CHECK(found->op == "doubled");
}

TEST_CASE("fp32 fails: one row of the data") {
  const lab::Finding f = only_finding(gradual::test::mlp, with_row(17, 1e6), options("sgd", 0), Cause::broken_sample);
  CHECK(f.site == "sample 17");
}

TEST_CASE("fp32 fails: the rate is a thousand times too small, whatever else stands out") {
  only_finding(gradual::test::mlp, digits(), options("adamw", 2e-6), Cause::small_rate);
  const lab::MakeModel right = [] { return std::make_shared<WithFunction>(2.0); };
  only_finding(right, with_row(17, 30), options("adamw", 2e-6), Cause::small_rate);
}

TEST_CASE("fp32 fails: the rate is too large") {
  only_finding(gradual::test::mlp, digits(), options("sgd", 2), Cause::learning_rate);
  only_finding(gradual::test::mlp, with_row(17, 30), options("adamw", 0.5), Cause::learning_rate);
}

TEST_CASE("fp32 fails: shuffled labels") {
  const lab::Finding f = only_finding(gradual::test::mlp, shuffled(), options("adamw", 0), Cause::labels);
  CHECK(f.sentence.find("nearest sample") != std::string::npos);
}

TEST_CASE("fp32 fails: shuffled labels that it knows by heart") {
  const auto results = lab::compare(gradual::test::mlp, shuffled(), {amp::recipe("fp32")}, "", options("adamw", 0, 12));
  CHECK(to_string(results[0].verdict) == "baseline, no learning");
  REQUIRE(!results[0].findings.empty());
  CHECK(results[0].findings[0].cause == Cause::labels);
}

TEST_CASE("where fp32 knows shuffled labels by heart, so does a recipe: it is no comparison of two that learn") {
  const auto results =
      lab::compare(gradual::test::mlp, shuffled(), {amp::recipe("amp-bf16")}, "", options("adamw", 0, 12));
  CHECK(results[0].verdict.kind == lab::VerdictKind::not_precision);
  REQUIRE(!results[0].findings.empty());
  CHECK(results[0].findings[0].cause == Cause::labels);
}

TEST_CASE("fp32 learns: nothing is said against the program") {
  for (const data::Split& split : {digits(), with_row(17, 30)}) {
    const auto results = lab::compare(gradual::test::mlp, split, {amp::recipe("fp32")}, "", options("adamw", 0));
    CHECK(to_string(results[0].verdict) == "baseline");
    CHECK(results[0].findings.empty());
  }
}

TEST_CASE("fp32 fails: a target that is NaN is the data's fault") {
  data::Split split = lab::data_for("regression").load(0);
  split.train.targets = split.train.targets.clone();
  split.train.targets.narrow(0, 5, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  const lab::LabData data(split);
  const auto model = lab::model_for("mlp", split.train);
  const auto results = lab::compare(model, data, {amp::recipe("fp32")}, "", options("adamw", 0, 1));
  REQUIRE(!results[0].findings.empty());
  CHECK(results[0].findings[0].cause == Cause::data);
}

TEST_CASE("a sample that stands out by its inputs, its target or its loss is found; usual ones are not") {
  const lab::Options o = options("sgd", 0, 2);
  const auto odd = [&](const data::Split& split) { return lab::odd_samples(gradual::test::mlp, split, 0, o, {}); };
  CHECK(odd(digits()).empty());
  const auto one = odd(with_row(100, 1e3));
  REQUIRE(one.size() == 1);
  CHECK(one[0].index == 100);
  const data::Split rest = lab::without(with_row(100, 1e3), {100}).load(0);
  CHECK(rest.train.size() == 1436);
  CHECK(odd(rest).empty());
}

TEST_CASE("a jump of the loss at the same sample in every epoch names it") {
  const data::Split split = digits();
  const lab::Options o = options("sgd", 0, 4);
  lab::Result run;
  data::DataLoader loader(split.train, {.batch = o.batch, .shuffle = true, .seed = 0});
  const Tensor sample = split.train.inputs.select(0, 321);
  data::Batch batch;
  for (std::int64_t i = 0; i < 4 * loader.size(); ++i) {
    if (!loader.next(batch)) loader.next(batch);
    const bool here = [&] {
      for (std::int64_t k = 0; k < batch.size(); ++k)
        if (batch.inputs.select(0, k).to_vector<float>() == sample.to_vector<float>()) return true;
      return false;
    }();
    run.curve.loss.push_back(here ? 9 : 1 + 0.01 * static_cast<double>(i % 7));
  }
  const auto odd = lab::odd_samples(gradual::test::mlp, split, 0, o, run);
  REQUIRE(!odd.empty());
  CHECK(std::ranges::any_of(odd, [](const lab::OddSample& s) { return s.index == 321; }));
}

TEST_CASE("the nearest sample tells the label of a digit, and not a shuffled one") {
  const auto given = lab::nearest_targets(digits().train);
  REQUIRE(given);
  CHECK(given->tells);
  CHECK(given->nearest > 0.9);
  const auto mixed = lab::nearest_targets(shuffled().train);
  REQUIRE(mixed);
  CHECK_FALSE(mixed->tells);
  const auto regression = lab::nearest_targets(lab::data_for("regression").load(0).train);
  REQUIRE(regression);
  CHECK(regression->tells);
}

TEST_CASE("the tokens before it tell a target of a sequence, and not a shuffled one") {
  const std::string sentence =
      "the quick brown fox jumps over the lazy dog and the small cat sleeps under the old tree. ";
  std::string text;
  for (int i = 0; i < 20; ++i) text += sentence;
  data::Dataset train = data::make_text_dataset(text, {.context = 16}).train;
  const auto given = lab::nearest_targets(train);
  REQUIRE(given);
  CHECK(given->tells);
  CHECK(given->nearest > 0.8);
  Generator generator(3);
  const std::int64_t n = train.targets.numel();
  train.targets = index_select(train.targets.reshape({n}), 0, randperm(n, generator)).reshape(train.targets.sizes());
  const auto mixed = lab::nearest_targets(train);
  REQUIRE(mixed);
  CHECK_FALSE(mixed->tells);
}

TEST_CASE("targets that a loss ignores tell nothing of shuffled answers") {
  data::Dataset train = data::addition(2).problems;
  const auto given = lab::nearest_targets(train);
  REQUIRE(given);
  CHECK(given->tells);
  std::vector<std::int64_t> targets = train.targets.to_vector<std::int64_t>();
  std::vector<std::size_t> counted;
  for (std::size_t i = 0; i < targets.size(); ++i)
    if (targets[i] != -100) counted.push_back(i);
  Generator generator(3);
  const std::vector<std::int64_t> order = randperm(std::ssize(counted), generator).to_vector<std::int64_t>();
  const std::vector<std::int64_t> before = targets;
  for (std::size_t i = 0; i < counted.size(); ++i)
    targets[counted[i]] = before[counted[static_cast<std::size_t>(order[i])]];
  train.targets = from_data(targets, train.targets.sizes(), {.dtype = DType::i64});
  const auto mixed = lab::nearest_targets(train);
  REQUIRE(mixed);
  CHECK_FALSE(mixed->tells);
  CHECK(mixed->random < 0.5);
  train.targets.fill_(-100);
  CHECK_FALSE(lab::nearest_targets(train));
}

TEST_CASE("positions of sequences are drawn from all of them, whatever their length divides") {
  constexpr std::int64_t kLength = 8;
  constexpr std::int64_t kSequences = 2048;  // 16 positions for each that is looked at
  Generator generator(3);
  const Tensor inputs = randint(0, 10, {kSequences, kLength}, {.dtype = DType::i64}, generator);
  // The token before; there is none before the first one.
  const Tensor first = randint(0, 10, {kSequences, 1}, {.dtype = DType::i64}, generator);
  data::Dataset train{.inputs = inputs, .targets = cat({first, inputs.narrow(1, 0, kLength - 1)}, 1), .classes = 10};
  const auto near = lab::nearest_targets(train);
  REQUIRE(near);
  CHECK(near->tells);
  CHECK(near->nearest > 0.5);
}

TEST_CASE("targets that are a random function of the inputs exist for images, numbers and tokens") {
  for (const char* name : {"digits", "regression", "addition", "brackets"}) {
    CAPTURE(name);
    const lab::LabData data = lab::data_for(name);
    const auto other = lab::taught(data, 0);
    REQUIRE(other);
    const data::Split given = data.load(0);
    const data::Split taught = other->load(0);
    CHECK(taught.train.targets.sizes() == given.train.targets.sizes());
    CHECK(taught.test.targets.dtype() == given.test.targets.dtype());
  }
}
