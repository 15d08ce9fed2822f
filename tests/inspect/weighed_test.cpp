// Causes that trials decide: the run is replayed with one thing exact, and what that undoes of the failure is the
// weight of the cause. Thresholds only nominate.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/inspect/block_xray.h>
#include <gradual/inspect/diagnosis.h>
#include <gradual/inspect/diff.h>
#include <gradual/inspect/intervention.h>
#include <gradual/inspect/shadow.h>
#include <gradual/lab/explain.h>
#include <gradual/lab/intervention.h>
#include <gradual/lab/lab.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "between.h"

using namespace gradual;
using inspect::Cause;
using inspect::ExactPart;
using test::Between;

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

// A linear layer of 4096 positive inputs, which hardly differ: what is left without their mean is amplified.
struct ManyInputs : nn::Module {
  nn::Linear& in = register_module("in", nn::Linear(4096, 64));
  nn::Linear& out = register_module("out", nn::Linear(64, 10));
  ManyInputs() {
    const NoGrad off;
    in.weight.add_(0.001);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor pixels = x.reshape({x.size(0), 64}) * 0.05 + 1;
    const Tensor y = in(cat(std::vector<Tensor>(64, pixels), 1));
    return out(relu((y - mean(y, 0, true)) * 25));
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
  const Tensor a = rand({8, 512});
  const Tensor b = rand({512, 8});
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
  {
    const AccumulatorScope unfused(accumulator("f32/product=e5m2"));
    static_cast<void>(sum(a));  // its terms are no products
    CHECK(sums.touched() == 1);
    static_cast<void>(matmul(a, b));
    CHECK(sums.touched() == 2);
  }
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
  const Tensor both = error(
      {{.part = ExactPart::zeroed, .operand = "forward_x"}, {.part = ExactPart::clipped, .operand = "forward_x"}});
  const Tensor operand = error({{.part = ExactPart::operand, .operand = "forward_x"}});
  CHECK_FALSE(equal(zeroed, rounded));
  CHECK_FALSE(equal(clipped, rounded));
  CHECK_FALSE(equal(clipped, zeroed));
  CHECK(equal(both, operand));
  CHECK(equal(error({{.part = ExactPart::operand, .site = "elsewhere"}}), rounded));
  CHECK(equal(error({{.part = ExactPart::operand, .first = 1}}), rounded));
}

TEST_CASE("ops of a site and its steps compute in f32 instead of a half dtype, gradients too") {
  test::Between model([](const Tensor& x) { return relu(x); });
  const Tensor x = rand({4, 64});
  std::vector<DType> dtypes;  // of the results of `in` and `out`
  const auto gradient = [&](const std::vector<inspect::Exact>& exact, DType dtype = DType::f16) {
    inspect::Intervention made(exact);
    const inspect::InterventionScope scope(made);
    const amp::Autocast region({.dtype = is_half(dtype) ? dtype : DType::f16, .enabled = is_half(dtype)});
    model.f = [&](const Tensor& h) {
      dtypes = {h.dtype()};
      return relu(h);
    };
    const Tensor y = model(x);
    dtypes.push_back(y.dtype());
    model.zero_grad();
    sum(square(y)).backward();
    return model.in.weight.grad();
  };
  const Tensor exact = gradient({}, DType::f32).clone();
  const Tensor rounded = gradient({}).clone();
  CHECK(dtypes == std::vector{DType::f16, DType::f16});
  CHECK(equal(gradient({{.part = ExactPart::ops}}), exact));
  CHECK(dtypes == std::vector{DType::f32, DType::f32});
  const Tensor of_layer = gradient({{.part = ExactPart::ops, .site = "in"}}).clone();
  CHECK(dtypes == std::vector{DType::f32, DType::f16});
  CHECK_FALSE(equal(of_layer, rounded));
  CHECK_FALSE(equal(of_layer, exact));
  CHECK(equal(gradient({{.part = ExactPart::ops, .site = "in", .operand = "linear"}}), of_layer));
  CHECK(equal(gradient({{.part = ExactPart::ops, .operand = "gelu"}}), rounded));
  CHECK(equal(gradient({{.part = ExactPart::ops, .site = "elsewhere"}}), rounded));
  CHECK(equal(gradient({{.part = ExactPart::ops, .first = 1}}), rounded));
}

namespace {

// f under autocast to bf16, with these ops in f32. `touched`: how many have run.
Tensor in_bf16(const std::vector<inspect::Exact>& exact, const std::function<Tensor()>& f,
               std::int64_t* touched = nullptr) {
  inspect::Intervention made(exact);
  const inspect::InterventionScope scope(made);
  const amp::Autocast region({.dtype = DType::bf16});
  default_generator().manual_seed(5);
  const Tensor y = f();
  if (touched) *touched = made.touched();
  return y;
}

const std::vector<inspect::Exact> kAllOps = {{.part = ExactPart::ops}};

}  // namespace

TEST_CASE("ops whose result has the dtype of their first input compute in f32, whatever dtype their parameters have") {
  default_generator().manual_seed(4);
  const Tensor x = randn({16, 4}).to(DType::bf16);
  const Tensor residual = randn({16, 4});
  nn::BatchNorm1d norm(4);
  struct Case {
    const char* name;
    std::function<Tensor()> f;
    DType dtype;  // of the recipe's result
  };
  const Case cases[] = {
      {"batch norm", [&] { return norm(x); }, DType::bf16},
      {"dropout and a residual", [&] { return dropout_add(x, residual, 0.3); }, DType::f32},
      {"attention with a mask of f32",
       [&] {
         return scaled_dot_product_attention(x, x, x, zeros({16, 16}));
       },
       DType::bf16},
  };
  for (const Case& c : cases) {
    CAPTURE(std::string(c.name));
    const Tensor rounded = in_bf16({}, c.f);
    std::int64_t touched = 0;
    const Tensor exact = in_bf16(kAllOps, c.f, &touched);
    CHECK(rounded.dtype() == c.dtype);
    CHECK(exact.dtype() == DType::f32);
    CHECK(touched == 1);
    CHECK_FALSE(equal(exact, rounded.to(DType::f32)));
  }
}

TEST_CASE("results that are f32 in the recipe stay f32 when an op before them is exact, and get its result rounded") {
  default_generator().manual_seed(4);
  const auto whole_numbers = [] { return round(randn({8, 8}) * 8); };  // their sums have the same bits in any order
  const Tensor a = whole_numbers();
  const Tensor b = whole_numbers();
  const Tensor c = randn({8, 8});
  const auto product = [&] { return matmul(a, b); };
  struct Case {
    const char* name;
    std::function<Tensor()> f;
  };
  const Case cases[] = {
      {"a sum in place",
       [&] {
         return zeros({8, 8}).add_(product()) - 1;
       }},
      {"cat",
       [&] {
         return cat({c, product()}, 0) - 1;
       }},
      {"a cast", [&] { return product().to(DType::f32) * c; }},
      {"a sum", [&] { return product() + c; }},
      {"the numbers of a cat",
       [&] {
         return cat({c, product()}, 0);
       }},
      {"f64", [&] { return (product().to(DType::f64) * 3).to(DType::f32); }},
  };
  for (const Case& one : cases) {
    CAPTURE(std::string(one.name));
    const Tensor rounded = in_bf16({}, one.f);
    std::int64_t touched = 0;
    const Tensor exact = in_bf16({{.part = ExactPart::ops, .operand = "matmul"}}, one.f, &touched);
    CHECK(touched == 1);
    CHECK(rounded.dtype() == DType::f32);
    CHECK(exact.dtype() == DType::f32);
    CHECK(equal(exact, rounded));
  }
  CHECK_FALSE(equal(in_bf16(kAllOps, product), in_bf16({}, product)));
  const auto statistics = [&] {
    const Tensor none;
    const NormAttrs attrs{.training = true};
    return call_row(OpId::batch_norm, attrs, a.to(DType::bf16), none, none, none, none)[1] - 1;
  };
  CHECK(in_bf16({{.part = ExactPart::ops, .operand = "batch_norm"}}, statistics).dtype() == DType::f32);
}

TEST_CASE("comparisons, argmax, casts and users' functions get exact results rounded to the half dtype") {
  // 1 + 2^-10 and 1 are one number of bf16.
  const Tensor a = from_data(std::vector<float>{1, 0x1p-5F}, {1, 2});
  const Tensor b = from_data(std::vector<float>{1, 1, 0, 0x1p-5F}, {2, 2});  // a b is {1, 1 + 2^-10}
  const auto product = [&] { return matmul(a, b); };
  struct Seen final : Function {
    std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override {
      dtype = inputs[0].dtype();
      return {inputs[0].clone()};
    }
    std::vector<Tensor> backward(const std::vector<Tensor>& grads) override { return grads; }
    DType dtype = DType::f64;
  };
  const auto same = [&](const std::function<Tensor()>& f) { return equal(in_bf16(kAllOps, f), in_bf16({}, f)); };
  CHECK_FALSE(same(product));
  CHECK(same([&] { return gt(product(), 1); }));
  CHECK(same([&] { return argmax(product(), 1); }));
  CHECK(same([&] { return product().to(DType::f64); }));
  CHECK_FALSE(same([&] { return product().clone(); }));
  CHECK(in_bf16(kAllOps, [&] { return cat({product(), a.to(DType::bf16)}, 0); }).dtype() == DType::f32);
  const auto seen = std::make_shared<Seen>();
  in_bf16(kAllOps, [&] { return apply(seen, {product()})[0]; });
  CHECK(seen->dtype == DType::bf16);
}

TEST_CASE("making ops exact leaves quantised products as they are") {
  const nn::Linear layer(32, 4);
  const Tensor x = rand({2, 32}).to(DType::bf16);
  const auto output = [&](const std::vector<inspect::Exact>& exact) {
    inspect::Intervention made(exact);
    const inspect::InterventionScope scope(made);
    const NoGrad off;
    const amp::RecipeScope recipe(amp::recipe("mxfp4"));
    return linear(x, layer.weight).to(DType::f32);
  };
  CHECK(equal(output({{.part = ExactPart::ops}}), output({})));
}

TEST_CASE("what is made exact at one weight of a layer is exact in the whole layer, and in no other") {
  const amp::Recipe mx = amp::recipe("mxfp4");
  nn::Sequential model(nn::Linear(32, 32), nn::Linear(32, 4));
  const Tensor x = rand({2, 32});
  const auto output = [&](const std::string& site) {
    inspect::Intervention made({{.part = ExactPart::operand, .site = site}});
    const ObserverScope scope(made);
    const NoGrad off;
    const amp::RecipeScope recipe(mx);
    return model(x);
  };
  CHECK_FALSE(equal(output("1"), output("elsewhere")));
  CHECK(equal(output("1#2"), output("1")));
  CHECK_FALSE(equal(output("1#2"), output("0#2")));
}

TEST_CASE("a trial makes a finding's numbers exact everywhere, or else takes its own edit, or else its first cure") {
  const amp::Recipe half = amp::recipe("fp16-pure");
  inspect::Finding f{.cause = Cause::second_moment,
                     .cures = {inspect::cures::masters(half), inspect::cures::bf16(half)},
                     .exact = {{.part = ExactPart::sum, .site = "in"}},
                     .alone = inspect::cures::state_in_f32(half)};
  CHECK(f.trial().exact == std::vector<inspect::Exact>{{.part = ExactPart::sum}});
  CHECK(f.trial().edit == nullptr);
  f.exact.clear();
  CHECK(f.trial().edit == &*f.alone);
  f.alone.reset();
  CHECK(f.trial().edit == &f.cures[0]);
  CHECK(f.can_be_tried());
  f.precision = false;
  CHECK_FALSE(f.can_be_tried());
  f.precision = true;
  f.cures.clear();
  CHECK_FALSE(f.can_be_tried());
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
  const amp::Recipe recipe{
      .name = "sums",
      .quantization = amp::Quantization{.accumulator = accumulator("fp16-acc"), .modules = {{"out", "fp32"}}}};
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
  CHECK(inspect::diagnose(e).empty());                                              // without the shadow nothing tells
  e.shares = inspect::loss_shares(shadow);
  const std::vector<inspect::Finding> found = inspect::diagnose(e);
  REQUIRE(!found.empty());
  CHECK(found[0].cause == Cause::accumulator);
  CHECK(found[0].site == "in");
  CHECK(found[0].exact == std::vector<inspect::Exact>{{.part = ExactPart::sum, .site = "in"}});
}

TEST_CASE("zeroed activations beside a large channel are the cause, not the clipped weights") {
  const auto results = compared(
      amp::recipe("mxfp4"), [] { return std::make_shared<LargeChannel>(); }, short_run(8));
  REQUIRE(!results[1].findings.empty());
  const lab::Finding& f = results[1].findings[0];
  CHECK(f.cause == Cause::format_range);
  CHECK(f.site == "out");
  CHECK(f.role == inspect::NumberRole::activation);
  CHECK(f.operands == std::vector<std::string>{"forward_x", "wgrad_x"});
  CHECK(to_string(f).find("[format-range of forward_x, wgrad_x]") != std::string::npos);
  REQUIRE(f.undone);
  CHECK(*f.undone > 0.3);
  CHECK(!f.remedy.starts_with("scales rounded up"));  // which clips less and zeroes more
}

TEST_CASE("RCEIL is no cure of scales that no rule chooses, and a cure runs a step before it is offered") {
  amp::Recipe coded = amp::recipe("mxfp4");
  for (const amp::QuantizerField& field : amp::kQuantizerFields)
    if (auto& q = (*coded.quantization).*field.quantizer)
      q->scaling = CodedBlocks{.block = 32, .scale_format = format("e5m1"), .oracle = ScaleOracle::torchao};
  CHECK(inspect::cures::valid(coded, {inspect::cures::rceil(coded)}).empty());
  CHECK(inspect::cures::valid(coded, {inspect::cures::wide_scales(coded)}).size() == 1);

  struct Normed : nn::Module {
    nn::Linear& in = register_module("in", nn::Linear(64, 64));
    nn::LayerNorm& norm = register_module("norm", nn::LayerNorm({64}));
    nn::Linear& out = register_module("out", nn::Linear(64, 10));
    Tensor forward(const Tensor& x) override { return out(norm(in(x.reshape({x.size(0), 64})) + 1)); }
  };
  const amp::Recipe pure = amp::recipe("bf16-pure");
  const lab::MakeModel make = [] { return std::make_shared<Normed>(); };
  const lab::LabData data = digits();
  const lab::Options options = short_run(1);
  const lab::Result none;
  lab::Trials trials(make, data, pure, 0, options, none, none, 0);
  CHECK_FALSE(trials.runs(inspect::edit(pure, inspect::cures::ops_in_f32(pure, {"add"}).recipe)));
  CHECK(trials.runs(inspect::edit(pure, inspect::cures::ops_and_norms_in_f32(pure, {"add"}).recipe)));
}

TEST_CASE("the cures of a static loss scale that is too high begin with one that fits, and each has run a step") {
  const amp::Recipe high = amp::recipe("fp16-static:1048576");
  const auto results = compared(high, mlp, short_run(2));
  REQUIRE(!results[1].findings.empty());
  const lab::Finding& f = results[1].findings[0];
  CHECK(f.cause == Cause::scale_too_high);
  REQUIRE(!f.cures.empty());
  CHECK(f.cures[0].remedy.starts_with("a loss scale of 2^"));
  CHECK_FALSE(inspect::edited(high, f.cures[0].edit).scaling->dynamic);
  const lab::LabData data = digits();
  const lab::MakeModel make = mlp;
  lab::Trials trials(make, data, high, 0, short_run(2), results[1], results[0], 0);
  for (const lab::Finding& each : results[1].findings)
    for (const lab::Finding::Cure& c : each.cures) CHECK(trials.runs(c.edit));
}

TEST_CASE("the loss scale that is offered follows from the gradients, and not from the scale that failed") {
  std::vector<double> offered;
  for (const int bits : {20, 22, 24}) {
    amp::Recipe high = amp::recipe("fp16-master");
    high.name = "high";
    high.scaling = optim::GradScalerOptions{.init_scale = std::exp2(bits), .dynamic = false};
    const auto results = compared(high, mlp, short_run(2));
    REQUIRE(!results[1].findings.empty());
    const lab::Finding& f = results[1].findings[0];
    CHECK(f.cause == Cause::scale_too_high);
    const amp::Recipe cured = inspect::edited(high, f.cure);
    offered.push_back(cured.scaling->init_scale);
    const auto again = compared(cured, mlp, short_run(8));
    CHECK(again[1].skipped_steps == 0);
    CHECK_FALSE(lab::verdict_info(again[1].verdict.kind).fails);
  }
  CHECK(offered[0] == offered[1]);
  CHECK(offered[0] == offered[2]);
}

TEST_CASE("a diagnosis loads the data once, and runs no step to show what a trial has shown") {
  int loads = 0;
  lab::LabData data(digits());
  const auto load_digits = data.load;
  data.load = [&loads, load_digits](std::uint64_t seed) {
    ++loads;
    return load_digits(seed);
  };
  int models = 0;
  const lab::MakeModel counted = [&models] {
    ++models;
    return mlp();
  };
  const amp::Recipe high = amp::recipe("fp16-static:1048576");
  const auto results = lab::compare(counted, data, {amp::recipe("fp32"), high}, "", short_run(2));
  REQUIRE_FALSE(results[1].findings.empty());
  CHECK(loads == 3);  // fp32's run, the recipe's, and the diagnosis
  const lab::Options options = short_run(2);
  lab::Trials trials(counted, data, high, 0, options, results[1], results[0], 1000);
  REQUIRE(trials.begin(10));
  const std::string& edit = results[1].findings[0].cures[0].edit;
  REQUIRE(trials.undone({.edit = edit}));
  const int before = models;
  CHECK(trials.runs(edit));
  CHECK(models == before);
  const std::string other = R"({"scaling":{"kind":"static","init_scale":2}})";
  CHECK(trials.runs(other));
  CHECK(trials.runs(other));
  CHECK(models == before + 1);
}

TEST_CASE("blocks whose zeros do harm have smaller blocks as a cure") {
  const auto results = compared(
      amp::recipe("mxfp4"), [] { return std::make_shared<LargeChannel>(); }, short_run(2));
  REQUIRE(!results[1].findings.empty());
  const auto& all = results[1].findings;
  CHECK(std::ranges::any_of(all, [](const lab::Finding& f) {
    return std::ranges::any_of(f.cures, [](const auto& c) { return c.remedy.starts_with("blocks of "); });
  }));
}

TEST_CASE("a mask that overflows is told a finite value") {
  // Rows of masks alone: all is -Inf in f16, and softmax gives NaN.
  const auto masked = [] {
    return std::make_shared<Between>(
        [](const Tensor& x) { return softmax(where(lt(x, 1e9), Operand(-1e9), x), 1) * x; });
  };
  const auto results = compared(amp::recipe("fp16-pure"), masked, short_run(1));
  REQUIRE(!results[1].findings.empty());
  const auto& all = results[1].findings;
  CHECK(std::ranges::any_of(all, [](const lab::Finding& f) {
    return f.sentence.find("a mask of -3.275e+04 stays finite") != std::string::npos;
  }));
}

TEST_CASE("a failure that fp32 does not have keeps its finding, though fp32 fails too") {
  data::Split shuffled = digits();
  const std::int64_t n = shuffled.train.targets.size(0);
  Generator generator(3);
  const GeneratorScope scope(generator);
  shuffled.train.targets = randint(0, 10, {n});
  const auto results = compared(amp::recipe("fp16-pure"), mlp, short_run(2), shuffled);
  CHECK(to_string(results[1].verdict) == "diverged at step 1; fp32 also learns nothing");
  REQUIRE(!results[1].findings.empty());
  CHECK(results[1].findings[0].cause == Cause::adam_eps);
  CHECK(results[1].findings[0].precision);
}

TEST_CASE("a divisor is followed back to where its zeros were made, past zeros that do no harm") {
  amp::Recipe half = amp::recipe("fp16-master");
  half.name = "half";
  const auto divides = [] {
    return std::make_shared<Between>([](const Tensor& x) {
      const Tensor harmless = x * 1e-9;
      const Tensor small = exp(x * -1 - 17.5);
      return (x * small + harmless) / small;
    });
  };
  const auto results = compared(half, divides, short_run(1));
  REQUIRE(!results[1].findings.empty());
  CHECK(results[1].findings[0].cause == Cause::reduction_underflow);
  CHECK(results[1].findings[0].op == "exp");

  const auto logs = [] { return std::make_shared<Between>([](const Tensor& x) { return log(relu(x)); }); };
  const auto in_f32 = compared(amp::recipe("amp-bf16"), logs, short_run(1));
  REQUIRE(!in_f32[0].findings.empty());
  CHECK(in_f32[0].findings[0].cause == Cause::arithmetic);
  CHECK(in_f32[0].findings[0].op == "relu");
  CHECK(in_f32[0].findings[0].site.starts_with("weighed_test.cpp:"));
}

TEST_CASE("the X-ray shows what each size of blocks makes 0, and prints no NaN") {
  nn::Linear layer(64, 4);
  {
    const NoGrad off;
    layer.weight.zero_();
  }
  Tensor x = full({2, 64}, 0.01);
  x.narrow(1, 0, 1).fill_(7);  // its block loses all neighbours
  inspect::XrayObserver xrays(layer);
  {
    const ObserverScope scope(xrays);
    const amp::RecipeScope recipe(amp::recipe("mxfp4"));
    layer(x);
  }
  const std::string text = xrays.to_string();
  CHECK(text.find("nan") == std::string::npos);
  CHECK(text.find("8: 10.9%, 16: 23.4%, 32: 48.4%, 64: 98.4%, 128: 98.4%") != std::string::npos);
}

// A step of AdamW whose decay is 2^-10 of its gradient step. 40% of the elements do not move, all of the decay is lost.
TEST_CASE("lost decay is a finding where it is a part of the updates that counts; weights that stand still are tried") {
  const amp::Recipe pure = amp::recipe("bf16-pure");
  inspect::Evidence e{.recipe = &pure, .steps = 10};
  inspect::Update step{.parameter = "in.weight", .op = "adam_step_", .elements = 100, .intended = 100, .vanished = 40};
  step.intended_squares = 1;
  step.product = 0.9;
  step.weight_squares = 1;
  inspect::Update part = step;
  part.part = inspect::UpdatePart::gradient_step;
  inspect::Update decay = step;
  decay.part = inspect::UpdatePart::weight_decay;
  decay.vanished = 100;
  decay.product = 0;
  decay.intended_squares = std::exp2(-20);
  e.updates = {step, part, decay};
  const std::vector<inspect::Finding> small = inspect::diagnose(e);
  REQUIRE(small.size() == 1);
  CHECK(small[0].cause == Cause::update_vanishes);
  CHECK(small[0].weak);  // it needs a trial
  REQUIRE(small[0].alone);
  CHECK(small[0].alone->recipe.update == optim::LowPrecisionUpdate::kahan);  // leaves the state in bf16
  CHECK(small[0].alone->recipe.optimizer_state == DType::bf16);
  CHECK(small[0].cures.at(0).recipe.masters == amp::Masters::per_tensor);

  e.updates[2].intended_squares = std::exp2(-8);
  const std::vector<inspect::Finding> large = inspect::diagnose(e);
  REQUIRE(large.size() == 2);
  CHECK(large[0].cause == Cause::decay_vanishes);

  e.updates = {};
  e.scalars = {{.op = "adam_step_", .rate = inspect::Rate::beta2, .value = 0.999, .used = 1, .dtype = DType::bf16}};
  const std::vector<inspect::Finding> rate = inspect::diagnose(e);
  REQUIRE(rate.size() == 1);
  REQUIRE(rate[0].alone);
  CHECK(rate[0].alone->recipe.optimizer_state == DType::f32);
  CHECK(rate[0].alone->recipe.masters == amp::Masters::none);  // weights stay in bf16
}

TEST_CASE("averages, weight decay and rates that do not arrive are findings") {
  const amp::Recipe pure = amp::recipe("bf16-pure");
  const auto causes = [&](const inspect::Evidence& e) {
    std::vector<Cause> all;
    for (const inspect::Finding& f : inspect::diagnose(e)) all.push_back(f.cause);
    return all;
  };
  inspect::Evidence e{.recipe = &pure, .steps = 10};
  inspect::Update lost{.parameter = "in.weight", .op = "adam_step_", .elements = 100, .intended = 100, .vanished = 98};
  lost.intended_squares = 1;
  lost.product = 0.02;
  lost.weight_squares = 1;
  lost.part = inspect::UpdatePart::average;
  e.updates = {lost};
  CHECK(causes(e) == std::vector{Cause::average_vanishes});
  CHECK(inspect::diagnose(e)[0].cures.empty());  // masters of the weights leave the program's average in its dtype
  amp::Recipe keeps = pure;
  keeps.averages = amp::Averages::storage;
  e.recipe = &keeps;
  REQUIRE(inspect::diagnose(e)[0].cures.size() == 1);
  CHECK(inspect::diagnose(e)[0].cures[0].recipe.averages == amp::Averages::f32);
  e.recipe = &pure;
  e.updates[0].part = inspect::UpdatePart::weight_decay;
  CHECK(causes(e) == std::vector{Cause::decay_vanishes});
  CHECK_FALSE(inspect::diagnose(e)[0].cures.empty());
  e.updates.clear();
  e.scalars = {{.op = "adam_step_", .rate = inspect::Rate::beta2, .value = 0.999, .used = 1, .dtype = DType::bf16}};
  CHECK(causes(e) == std::vector{Cause::rate_lost});
}

TEST_CASE("bf16 and f16 do not depart at the first op for their units alone, and no share is above 100%") {
  const data::Batch batch = data::take(digits().train, {0, 1, 2, 3, 4, 5, 6, 7});
  struct Side {
    std::shared_ptr<nn::Module> model;
    std::optional<amp::RecipeRun> run;
    std::optional<inspect::Shadow> shadow;
  };
  Side sides[2];
  for (std::size_t i = 0; i < 2; ++i) {
    default_generator().manual_seed(0);
    Side& s = sides[i];
    s.model = mlp();
    s.run.emplace(amp::recipe(i == 0 ? "amp-fp16" : "amp-bf16"), *s.model, optim::AdamWOptions{});
    s.shadow.emplace(*s.model, &s.run->optimizer(), inspect::ShadowOptions{.attribution = true});
    const ObserverScope scope(*s.shadow);
    s.run->backward(s.run->forward([&] { return cross_entropy((*s.model)(batch.inputs), batch.targets); }));
    const std::string text = to_string(s.shadow->attribution());
    for (std::size_t at = text.find('%'); at != std::string::npos; at = text.find('%', at + 1)) {
      const std::size_t begin = text.find_last_not_of("0123456789.", at - 1) + 1;
      CHECK(std::stod(text.substr(begin, at - begin)) <= 100);
    }
  }
  const inspect::ShadowDiff diff(*sides[0].shadow, *sides[1].shadow);
  // Nothing in forward is discontinuous, so its errors are alike in their units, whatever dtype they are stored in.
  int rounded = 0;
  int stored_in_f32 = 0;
  for (const auto& pair : diff.pairs()) {
    CAPTURE(pair.a->op);
    if (pair.a->phase != Phase::forward) continue;
    CHECK_FALSE(pair.departs());
    (is_half(pair.a->to) ? rounded : stored_in_f32) += pair.a->total.relative() > 0;
  }
  CHECK(rounded > 0);
  CHECK(stored_in_f32 > 0);
}

namespace {

using Json = nlohmann::ordered_json;

// The changes that leave out one member: an entry, or a field of the recipe's edit.
std::vector<lab::Change> without_one(const lab::Change& change) {
  std::vector<lab::Change> all;
  for (std::size_t i = 0; i < change.exact.size(); ++i) {
    all.push_back(change);
    all.back().exact.erase(all.back().exact.begin() + static_cast<std::ptrdiff_t>(i));
  }
  const Json fields = change.edit.empty() ? Json::object() : Json::parse(change.edit).flatten();
  for (const auto& [field, value] : fields.items()) {
    Json rest = fields;
    rest.erase(field);
    all.push_back(change);
    all.back().edit = rest.empty() ? "" : rest.unflatten().dump();
  }
  return all;
}

// The share of a failure in training that a replay with these losses undoes.
double undone_by(const lab::Failure& failure, const std::vector<double>& losses) {
  const auto steps = static_cast<std::size_t>(failure.steps);
  const bool diverges = failure.kind == lab::FailureKind::divergence;
  double sum = 0;
  const std::size_t first = diverges ? steps - std::min<std::size_t>(steps, 4) : steps / 2;
  for (std::size_t i = first; i < steps; ++i) {
    const double loss = i < losses.size() ? losses[i] : std::nan("");
    sum += diverges ? static_cast<double>(std::isfinite(loss)) : loss;
  }
  const double measure = sum / static_cast<double>(steps - first);
  if (!std::isfinite(measure)) return -1;
  return (measure - failure.run) / (failure.fp32 - failure.run);
}

// The explanation's file, read again, gives the same bits, and without any one member the failure comes again.
void check_replayed(const lab::Explanation& e, lab::Trials& trials, const amp::Recipe& recipe) {
  MESSAGE(to_string(e));
  CHECK(e.averts);
  CHECK(e.minimal);
  const lab::Replayable again = lab::replayable_from_json(lab::to_json(e, recipe, 0), "x.json");
  CHECK(again.losses == e.losses);
  CHECK(trials.losses(again.change, static_cast<std::int64_t>(again.losses.size())) == e.losses);
  const std::vector<lab::Change> smaller = without_one(e.change);
  CHECK_FALSE(smaller.empty());
  if (e.failure.kind == lab::FailureKind::evaluation) {
    CHECK(smaller.size() == 1);  // without it nothing is changed
    return;
  }
  const double least = e.failure.kind == lab::FailureKind::divergence ? 1 : 0.8;
  CHECK(undone_by(e.failure, e.losses) >= least);
  for (const lab::Change& change : smaller) {
    CAPTURE(to_string(change));
    CHECK(undone_by(e.failure, trials.losses(change, e.failure.steps)) < least);
  }
}

void check_explained(const amp::Recipe& recipe, const lab::MakeModel& make, lab::Options options, lab::FailureKind kind,
                     const std::string& set) {
  CAPTURE(recipe.name);
  const lab::LabData data = digits();
  const auto results = lab::compare(make, data, {amp::recipe("fp32"), recipe}, "", options);
  options.explain_steps = 40 * results[0].steps;
  const lab::Explanation e = lab::explain_run(make, data, recipe, 0, options, results[1], results[0]);
  CHECK(e.failure.kind == kind);
  CHECK(to_string(e.change).find(set) != std::string::npos);
  lab::Trials trials(make, data, recipe, 0, options, results[1], results[0], 0);
  check_replayed(e, trials, recipe);
}

}  // namespace

TEST_CASE("explain finds a 1-minimal set for a divergence and for a slow loss") {
  const lab::MakeModel large = [] { return std::make_shared<Between>([](const Tensor& x) { return relu(x) * 1000; }); };
  check_explained(amp::recipe("e4m3"), large, short_run(2), lab::FailureKind::divergence, "operand forward_x of out");
  check_explained(
      amp::recipe("mxfp4"), [] { return std::make_shared<LargeChannel>(); }, short_run(8), lab::FailureKind::loss,
      "operand forward_x of out");
}

TEST_CASE("explain: fields of a recipe are apart, so that none in a set is superfluous") {
  check_explained(amp::recipe("fp16-pure"), mlp, short_run(2), lab::FailureKind::divergence,
                  R"({"optimizer_state":"f32"})");
  // If an activation exceeds f16 as well, both edits are needed, and nothing else.
  const lab::MakeModel beyond = [] {
    return std::make_shared<Between>([](const Tensor& x) { return mul(relu(x), 1e6) * 1e-6; });
  };
  check_explained(amp::recipe("fp16-pure"), beyond, short_run(2), lab::FailureKind::divergence,
                  R"({"optimizer_state":"f32"}; ops of weighed_test.cpp:)");
  // Updates below half an ulp: masters, and not the state, which is in f32 already.
  amp::Recipe slow = amp::recipe("bf16-pure");
  slow.name = "bf16-state";
  slow.optimizer_state = DType::f32;
  lab::Options still = short_run(8);
  still.lr = 2e-5;
  check_explained(slow, mlp, still, lab::FailureKind::loss, R"({"masters":"per-tensor"})");
}

TEST_CASE("explain: of half dtypes it names the layer whose ops fail, and the steps") {
  // From the fourth step on the sums of `wide` are beyond f16, and only they.
  struct Late : nn::Module {
    int calls = 0;
    nn::Linear& in = register_module("in", nn::Linear(64, 64));
    nn::Linear& wide = register_module("wide", nn::Linear(64, 64));
    nn::Linear& out = register_module("out", nn::Linear(64, 10));
    Late() {
      const NoGrad off;
      wide.weight.mul_(30);
    }
    Tensor forward(const Tensor& x) override {
      const double size = ++calls > 3 ? 20000 : 1;
      const Tensor h = clamp(relu(in(x.reshape({x.size(0), 64}))), 0.0, 3.0);
      return out(wide(h * size) * (1 / size));
    }
  };
  amp::Recipe unscaled = amp::recipe("amp-fp16");
  unscaled.name = "amp-fp16-unscaled";
  unscaled.scaling.reset();
  check_explained(
      unscaled, [] { return std::make_shared<Late>(); }, short_run(2), lab::FailureKind::divergence,
      "ops of wide, steps 3 to 6");
}

TEST_CASE("explain: a product outside of all modules is a place by its line") {
  struct Root : nn::Module {
    nn::Linear& in = register_module("in", nn::Linear(64, 32));
    Tensor weight = register_parameter("weight", randn({32, 10}) * 0.1);
    Tensor forward(const Tensor& x) override {
      return matmul(relu(in(x.reshape({x.size(0), 64}))) * 1000, weight);  // beyond e4m3, whose numbers become NaN
    }
  };
  check_explained(
      amp::recipe("e4m3"), [] { return std::make_shared<Root>(); }, short_run(2), lab::FailureKind::divergence,
      "operand forward_x of weighed_test.cpp:");
  amp::Recipe sums = amp::recipe("fp32");
  sums.name = "sums-in-e3m4";
  sums.quantization = amp::Quantization{.accumulator = accumulator("e3m4-acc")};
  check_explained(
      sums, [] { return std::make_shared<Root>(); }, short_run(2), lab::FailureKind::divergence,
      "sum of weighed_test.cpp:");
}

TEST_CASE("explain: a file is applied to its own recipe and seed alone") {
  const lab::Explanation none;
  const amp::Recipe e3m2 = amp::recipe("e3m2");
  const lab::Replayable file = lab::replayable_from_json(lab::to_json(none, e3m2, 3), "set.json");
  const auto message = [&](const amp::Recipe& recipe, std::uint64_t seed) -> std::string {
    try {
      lab::check_applies(file, "set.json", recipe, seed);
    } catch (const Error& error) { return error.what(); }
    return "";
  };
  CHECK(message(e3m2, 3).empty());
  CHECK(message(amp::recipe("mx4"), 3) ==
        "explain: set.json is of the recipe e3m2, seed 3, and cannot be applied to mx4, seed 3");
  CHECK(message(e3m2, 0) == "explain: set.json is of the recipe e3m2, seed 3, and cannot be applied to e3m2, seed 0");
  amp::Recipe edited = e3m2;
  edited.quantization->forward_x.reset();
  CHECK(message(edited, 3).find("applied to another recipe named e3m2, seed 3") != std::string::npos);
}

TEST_CASE("explain: a set that was not shown to be minimal is not called so") {
  lab::Explanation e{.shows = true, .averts = true};
  CHECK(to_string(e).find("Without any one") == std::string::npos);
  CHECK(to_string(e).find("before this was shown to be minimal") != std::string::npos);
  e.minimal = true;
  CHECK(to_string(e).find("Without any one of these it comes.\n") != std::string::npos);
  e.must_run = true;
  CHECK(to_string(e).find("Without any one of these it comes, or no step runs.\n") != std::string::npos);
}

TEST_CASE("explain finds what spoils evaluation alone" * doctest::test_suite("long")) {
  const lab::MakeModel still = [] {
    return std::make_shared<nn::Sequential>(nn::Flatten(), nn::Linear(64, 64), nn::BatchNorm1d(64, {.momentum = 0.001}),
                                            nn::ReLU(), nn::Linear(64, 10));
  };
  check_explained(amp::recipe("bf16-pure"), still, short_run(40), lab::FailureKind::evaluation, "\"mode\":\"half\"");
}
