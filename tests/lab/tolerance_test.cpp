// Tolerances of a step: bounds hold for sampled orders and splits, and planted bugs exceed them.
#include <doctest/doctest.h>
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/core/support/cpu_isa.h>
#include <gradual/gradual.h>
#include <gradual/lab/judge_units.h>
#include <gradual/lab/lab.h>
#include <gradual/lab/norm_bounds.h>
#include <gradual/lab/recorded_ops.h>
#include <gradual/lab/tolerance.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "recorded_step.h"

using namespace gradual;

namespace {

struct Family {
  const char* data;
  const char* model;
  const char* recipe;
};

lab::StudyOptions early(std::int64_t step = 3) { return {.step = step, .batch = 16, .epochs = 1}; }

lab::Tolerances tolerance_of(const Family& f, int orders, int parts = 0) {
  const lab::LabData data = lab::data_for(f.data);
  return lab::tolerance(lab::model_for(f.model, data.load(0).train), data, amp::recipe(f.recipe),
                        {.study = early(), .orders = orders, .parts = parts});
}

void check_holds(const lab::Tolerances& t) {
  int differ = 0;
  for (const lab::Tolerated& one : t.tensors) {
    CAPTURE(one.name);
    CHECK(one.worst <= 1);
    CHECK(one.worst_probably <= 1);
    CHECK(one.sampled <= one.bound);
    CHECK(one.own <= one.bound);
    CHECK(std::isfinite(one.bound));
    CHECK(std::isfinite(one.local));
    differ += one.sampled > 0 ? 1 : 0;
  }
  CHECK(differ > 5);
}

// The tolerances of the ops of `run`.
template <class F> lab::Tolerances tolerance_of_ops(const F& run) {
  const nn::Linear none(1, 1);
  lab::RecordedOps ops(none);
  {
    const ObserverScope scope(ops);
    run();
  }
  return lab::tolerance_of(ops, {.orders = 1});
}

const lab::Tolerated& named(const lab::Tolerances& t, std::string_view name) {
  const auto found = std::ranges::find(t.tensors, name, &lab::Tolerated::name);
  REQUIRE(found != t.tensors.end());
  return *found;
}

// x -> norm -> 16 x 16 -> times a scale -> classes.
struct Planted {
  double eps = 1e-5;
  double scale = 0.25;
  bool transposed = false;
};

struct Net : nn::Module {
  explicit Net(const Planted& planted) : bug(planted) {
    if (!bug.transposed) return;
    const NoGrad no_grad;
    Tensor w = square.weight;
    w.copy_(contiguous(w.transpose(0, 1)).clone());
  }
  Tensor forward(const Tensor& x) override { return head(square(norm(fc(x.reshape({x.size(0), 64})))) * bug.scale); }

  Planted bug;
  nn::Linear& fc = register_module("fc", nn::Linear(64, 16));
  nn::LayerNorm& norm = register_module("norm", nn::LayerNorm(16, {.eps = bug.eps}));
  nn::Linear& square = register_module("square", nn::Linear(16, 16));
  nn::Linear& head = register_module("head", nn::Linear(16, 10));
};

lab::MakeModel net(const Planted& bug) {
  return [bug] { return std::make_shared<Net>(bug); };
}

// The first step's values.
StateDict step_of(const lab::MakeModel& make, const lab::LabData& data, const amp::Recipe& recipe) {
  lab::Study study(make, data, recipe, early(0));
  return test::recorded_step(study);
}

StateDict recorded(const Planted& bug, const amp::Recipe& recipe) {
  return step_of(net(bug), lab::data_for("digits"), recipe);
}

}  // namespace

TEST_CASE("tolerance: bounds hold for sampled orders of each family of models") {
  const Family families[] = {{"digits", "mlp", "fp32"},   {"digits", "mlp", "amp-bf16"},
                             {"digits", "mlp", "tf32"},   {"digits", "mlp", "amp-fp16"},
                             {"digits", "cnn", "fp32"},   {"digits", "cnn", "amp-bf16"},
                             {"addition", "gpt", "fp32"}, {"addition", "gpt", "amp-bf16"}};
  for (const Family& f : families) {
    CAPTURE(std::string(f.model));
    CAPTURE(std::string(f.recipe));
    check_holds(tolerance_of(f, 3));
  }
}

TEST_CASE("tolerance: what is likely is near what many orders reach, and the bound is not left") {
  for (const char* recipe : {"fp32", "amp-bf16"}) {
    CAPTURE(std::string(recipe));
    const lab::Tolerances t = tolerance_of({"digits", "mlp", recipe}, 400);
    check_holds(t);
    CHECK(t.median_ratio(&lab::Tolerated::tolerance) <= 10);
    CHECK(t.median_ratio(&lab::Tolerated::tolerance) > 1);
  }
}

TEST_CASE("tolerance: every backend and instruction set of this machine is within what is likely") {
  const Family families[] = {{"digits", "mlp", "fp32"},   {"digits", "mlp", "amp-bf16"},
                             {"digits", "cnn", "fp32"},   {"digits", "cnn", "amp-bf16"},
                             {"addition", "gpt", "fp32"}, {"addition", "gpt", "amp-bf16"}};
  const CpuIsa fastest = cpu_isa();
  for (const Family& f : families) {
    const lab::LabData data = lab::data_for(f.data);
    const lab::MakeModel make = lab::model_for(f.model, data.load(0).train);
    const amp::Recipe recipe = amp::recipe(f.recipe);
    const lab::Tolerances t = lab::tolerance(make, data, recipe, {.study = early(0), .orders = 1});
    for (const CpuBackend backend : {CpuBackend::eigen, CpuBackend::fast, CpuBackend::onednn}) {
      const bool built = backend == CpuBackend::eigen || (backend == CpuBackend::fast ? has_fast() : has_onednn());
      for (const CpuIsa isa : built ? cpu_isas() : std::vector<CpuIsa>()) {
        CAPTURE(std::string(f.model));
        CAPTURE(std::string(f.recipe));
        CAPTURE(to_string(backend));
        CAPTURE(to_string(isa));
        const CpuBackendScope scope(backend);
        set_cpu_isa(isa);
        const StateDict values = step_of(make, data, recipe);
        set_cpu_isa(fastest);
        CHECK(values.size() == t.tensors.size());
        for (const lab::Exceeded& e : t.exceeded(values)) {
          CAPTURE(e.name);
          CHECK(e.worst <= 1);
          CHECK(!e.always);
        }
      }
    }
  }
}

TEST_CASE("tolerance: sums in 1, 2, 4 and 8 parts, as ranks and splits add them, are within the bound") {
  for (const int parts : {1, 2, 4, 8}) {
    CAPTURE(parts);
    check_holds(tolerance_of({"digits", "mlp", "fp32"}, 2, parts));
  }
}

TEST_CASE("tolerance: gradients of a batch on 1, 2, 4 and 8 ranks are within it") {
  default_generator().manual_seed(1);
  Net model({});
  const Tensor x = randn({16, 64});
  const Tensor y = from_data(std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5}, {16});
  std::vector<StateDict> all;
  for (const std::int64_t ranks : {1, 2, 4, 8}) {
    const std::int64_t each = 16 / ranks;
    for (std::int64_t r = 0; r < ranks; ++r) {
      const Tensor loss = cross_entropy(model(x.narrow(0, r * each, each)), y.narrow(0, r * each, each));
      (loss / static_cast<double>(ranks)).backward();
    }
    StateDict& gradients = all.emplace_back();
    for (const auto& [name, parameter] : model.named_parameters())
      gradients.set("grad:" + name, parameter.grad().clone());
    model.zero_grad();
  }
  optim::SGD optimizer(model.parameters(), {.lr = 0.1});
  lab::RecordedOps ops(model);
  {
    const UnfusedScope parts;
    const ObserverScope scope(ops);
    cross_entropy(model(x), y).backward();
    optimizer.step();
  }
  const lab::Tolerances t = lab::tolerance_of(ops, {.orders = 2});
  check_holds(t);
  for (const StateDict& gradients : all) CHECK(t.exceeded(gradients).empty());
  StateDict summed;  // not averaged over two ranks
  for (const StateDict::Entry& one : all[1]) summed.set(one.name, all[1].tensor(one.name) * 2.0);
  CHECK(t.exceeded(summed).size() == all[1].size());
}

TEST_CASE(
    "tolerance: the own step's gradients and updates are compared, and one that no op explains exceeds the bound") {
  const auto tolerance_with = [](bool doubled) {
    lab::Study study(net({}), lab::data_for("digits"), amp::recipe("fp32"), early(0));
    lab::RecordedOps ops(study.model());
    {
      const UnfusedScope parts;
      const ObserverScope scope(ops);
      study.run().backward(study.run().forward([&] { return study.loss(); }));
      // As a fault of a kernel does it: no op and no version tell of it.
      Tensor bias = study.model().named_parameters()[1].second.grad();
      if (doubled)
        for (std::int64_t i = 0; i < bias.numel(); ++i) bias.data<float>()[i] *= 2;
      study.run().update();
    }
    return lab::tolerance_of(ops, {.orders = 1});
  };
  const lab::Tolerances right = tolerance_with(false);
  check_holds(right);
  CHECK(named(right, "grad:fc.weight").own > 0);
  CHECK(named(right, "after:fc.weight").own > 0);
  const lab::Tolerances wrong = tolerance_with(true);
  CHECK(named(wrong, "grad:fc.weight").worst <= 1);
  CHECK(named(wrong, "grad:fc.bias").worst > 1);
  CHECK(named(wrong, "grad:fc.bias").own > named(wrong, "grad:fc.bias").bound);
}

TEST_CASE("tolerance: bounds hold for every accumulator, and one of few bits allows more") {
  const lab::LabData data = lab::data_for("digits");
  const auto with = [&](const std::optional<Accumulator>& sums) {
    lab::Study study(net({}), data, amp::recipe("fp32"), early(0));
    lab::RecordedOps ops(study.model());
    {
      const UnfusedScope parts;
      const ObserverScope scope(ops);
      const AccumulatorScope accumulates(sums);
      study.step();
    }
    return lab::tolerance_of(ops, {.orders = 2});
  };
  for (const NamedAccumulator& named : accumulators()) {
    CAPTURE(named.name);
    for (const lab::Tolerated& one : with(named.accumulator).tensors) {
      CAPTURE(one.name);
      CHECK(one.worst <= 1);
      CHECK(one.worst_probably <= 1);
    }
  }
  const double f32 = named(with(std::nullopt), "fc.linear").bound;
  CHECK(named(with(accumulator("fp16-acc")), "fc.linear").bound > 100 * f32);
  CHECK(named(with(accumulator("bf16-acc")), "fc.linear").bound > 100 * f32);
}

TEST_CASE("tolerance: a sum of one product has each rounding of its accumulator in the bound") {
  struct Case {
    const char* accumulator;
    double x;       // x 1 is the sum
    double stored;  // what two roundings make of it
    double unit;
  };
  const Case cases[] = {
      {"e8m6/product=e8m7", 1 + 2.53125 / 128, 1 + 4.0 / 128, 0x1p-7},  // 2.53 to 3, which is in the middle, to 4
      {"e8m5/group=1/fraction=6", 1 + 1.9375 / 64, 1, 0x1p-6},          // 1.94 cut to 1, which is in the middle, to 0
  };
  for (const Case& c : cases) {
    CAPTURE(std::string(c.accumulator));
    Tensor y;
    const lab::Tolerances t = tolerance_of_ops([&] {
      const AccumulatorScope scope(accumulator(c.accumulator));
      y = matmul(full({1, 1}, c.x), ones({1, 1}));
    });
    CHECK(y.item() == c.stored);
    const lab::Tolerated& one = named(t, "matmul");
    CHECK(one.own == std::abs(c.x - c.stored));
    CHECK(one.own > 1.4 * c.unit);
    CHECK(one.worst <= 1);
    CHECK(one.bound < 3.5 * c.unit);
  }
}

TEST_CASE("tolerance: the bound of a product is that of its sums' partial sums") {
  // In f32, x W^T of one row: 64 terms and a bias, whose partial sums are at most (sum |t| + |sum t|) / 2.
  const lab::Tolerances t =
      lab::tolerance(net({}), lab::data_for("digits"), amp::recipe("fp32"), {.study = early(0), .orders = 1});
  const lab::Tolerated& y = named(t, "fc.linear");
  CHECK(y.bound == y.local);
  CHECK(y.bound < 65 * 0x1p-24 * 20);
  CHECK(y.tolerance <= y.bound);
  CHECK(y.sampled > 0);
  CHECK(named(t, "mul").bound > named(t, "mul").local);
}

TEST_CASE("tolerance: sums that are added up one by one are within what is likely, of matrices, vectors and norms") {
  default_generator().manual_seed(3);
  const NoGrad off;
  constexpr std::int64_t kTerms = 16384;
  const Tensor x = rand({8, kTerms});
  const Tensor v = rand({kTerms});
  const auto added_up = [&](const Tensor& factors) {
    const Tensor products = contiguous(x * factors);
    std::vector<float> y(8);
    for (std::int64_t i = 0; i < products.numel(); ++i)
      y[static_cast<std::size_t>(i / kTerms)] += products.data<float>()[i];
    return from_data(y, {8});
  };
  const auto exceeded = [](const lab::Tolerances& t, const char* name, const Tensor& y) {
    StateDict other;
    other.set(name, y);
    return t.exceeded(other).size();
  };
  const lab::Tolerances of_vector = tolerance_of_ops([&] { matmul(x, v); });
  const lab::Tolerances of_matrix = tolerance_of_ops([&] { matmul(x, v.reshape({kTerms, 1})); });
  const lab::Tolerances of_norm = tolerance_of_ops([&] { norm(x, 2, {1}); });
  CHECK(exceeded(of_vector, "matmul", added_up(v)) == 0);
  CHECK(exceeded(of_matrix, "matmul", added_up(v).reshape({8, 1})) == 0);
  CHECK(exceeded(of_norm, "norm", sqrt(added_up(x))) == 0);
}

TEST_CASE("tolerance: a 16-bit result at the end of its range may overflow or not") {
  const lab::Tolerances t = tolerance_of_ops([] {
    const Tensor x = from_data(std::vector<float>{65504, 16}, {1, 2}).to(DType::f16);
    matmul(x, ones({2, 1}, {.dtype = DType::f16}));
  });
  StateDict other;
  other.set("matmul", full({1, 1}, 65504, {.dtype = DType::f16}));
  for (const lab::Exceeded& e : t.exceeded(other)) CHECK(!e.always);
  CHECK(named(t, "matmul").worst <= 1);
}

TEST_CASE("tolerance: numbers that are almost too small may err by their spacing") {
  const lab::Tolerances t = tolerance_of_ops([] { softmax(from_data(std::vector<float>{0, -95}, {1, 2}), -1); });
  CHECK(min(named(t, "softmax").always).item() >= 0x1p-149);
}

TEST_CASE("tolerance: sums of few bits that overflow in some order have no bound, nor have directed roundings") {
  const auto sums_in = [](const char* name) {
    return tolerance_of_ops([&] {
      const AccumulatorScope scope(accumulator(name));
      matmul(from_data(std::vector<float>{40000, 40000, -40000, -40000}, {1, 4}), ones({4, 1}));
    });
  };
  CHECK(std::isinf(named(sums_in("fp16-acc"), "matmul").bound));
  CHECK(std::isfinite(named(sums_in("bf16-acc"), "matmul").bound));
  CHECK_THROWS_WITH_AS(sums_in("e8m7:up"), doctest::Contains("adds up in bf16-acc:up"), Error);
  CHECK_THROWS_WITH_AS(sums_in("e8m7:stochastic"), doctest::Contains("matmul"), Error);
}

TEST_CASE("tolerance: an accumulator widens the bounds of the ops that add up in it, its products those of products") {
  const auto bound = [](const char* op, const char* name) {
    const lab::Tolerances t = tolerance_of_ops([&] {
      const AccumulatorScope scope(accumulator(name));
      const Tensor x = from_data(std::vector<float>{1, 2, 3, 4}, {1, 4});
      sum(x);
      softmax(x, -1);
      matmul(x, ones({4, 1}));
    });
    return named(t, op).bound;
  };
  CHECK(bound("matmul", "bf16-acc/product=e5m2") > bound("matmul", "bf16-acc"));
  CHECK(bound("sum", "bf16-acc/product=e5m2") == bound("sum", "bf16-acc"));
  CHECK(bound("sum", "bf16-acc") > bound("sum", "f32"));
  CHECK(bound("softmax", "bf16-acc") == bound("softmax", "f32"));
}

TEST_CASE("tolerance: the root of a variance that may be 0 grows up to that of eps") {
  const auto root_error = [](double eps) {
    lab::NormNumbers n;
    n.x = from_data(std::vector<double>{1, -1}, {1, 2});
    n.x_error = ones_like(n.x);
    n.dims = Shape{1};
    n.eps = eps;
    return lab::norm_parts(n, lab::units_of(DType::f32)).root_error.item();
  };
  CHECK(root_error(1e-12) > 0.999e6);
  CHECK(root_error(1e-12) < 1.001e6);
  CHECK(std::isinf(root_error(0)));
}

TEST_CASE("tolerance: a loss whose gradient is 0 up to rounding passes the error on") {
  const lab::Tolerances t = tolerance_of_ops([] {
    Tensor x = zeros({1, 2});
    x.set_requires_grad();
    const Tensor nothing = sum(from_data(std::vector<float>{1, -1}, {2}));
    (cross_entropy(x, zeros({1}, {.dtype = DType::i64})) * nothing).backward();
  });
  CHECK(named(t, "backward:cross_entropy_backward").bound > 0x1p-26);
}

TEST_CASE("tolerance: a factor of an addition rounds its product") {
  const lab::Tolerances t = tolerance_of_ops([] {
    Tensor x = full({1}, -0.1);
    x.add_(ones({1}), 0.1);
    x.clone();
  });
  CHECK(named(t, "clone").bound > 0.1 * 0x1p-24);
}

TEST_CASE("tolerance: golden tolerances are rounded up") {
  lab::Tolerances t;
  const Tensor small = full({1}, 1.2 * 0x1p-149, {.dtype = DType::f64});
  lab::Tolerated x;
  x.name = "x";
  x.reference = small;
  x.probably = small;
  t.tensors.push_back(x);
  CHECK(lab::golden_of(t).tensor("x.tolerance").item() >= small.item());
}

TEST_CASE("tolerance: planted bugs exceed it where they are, and the right step does not") {
  for (const char* recipe : {"fp32", "amp-bf16"}) {
    CAPTURE(recipe);
    const amp::Recipe used = amp::recipe(recipe);
    const lab::Tolerances t = lab::tolerance(net({}), lab::data_for("digits"), used, {.study = early(0), .orders = 1});
    CHECK(t.exceeded(recorded({}, used)).empty());
    const auto first = [&](const Planted& bug) {
      const std::vector<lab::Exceeded> wrong = t.exceeded(recorded(bug, used));
      REQUIRE(!wrong.empty());
      return wrong.front();
    };
    CHECK(first({.transposed = true}).always);
    CHECK(first({.transposed = true}).name.starts_with("square."));
    CHECK(first({.scale = 1}).always);
    CHECK(first({.scale = 1}).name == "mul");
    CHECK(first({.eps = 1e-2}).always);
    CHECK(first({.eps = 1e-2}).name == "norm.layer_norm");
  }
}

TEST_CASE("tolerance: JSON and golden files have every tensor") {
  const lab::Tolerances t = tolerance_of({"digits", "mlp", "amp-bf16"}, 2);
  const StateDict golden = lab::golden_of(t);
  CHECK(golden.size() == 2 * t.tensors.size());
  const std::string json = lab::to_json(t);
  for (const lab::Tolerated& one : t.tensors) {
    CHECK(golden.tensor(one.name).dtype() == one.dtype);
    CHECK(golden.tensor(one.name + ".tolerance").sizes() == one.sizes);
    CHECK(json.find('"' + one.name + '"') != std::string::npos);
  }
  const std::string table = lab::to_string(t);
  for (std::size_t at = 0, end = 0; at < table.size(); at = end + 1) {
    end = std::min(table.find('\n', at), table.size());
    CHECK(end - at <= 80);
  }
}

TEST_CASE("tolerance: what it cannot do is an Error that names it") {
  const lab::LabData data = lab::data_for("digits");
  const auto of = [&](const char* recipe, const lab::ToleranceOptions& options) {
    return lab::tolerance(net({}), data, amp::recipe(recipe), options);
  };
  CHECK_THROWS_WITH_AS(of("fp32", {.study = early(), .orders = 0}), doctest::Contains("0 orders"), Error);
  CHECK_THROWS_WITH_AS(of("fp32", {.study = early(), .parts = -1}), doctest::Contains("-1 parts"), Error);
  const lab::Tolerances t = of("fp32", {.study = early(0), .orders = 1});
  StateDict other;
  other.set("nothing", ones({2}));
  CHECK_THROWS_WITH_AS(t.exceeded(other), doctest::Contains("no tensor 'nothing'"), Error);
  StateDict sizes;
  sizes.set("fc.linear", ones({2}));
  CHECK_THROWS_WITH_AS(t.exceeded(sizes), doctest::Contains("[2]"), Error);
}
