// Bounds of judge(): many orders of summation in each recorded dtype stay within them, and a planted bug does not.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/judge.h>
#include <gradual/lab/judge_bounds.h>
#include <gradual/lab/judge_losses.h>
#include <gradual/lab/judge_norms.h>
#include <gradual/lab/judge_ops.h>
#include <gradual/lab/random_order.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "archive_writer.h"
#include "judged.h"
#include "support/files.h"
#include "support/tensors.h"

using namespace gradual;
using lab::random_order;
using test::share_of_bound;
using test::step_of;

namespace {

using Tensors = std::vector<Tensor>;
using Random = std::mt19937_64;

// An op, and a function that computes it in the dtype of its inputs with sums in an order that `random` chooses.
struct SummingCase {
  std::string name;
  pt2::Step step;  // its arguments are values 0, 1 and 2
  Tensors inputs;
  Tensor (*compute)(const Tensors& inputs, Random& random);
  Tensor (*wrong)(const Tensors& inputs, Random& random);
};

constexpr std::int64_t kRows = 6;
constexpr std::int64_t kColumns = 12;
constexpr double kSmoothing = 0.1;

Tensor scaled(const Tensor& y, const Tensors& in) {
  return y * reshape(in[1], {1, in[1].size(0), 1}) + reshape(in[2], {1, in[2].size(0), 1});
}
Tensor instance_norm(const Tensors& in, Random& random) {
  const Tensor x = reshape(in[0], {in[0].size(0), in[0].size(1), -1});
  const Tensor order = random_order(x.size(2), random);
  const Tensor y = layer_norm(index_select(x, 2, order), 1, {}, {}, 1e-5);
  return reshape(scaled(index_add(y, 2, order, x.size(2)), in), in[0].sizes());
}
Tensor norm_of_channels(const Tensors& in, Random&) { return batch_norm(in[0], in[1], in[2], {}, {}, true, 1e-5).y; }

Tensor squared_distances(const Tensor& x, Random& random) {
  const Tensor mixed = index_select(x, 1, random_order(x.size(1), random));
  return sum(square(mixed - mean(mixed, {1}, true)), {1});
}
Tensor variance(const Tensors& in, Random& random) { return squared_distances(in[0], random) / double(kColumns - 1); }
Tensor biased_variance(const Tensors& in, Random& random) {
  return squared_distances(in[0], random) / double(kColumns);
}
Tensor deviation(const Tensors& in, Random& random) { return sqrt(variance(in, random)); }
Tensor biased_deviation(const Tensors& in, Random& random) { return sqrt(biased_variance(in, random)); }

Tensor differences(const Tensors& in, Random& random) {
  const Tensor order = random_order(in[0].numel(), random);
  return index_select(reshape(in[0] - in[1], {-1}), 0, order);
}
Tensor mean_square(const Tensors& in, Random& random) { return mean(square(differences(in, random))); }
Tensor square_by_rows(const Tensors& in, Random& random) {
  return sum(square(differences(in, random))) / double(kRows);
}
Tensor sum_of_squares(const Tensors& in, Random& random) { return sum(square(differences(in, random))); }
Tensor mean_distance(const Tensors& in, Random& random) { return mean(abs(differences(in, random))); }
Tensor distance_by_rows(const Tensors& in, Random& random) { return sum(abs(differences(in, random))) / double(kRows); }

Tensor soft_loss(const Tensors& in, Random& random, double smoothing) {
  const Tensor classes = random_order(kColumns, random);
  const Tensor rows = random_order(kRows, random);
  const auto mixed = [&](const Tensor& t) { return index_select(index_select(t, 1, classes), 0, rows); };
  const Tensor target = mixed(in[1]) * (1 - smoothing) + smoothing / double(kColumns);
  const Tensor terms = target * index_select(in[2], 0, classes) * log_softmax(mixed(in[0]), 1);
  return -(sum(sum(terms, {1})) / double(kRows));
}
Tensor soft_targets(const Tensors& in, Random& random) { return soft_loss(in, random, kSmoothing); }
Tensor mean_over_classes(const Tensors& in, Random& random) { return soft_targets(in, random) / double(kColumns); }

SummingCase soft_target_case(const Tensor& x, Generator& generator) {
  const auto f64 = [](const Tensor& t) { return t.to(DType::f64); };
  const Tensor p = softmax(randn({kRows, kColumns}, {}, generator), 1);
  const Tensor weight = rand({kColumns}, {}, generator) + 0.5;
  return {"soft targets",
          step_of("aten.cross_entropy_loss.default",
                  {pt2::Ref{0}, pt2::Ref{1}, pt2::Ref{2}, std::int64_t{1}, std::int64_t{-100}, kSmoothing}),
          {x, f64(p), f64(weight)},
          soft_targets,
          mean_over_classes};
}

std::vector<SummingCase> summing_cases() {
  Generator generator(11);
  const auto drawn = [&](const Shape& sizes, double offset) {
    return (randn(sizes, {}, generator) + offset).to(DType::f64);
  };
  const Tensor rows = drawn({kRows, kColumns}, 1);
  const Tensor others = drawn({kRows, kColumns}, 0);
  const pt2::Value none;
  const pt2::Value::List last{std::int64_t{1}};
  return {{"instance norm",
           step_of("aten.instance_norm.default",
                   {pt2::Ref{0}, pt2::Ref{1}, pt2::Ref{2}, none, none, true, 0.1, 1e-5, false}),
           {drawn({3, 4, 5, 5}, 1), drawn({4}, 0), drawn({4}, 0)},
           instance_norm,
           norm_of_channels},
          {"variance",
           step_of("aten.var.correction", {pt2::Ref{0}, last, std::int64_t{1}, false}),
           {rows},
           variance,
           biased_variance},
          {"standard deviation",
           step_of("aten.std.correction", {pt2::Ref{0}, last, std::int64_t{1}, false}),
           {rows},
           deviation,
           biased_deviation},
          {"mean square",
           step_of("aten.mse_loss.default", {pt2::Ref{0}, pt2::Ref{1}, std::int64_t{1}}),
           {rows, others},
           mean_square,
           square_by_rows},
          {"sum of squares",
           step_of("aten.mse_loss.default", {pt2::Ref{0}, pt2::Ref{1}, std::int64_t{2}}),
           {rows, others},
           sum_of_squares,
           mean_square},
          {"mean distance",
           step_of("aten.l1_loss.default", {pt2::Ref{0}, pt2::Ref{1}, std::int64_t{1}}),
           {rows, others},
           mean_distance,
           distance_by_rows},
          soft_target_case(drawn({kRows, kColumns}, 0) * 3, generator)};
}

// The result and the gradients of the inputs, rounded to `dtype`; the arithmetic is that of f32, and f64 for f64.
Tensors recorded(const SummingCase& c, Tensor (*compute)(const Tensors&, Random&), DType dtype, const Tensor& g,
                 Random& random) {
  const DType arithmetic = dtype == DType::f64 ? DType::f64 : DType::f32;
  const auto stored = [&](const Tensor& t) { return t.to(dtype).to(arithmetic).detach(); };
  Tensors leaves;
  for (const Tensor& t : c.inputs) leaves.push_back((stored(t) + 0.0).detach().set_requires_grad());
  const Tensor y = compute(leaves, random);
  Tensors all{y.detach().to(dtype)};
  for (const Tensor& found : autograd::grad(Tensors{y}, leaves, Tensors{stored(g)})) all.push_back(found.to(dtype));
  return all;
}

lab::ValueTensors numbered(const Tensors& inputs) {
  lab::ValueTensors all;
  for (std::size_t i = 0; i < inputs.size(); ++i) all.emplace_back(static_cast<int>(i), inputs[i]);
  return all;
}

// Of the result and of each input's gradient; undefined: it has no bound, only an estimate.
Tensors bounds_of(const SummingCase& c, const Tensors& errors, const Tensors& exact, const Tensor& g, DType dtype) {
  const lab::Units units = lab::units_of(dtype);
  const lab::ValueTensors inputs = numbered(c.inputs);
  const lab::ValueTensors outputs{{9, exact[0]}};
  const Tensors results(exact.begin() + 1, exact.end());
  auto forward = lab::norm_bounds(c.step, inputs, errors, outputs, units);
  if (!forward) forward = lab::variance_bounds(c.step, inputs, errors, outputs, units);
  if (!forward) forward = lab::loss_bounds(c.step, inputs, errors, outputs, units);
  REQUIRE(forward);
  auto backward = lab::norm_gradient_bounds(c.step, inputs, errors, g, {}, results, units);
  if (!backward) backward = lab::loss_gradient_bounds(c.step, inputs, errors, g, {}, results, units);
  Tensors all{forward->at(0)};
  if (backward) all.insert(all.end(), backward->begin(), backward->end());
  all.resize(exact.size());
  return all;
}

Tensor seed_for(const SummingCase& c) {
  Generator generator(4);
  Random random(1);
  const Shape sizes = c.compute(c.inputs, random).sizes();
  return randn(sizes, {}, generator).to(DType::f64);
}

}  // namespace

TEST_CASE("sums in many orders and in each dtype are within the bounds, and a planted bug is not") {
  constexpr int kOrders = 40;
  for (const SummingCase& c : summing_cases()) {
    CAPTURE(c.name);
    Random random(7);
    const Tensor g = seed_for(c);
    const Tensors exact = recorded(c, c.compute, DType::f64, g, random);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(dtype);
      const Tensors bounds = bounds_of(c, Tensors(c.inputs.size()), exact, g, dtype);
      std::vector<double> nearest(exact.size(), 0);
      for (int order = 0; order < kOrders; ++order) {
        const Tensors got = recorded(c, c.compute, dtype, g, random);
        for (std::size_t i = 0; i < got.size(); ++i)
          if (bounds[i].defined()) nearest[i] = std::max(nearest[i], share_of_bound(got[i], exact[i], bounds[i]));
      }
      for (std::size_t i = 0; i < nearest.size(); ++i) {
        CAPTURE(i);
        CHECK(nearest[i] < 1);
        if (bounds[i].defined()) CHECK(nearest[i] > 1e-3);
      }
      const Tensors wrong = recorded(c, c.wrong, dtype, g, random);
      CHECK(share_of_bound(wrong[0], exact[0], bounds[0]) > 1);
    }
  }
}

TEST_CASE("gradients of activations that saturate: formulas that subtract from 1 are explained, a wrong slope is not") {
  manual_seed(3);
  const Tensor x = mul(randn({4096}), 3.0);
  const Tensor wide = x.to(DType::f64);
  const lab::Units units = lab::units_of(DType::f32);
  const auto slope_of_sigmoid = [](const Tensor& t) {
    const Tensor s = sigmoid(t);
    return s * (1 - s);
  };
  const auto slope_of_gelu = [](const Tensor& t) {  // by tanh, as PyTorch writes it
    const Tensor h = tanh(0.7978845608 * (t + 0.044715 * t * t * t));
    return 0.5 * (1 + h) + 0.5 * t * (1 - h * h) * (0.7978845608 * (1 + 3 * 0.044715 * t * t));
  };
  const auto share = [&](const pt2::Step& step, const auto& slope, double scale) {
    const auto errors = lab::saturation_errors(step, {{0, wide}}, units);
    REQUIRE(errors);
    const Tensor exact = slope(wide);
    // the operand's own rounding is of the estimate
    return share_of_bound(slope(x) * scale, exact, add(errors->gradient, mul(abs(exact), 8 * units.sum)));
  };
  const pt2::Step by_sigmoid = step_of("aten.sigmoid.default", {});
  const pt2::Step by_tanh = step_of("aten.gelu.default", {pt2::Value(), std::string("tanh")});
  CHECK(share(by_sigmoid, slope_of_sigmoid, 1) < 1);
  CHECK(share(by_sigmoid, slope_of_sigmoid, 1 + 1e-5) > 1);
  CHECK(share(by_tanh, slope_of_gelu, 1) < 1);
  CHECK(share(by_tanh, slope_of_gelu, 1 + 1e-4) > 1);
  CHECK_FALSE(lab::saturation_errors(step_of("aten.exp.default", {}), {{0, wide}}, units));
  CHECK_FALSE(lab::saturation_errors(step_of("aten.zeros.default", {}), {}, units));
}

TEST_CASE("the windows of an average pool that overlap at an element are counted") {
  const auto windows = [](const char* target, const pt2::Value& kernel, const pt2::Value& stride) {
    return lab::windows_over_an_element(step_of(target, {pt2::Value(), kernel, stride}));
  };
  const auto both = [](std::int64_t n) { return pt2::Value(pt2::Value::List{pt2::Value(n), pt2::Value(n)}); };
  CHECK(windows("aten.avg_pool2d.default", both(3), both(2)) == 4);
  CHECK(windows("aten.avg_pool2d.default", both(3), pt2::Value(std::int64_t{1})) == 9);
  CHECK(windows("aten.avg_pool2d.default", both(2), pt2::Value(pt2::Value::List{})) == 1);
  CHECK(windows("aten.max_pool2d.default", both(3), both(2)) == 1);
}

TEST_CASE("soft targets and weights carry their errors into the loss and its gradients") {
  Generator generator(3);
  const SummingCase c = soft_target_case((randn({kRows, kColumns}, {}, generator) * 3).to(DType::f64), generator);
  const Tensor g = seed_for(c);
  Random random(2);
  const Tensors exact = recorded(c, c.compute, DType::f64, g, random);
  for (const std::size_t moved : {1, 2}) {
    CAPTURE(moved);
    Tensors errors(c.inputs.size());
    errors[moved] = abs(c.inputs[moved]) * 1e-3;
    const Tensors bounds = bounds_of(c, errors, exact, g, DType::f64);
    std::vector<double> nearest(exact.size(), 0);
    for (int sample = 0; sample < 20; ++sample) {
      SummingCase other = c;
      const Tensor direction = where(randn(c.inputs[moved].sizes(), {}, generator) > 0, 1, -1).to(DType::f64);
      other.inputs[moved] = c.inputs[moved] + errors[moved] * direction;
      const Tensors got = recorded(other, c.compute, DType::f64, g, random);
      for (std::size_t i = 0; i < got.size(); ++i)
        if (bounds[i].defined()) nearest[i] = std::max(nearest[i], share_of_bound(got[i], exact[i], bounds[i]));
    }
    CHECK(nearest[0] < 1);
    CHECK(nearest[0] > 0.05);
    CHECK(nearest[1] < 1);
    CHECK(nearest[1] > 0.05);
  }
}

namespace {

pt2::Program program_of(const std::vector<std::string>& nodes, const std::string& output) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "made.pt2";
  std::ofstream(path, std::ios::binary) << test::archive_of(test::graph_of(nodes, {output}));
  return pt2::read_program(path);
}

std::string aten(const std::string& name, const std::vector<std::pair<std::string, std::string>>& arguments,
                 const std::string& output) {
  return test::node("torch.ops.aten." + name, arguments, output);
}

}  // namespace

TEST_CASE("h[:, :2] += 1 with recorded functions: the gradient of what h was before counts the view once") {
  using test::number;
  using test::tensor;
  const auto part = [](const std::string& name) {
    return aten("slice.Tensor", {{"self", tensor("m")}, {"dim", number(1)}, {"start", number(0)}, {"end", number(2)}},
                name);
  };
  const pt2::Program program =
      program_of({aten("mul.Tensor", {{"self", tensor("x")}, {"other", number(2)}}, "m"), part("v"),
                  aten("add_.Tensor", {{"self", tensor("v")}, {"other", number(1)}}, "w"), part("u"),
                  aten("copy_.default", {{"self", tensor("u")}, {"src", tensor("w")}}, "c"),
                  aten("tanh.default", {{"self", tensor("m")}}, "y")},
                 "y");
  Generator generator(8);
  const Tensor x = randn({4, 3}, {}, generator);
  const Tensor g = randn({4, 3}, {}, generator);
  const Tensor before = mul(x, 2);
  const Tensor added = narrow(before, 1, 0, 2) + 1;
  const Tensor y = tanh(cat({added, narrow(before, 1, 2, 1)}, 1));
  const Tensor gradient = mul(g, sub(1, square(y)));
  StateDict record;
  record.set("in.0:", x);
  record.set("op.0:/mul", before);
  record.set("op.0:/add", added);
  record.set("out.0:", y);
  record.set("out.0.grad:", g);
  record.set("op.0.grad:/add", narrow(gradient, 1, 0, 2).contiguous());
  record.set("op.0.grad:/mul", gradient);
  const lab::Judgement judgement = lab::judge(program, record);
  CHECK(judgement.not_judged.empty());
  CHECK(judgement.tensors.size() == 6);
  for (const lab::Judged& j : judgement.tensors) {
    CAPTURE(j.name);
    CHECK(j.explained());
  }
  record.set("op.0.grad:/mul", gradient * 1.001);
  REQUIRE(lab::judge(program, record).first());
  CHECK(lab::judge(program, record).first()->name == "op.0.grad:/mul");
}

TEST_CASE("sampled orders of a product of a tensor with itself are orders of its sums") {
  using test::tensor;
  Generator generator(6);
  const Tensor x = randn({3, 3}, {}, generator);
  for (const std::string name : {"matmul", "mm"}) {
    CAPTURE(name);
    const std::string other = name == "mm" ? "mat2" : "other";
    const pt2::Program program =
        program_of({aten(name + ".default", {{"self", tensor("x")}, {other, tensor("x")}}, "y")}, "y");
    StateDict record;
    record.set("in.0:", x);
    record.set("op.0:/" + name, matmul(x, x));
    const lab::Judgement judgement = lab::judge(program, record);
    REQUIRE(judgement.tensors.size() == 1);
    CHECK(judgement.tensors[0].explained());
    CHECK(judgement.tensors[0].sampled > 0);
    CHECK(judgement.tensors[0].sampled < 1e-6);
  }
  // Of a sum with its own operand no order is sampled: the other summand would be in another order.
  const pt2::Program sum = program_of(
      {aten("addmm.default", {{"self", tensor("x")}, {"mat1", tensor("x")}, {"mat2", tensor("x")}}, "y")}, "y");
  StateDict record;
  record.set("in.0:", x);
  record.set("op.0:/addmm", x + matmul(x, x));
  const lab::Judgement judgement = lab::judge(sum, record);
  REQUIRE(judgement.tensors.size() == 1);
  CHECK(judgement.tensors[0].explained());
  CHECK(judgement.tensors[0].sampled < 0);
}
