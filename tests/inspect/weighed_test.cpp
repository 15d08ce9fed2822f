// Causes that trials decide: the run is replayed with one thing exact, and what that undoes of the failure is the weight
// of the cause. Thresholds only nominate.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/inspect/diagnosis.h>
#include <gradual/inspect/intervention.h>
#include <gradual/inspect/shadow.h>
#include <gradual/lab/intervention.h>
#include <gradual/lab/lab.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

using namespace gradual;
using inspect::Cause;
using inspect::ExactPart;

namespace {

data::Split digits() { return data::split(data::digits(), 1437, 0); }
std::shared_ptr<nn::Module> mlp() { return lab::make_mlp(64, 10); }

bool equal(const Tensor& a, const Tensor& b) { return a.to_vector<float>() == b.to_vector<float>(); }

lab::Options short_run(int epochs = 4) {
  lab::Options o;
  o.epochs = epochs;
  return o;
}

std::vector<lab::Result> compared(const amp::Recipe& recipe, const lab::MakeModel& model, const lab::Options& options,
                                  const data::Split& data = digits()) {
  auto results = lab::compare(model, data, {amp::recipe("fp32"), recipe}, "", options);
  const lab::Result& r = results[1];
  MESSAGE(r.recipe << ": " << 100 * results[0].test_accuracy << " -> " << 100 * r.test_accuracy << " "
                   << to_string(r.verdict));
  for (const lab::Finding& f : r.findings) MESSAGE("   " << f.op << " | " << f.site << " | " << to_string(f));
  return results;
}

// A linear layer of 4096 positive inputs, which hardly differ: what is left after their mean is subtracted is amplified.
// Its weights do not learn.
struct ManyInputs : nn::Module {
  nn::Linear& in = register_module("in", nn::Linear(4096, 64));
  nn::Linear& out = register_module("out", nn::Linear(64, 10));
  ManyInputs() {
    const NoGrad off;
    in.weight.add_(0.001);
    in.weight.set_requires_grad(false);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor pixels = x.reshape({x.size(0), 64}) * 0.05 + 1;
    const Tensor y = in(cat(std::vector<Tensor>(64, pixels), 1));
    return out(relu((y - mean(y.detach(), 0, true)) * 25));
  }
};

// One channel of a block of 32 is a hundred times larger than the others, which alone know the digit. The other block
// says nothing.
struct LargeChannel : nn::Module {
  nn::Linear& in = register_module("in", nn::Linear(64, 31));
  nn::Linear& out = register_module("out", nn::Linear(64, 10));
  Tensor forward(const Tensor& x) override {
    const std::int64_t n = x.size(0);
    const Tensor h = relu(in(x.reshape({n, 64})));
    return out(cat({full({n, 1}, 100.0), h, full({n, 32}, 0.9)}, 1));
  }
};

}  // namespace

TEST_CASE("an intervention without entries changes no bit, and one on sums makes them exact") {
  const Tensor a = rand({8, 512}), b = rand({512, 8});
  const AccumulatorScope f16(accumulator("fp16-acc"));
  const Tensor rounded = matmul(a, b);
  inspect::Intervention none({});
  inspect::Intervention sums({{.part = ExactPart::sum}});
  {
    const ObserverScope scope(none);
    CHECK(equal(matmul(a, b), rounded));
  }
  const ObserverScope scope(sums);
  const Tensor exact = matmul(a, b);
  CHECK_FALSE(equal(exact, rounded));
  CHECK(sums.touched() == 1);
  const AccumulatorScope f32(std::nullopt);
  CHECK(equal(matmul(a, b), exact));
}

TEST_CASE("zeroed and clipped elements of an operand are made exact apart") {
  const amp::Recipe mx = amp::recipe("mxfp4");
  nn::Linear layer(32, 4);
  Tensor x = full({2, 32}, 0.001);
  x.narrow(1, 0, 1).fill_(7.9);  // FLOOR gives 6, and the small ones 0
  const auto error = [&](const std::vector<inspect::Exact>& exact) {
    inspect::Intervention made(exact);
    const ObserverScope scope(made);
    const NoGrad off;
    const amp::RecipeScope recipe(mx);
    return layer(x);
  };
  const Tensor rounded = error({});
  const Tensor zeroed = error({{.part = ExactPart::zeroed, .operand = "forward_x"}});
  const Tensor clipped = error({{.part = ExactPart::clipped, .operand = "forward_x"}});
  const Tensor both = error({{.part = ExactPart::zeroed, .operand = "forward_x"},
                             {.part = ExactPart::clipped, .operand = "forward_x"}});
  const Tensor operand = error({{.part = ExactPart::operand, .operand = "forward_x"}});
  CHECK_FALSE(equal(zeroed, rounded));
  CHECK_FALSE(equal(clipped, rounded));
  CHECK_FALSE(equal(clipped, zeroed));
  CHECK(equal(both, operand));
  CHECK(equal(error({{.part = ExactPart::operand, .site = "elsewhere"}}), rounded));
  CHECK(equal(error({{.part = ExactPart::operand, .first = 1}}), rounded));
}

TEST_CASE("a trial without a change has the bits of the run") {
  for (const char* name : {"mxfp4", "e4m3", "fp8-delayed", "bf16-pure"}) {
    CAPTURE(name);
    const amp::Recipe recipe = amp::recipe(name);
    const auto results = lab::compare(mlp, digits(), {amp::recipe("fp32"), recipe}, "", short_run(1));
    const lab::Options options = short_run(1);
    const lab::MakeModel make = mlp;
    const lab::LabData data = digits();
    lab::Trials trials(make, data, recipe, 0, options, results[1], results[0], 1000);
    CHECK(trials.losses({}, 23) == results[1].curve.loss);
  }
}

TEST_CASE("the sum of a layer of many inputs is named where the loss's error comes from it, whatever its decibels") {
  const amp::Recipe recipe{.name = "sums",
                           .quantization = amp::Quantization{.accumulator = accumulator("fp16-acc"),
                                                               .modules = {{"out", "fp32"}}}};
  const data::Batch batch = data::take(digits().train, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
  ManyInputs model;
  amp::RecipeRun run(recipe, model, optim::AdamWOptions{});
  inspect::Evidence e{.recipe = &recipe, .steps = 1};
  e.late = inspect::ObservedStep{.step = 0, .ledger = inspect::Ledger(model)};
  inspect::Shadow shadow(model, &run.optimizer(), {.attribution = true});
  {
    const ObserverScope one(e.late->ledger);
    const ObserverScope two(shadow);
    run.step([&] { return cross_entropy(model(batch.inputs), batch.targets); });
  }
  for (const inspect::LedgerRow& r : e.late->ledger.rows())
    if (r.module == "in" && !r.accumulator.empty()) CHECK(r.accumulation_db > 20);  // off by less than a tenth
  CHECK(inspect::diagnose(e).empty());  // without the shadow nothing tells
  e.shares = inspect::loss_shares(shadow);
  const std::vector<inspect::Finding> found = inspect::diagnose(e);
  REQUIRE(!found.empty());
  CHECK(found[0].cause == Cause::accumulator);
  CHECK(found[0].site == "in");
  CHECK(found[0].exact == std::vector<inspect::Exact>{{.part = ExactPart::sum, .site = "in"}});
}

TEST_CASE("zeroed activations beside a large channel are the cause, not the clipped weights") {
  const auto results =
      compared(amp::recipe("mxfp4"), [] { return std::make_shared<LargeChannel>(); }, short_run(8));
  REQUIRE(!results[1].findings.empty());
  const lab::Finding& f = results[1].findings[0];
  CHECK(f.cause == Cause::format_range);
  CHECK(f.site == "out");
  REQUIRE(f.undone);
  CHECK(*f.undone > 0.3);
  CHECK(f.remedy.starts_with("blocks of "));
}
