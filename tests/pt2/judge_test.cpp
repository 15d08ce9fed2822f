// Recorded steps of PyTorch models: what rounding explains, and where a planted bug is named.
#include <doctest/doctest.h>
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/gradual.h>
#include <gradual/lab/judge.h>
#include <gradual/lab/judge_attention.h>
#include <gradual/lab/judge_bounds.h>
#include <gradual/lab/judge_losses.h>
#include <gradual/lab/judge_norms.h>
#include <gradual/lab/judge_orders.h>
#include <gradual/lab/judge_ties.h>
#include <gradual/pt2/module.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "judged.h"
#include "support/source_dir.h"
#include "support/tensors.h"

using namespace gradual;
using lab::Judged;
using lab::Judgement;
using test::share_of_bound;
using test::step_of;

namespace {

std::string golden(const std::string& name) { return source_dir() + "/tests/golden/pt2/" + name; }

pt2::Program program_of(const std::string& name) { return pt2::read_program(golden(name + ".pt2")); }

// The golden inputs, and the golden weights of the outputs as their gradients.
StateDict given_of(const std::string& name) {
  StateDict given;
  int place = 0;
  const StateDict all = load_safetensors(golden(name + ".safetensors")).tensors;
  const auto module = pt2::load(golden(name + ".pt2"));
  for (const pt2::InputInfo& in : module->inputs())
    given.set("in." + std::to_string(place++) + ":", all.tensor("input." + in.name));
  for (int i = 0; all.contains("output." + std::to_string(i)); ++i)
    if (all.contains("cotangent." + std::to_string(i)))
      given.set("out." + std::to_string(i) + ".grad:", all.tensor("cotangent." + std::to_string(i)));
  return given;
}

std::string first_name(const Judgement& judgement) {
  const Judged* const wrong = judgement.first();
  return wrong ? wrong->name : "";
}

StateDict with(StateDict record, const std::string& name, const Tensor& tensor) {
  record.set(name, tensor);
  return record;
}

// Attention's output and the gradients of q, k and v, the keys in this order (empty: as they are).
std::vector<Tensor> attention_results(const lab::AttentionStep& a, const Tensor& g, DType dtype,
                                      const std::vector<std::int64_t>& keys) {
  const auto count = static_cast<std::int64_t>(keys.size());
  const Tensor order = keys.empty() ? Tensor() : from_data(keys, {count});
  const auto leaf = [&](const Tensor& t, bool ordered) {
    const Tensor x = ordered && order.defined() ? index_select(t, -2, order) : t + 0.0;
    return x.to(dtype).detach().set_requires_grad();
  };
  const Tensor q = leaf(a.q, false);
  const Tensor k = leaf(a.k, true);
  const Tensor v = leaf(a.v, true);
  const Tensor y = scaled_dot_product_attention(q, k, v, {}, {.scale = a.scale});
  const std::vector<Tensor> roots = {y};
  const std::vector<Tensor> leaves = {q, k, v};
  const std::vector<Tensor> found = autograd::grad(roots, leaves, std::vector<Tensor>{g.to(dtype)});
  const auto back = [&](const Tensor& t) { return order.defined() ? index_add(t, -2, order, t.size(-2)) : t; };
  return {y.detach(), found[0], back(found[1]), back(found[2])};
}

const char* const kModels[] = {"mlp", "cnn", "residual", "tied", "attention", "gpt", "recurrent", "in_place", "unet"};

}  // namespace

TEST_CASE("steps that PyTorch recorded are explained, in f32 and under autocast") {
  for (const char* name : {"mlp.f32", "mlp.bf16", "mlp.f16", "cnn.f32"}) {
    CAPTURE(name);
    const std::string model = std::string(name).substr(0, 3);
    const StateDict record = load_safetensors(golden("step." + std::string(name) + ".safetensors")).tensors;
    const Judgement judgement = lab::judge(program_of(model), record);
    CHECK(first_name(judgement) == "");
    CHECK(judgement.tensors.size() >= 13);
    CHECK(judgement.not_judged.empty());
    for (const Judged& j : judgement.tensors) CHECK(j.difference <= std::max(1e-30, j.allowed));
  }
}

TEST_CASE("Gradual's own steps in f32 are explained, and those in f64 within f64") {
  for (const char* name : kModels) {
    CAPTURE(name);
    const pt2::Program program = program_of(name);
    const StateDict given = given_of(name);
    for (const DType dtype : {DType::f32, DType::f64}) {
      const StateDict record = lab::record_step(program, given, dtype);
      const Judgement judgement = lab::judge(program, record);
      CHECK(first_name(judgement) == "");
      const auto kinds = [&](lab::JudgedKind kind) {
        return std::ranges::count(judgement.tensors, kind, &Judged::kind);
      };
      CHECK(kinds(lab::JudgedKind::value) > 0);
      CHECK(kinds(lab::JudgedKind::parameter_gradient) > 0);
    }
  }
}

TEST_CASE("Gradual's own steps under autocast are explained, and record half tensors; those of a reference are, too") {
  for (const char* name : kModels) {
    CAPTURE(name);
    const pt2::Program program = program_of(name);
    const StateDict given = given_of(name);
    for (const DType dtype : {DType::bf16, DType::f16}) {
      CAPTURE(to_string(dtype));
      const StateDict record = lab::record_step(program, given, dtype);
      const Judgement judgement = lab::judge(program, record, {.dtype = dtype});
      CHECK(first_name(judgement) == "");
      const bool inside = std::string(name) == "recurrent";  // whose results are f32
      CHECK((std::ranges::count(judgement.tensors, dtype, &Judged::dtype) > 0) != inside);
    }
    const CpuBackendScope scope(CpuBackend::eigen);
    CHECK(first_name(lab::judge(program, lab::record_step(program, given))) == "");
  }
}

TEST_CASE("a wrong result is named where it begins, not where it spreads") {
  const pt2::Program program = program_of("mlp");
  const StateDict given = given_of("mlp");
  const StateDict record = lab::record_step(program, given);
  // The same step with another weight of fc1: all that follows is consistent with it.
  const Tensor weight = record.tensor("before:fc1.weight");
  const StateDict other = lab::record_step(program, with(given, "before:fc1.weight", weight + 1e-5));
  const Judgement judgement = lab::judge(program, with(other, "before:fc1.weight", weight));
  const Judged* const wrong = judgement.first();
  REQUIRE(wrong);
  CHECK(wrong->name == "out.0:fc1");
  CHECK(wrong->op == "aten.linear.default");
  CHECK(wrong->line.find("make.py:39") != std::string::npos);
  for (const Judged& j : judgement.tensors) CHECK((j.explained() || j.name == "out.0:fc1"));
}

TEST_CASE("errors just above what rounding explains are found, in values, gradients and buffers") {
  const pt2::Program program = program_of("cnn");
  const StateDict record = lab::record_step(program, given_of("cnn"));
  for (const char* name : {"out.0:c.0", "out.0:c.1", "out.0:fc", "grad:c.0.weight", "grad:fc.bias", "out.0.grad:c.1",
                           "after:c.1.running_mean"}) {
    CAPTURE(name);
    const Tensor t = record.tensor(name);
    // An error of 1e-4 is 1700 units of rounding of f32.
    const Judgement judgement = lab::judge(program, with(record, name, t * 1.0001));
    CHECK(first_name(judgement) == name);
    CHECK(first_name(lab::judge(program, with(record, name, full_like(t, std::nan(""))))) == name);
  }
}

TEST_CASE("a gradient that is dropped in one of two places is named there") {
  const pt2::Program program = program_of("tied");
  const StateDict record = lab::record_step(program, given_of("tied"));
  const Tensor gradient = record.tensor("grad:head.weight");
  const Tensor y = record.tensor("out.0.grad:head").reshape({-1, 7});
  const Tensor x = record.tensor("in.0:head").reshape({-1, 5});
  const Tensor of_head = matmul(transpose(y, 0, 1), x);
  const Judgement judgement = lab::judge(program, with(record, "grad:head.weight", gradient - of_head));
  const Judged* const wrong = judgement.first();
  REQUIRE(wrong);
  CHECK(wrong->name == "grad:head.weight");
  CHECK(wrong->op == "aten.linear.default");
}

TEST_CASE("of equal elements of a max pool's window any may have the gradient; of others only the largest") {
  const pt2::Program program = program_of("cnn");
  const StateDict record = lab::record_step(program, given_of("cnn"));
  const Tensor x = record.tensor("out.0:c.2");  // after the ReLU: windows of zeros only have four equal elements
  const Tensor g = record.tensor("out.0.grad:c.2");
  REQUIRE(x.sizes() == Shape({3, 4, 4, 4}));
  const auto place = [](std::int64_t plane, std::int64_t row, std::int64_t column) {
    return plane * 16 + row * 4 + column;
  };
  int ties = 0;
  int others = 0;
  for (std::int64_t plane = 0; plane < 12; ++plane) {
    std::vector<double> moved = testing::values(g);
    const std::int64_t corners[] = {place(plane, 0, 0), place(plane, 0, 1), place(plane, 1, 0), place(plane, 1, 1)};
    const auto has = std::ranges::find_if(corners, [&](std::int64_t p) { return testing::at(g, p) != 0; });
    if (has == std::end(corners)) continue;
    const std::int64_t other = *has == corners[0] ? corners[3] : corners[0];
    std::swap(moved[static_cast<std::size_t>(*has)], moved[static_cast<std::size_t>(other)]);
    const bool tie = testing::at(x, *has) == testing::at(x, other);
    (tie ? ties : others) += 1;
    const Tensor swapped = from_data(moved, g.sizes(), {.dtype = DType::f32});
    const StateDict other_record = with(with(record, "out.0.grad:c.2", swapped), "in.0.grad:c.3", swapped);
    const Judgement judgement = lab::judge(program, other_record);
    CHECK(first_name(judgement) == (tie ? "" : "out.0.grad:c.2"));
  }
  CHECK(ties > 0);
  CHECK(others > 0);
}

TEST_CASE(
    "which elements a tie leaves open: windows with stride and padding, rows, and elements nearer than their errors") {
  const auto f64 = [](const std::vector<double>& v, const Shape& sizes) {
    return from_data(v, sizes, {.dtype = DType::f64});
  };
  const std::int64_t two = 2;
  const std::int64_t last = -1;
  // Windows of 3 with stride 2 and padding 1 over 4 places: the first has 0 and 1, the second 1, 2 and 3.
  const pt2::Step pool = step_of("aten.max_pool2d.default", {pt2::Ref{0}, std::int64_t{3}, two, std::int64_t{1}});
  const Tensor open = lab::contested_gradient(pool, f64(std::vector<double>(16, 0), {1, 1, 4, 4}), {},
                                              f64({0, 0, 0, 0}, {1, 1, 2, 2}), f64({1, -1, 1, 1}, {1, 1, 2, 2}));
  CHECK(testing::values(open) == std::vector<double>{1, 2, 1, 1, 2, 4, 2, 2, 1, 2, 1, 1, 1, 2, 1, 1});
  const pt2::Step topk = step_of("aten.topk.default", {pt2::Ref{0}, two, last});
  const Tensor x = f64({3, 1, 3, 2, 9, 7, 2, 1}, {2, 4});
  const Tensor y = f64({3, 3, 9, 7}, {2, 2});
  CHECK(testing::values(lab::contested_choice(topk, x, {}, y)) == std::vector<double>{1, 1, 0, 0});
  const Tensor error = full_like(x, 1.1);  // 7 and 9 are nearer than the sum of their errors
  CHECK(testing::values(lab::contested_choice(topk, x, error, y)) == std::vector<double>{1, 1, 1, 1});
  const pt2::Step amax = step_of("aten.amax.default", {pt2::Ref{0}, last});
  CHECK_FALSE(lab::contested_choice(amax, f64({1, 2, 3, 0}, {2, 2}), {}, f64({2, 3}, {2})).defined());
}

TEST_CASE("attention in f32 is within the bounds over all orders, for any order of the keys, and not far below") {
  Generator generator(3);
  for (const double size : {0.3, 3.0, 12.0}) {
    CAPTURE(size);
    lab::AttentionStep a;
    a.q = mul(randn({2, 3, 17, 8}, {}, generator), size).to(DType::f64);
    a.k = randn({2, 3, 33, 8}, {}, generator).to(DType::f64);
    a.v = randn({2, 3, 33, 5}, {}, generator).to(DType::f64);
    a.scale = 0.35;
    const Tensor g = randn({2, 3, 17, 5}, {}, generator).to(DType::f64);
    const lab::Units units = lab::units_of(DType::f32);
    const lab::AttentionGradientBounds bounds = lab::attention_gradient_bounds(a, g, {}, units);
    const std::vector<Tensor> allowed = {lab::attention_bound(a, units), bounds.q, bounds.k, bounds.v};
    const std::vector<Tensor> exact = attention_results(a, g, DType::f64, {});
    std::vector<double> nearest(4, 0);
    for (int order = 0; order < 4; ++order) {
      std::vector<std::int64_t> keys(33);
      for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<std::int64_t>(i * (order + 1) % 33);
      if (order == 2) continue;  // 3 divides 33
      const std::vector<Tensor> got = attention_results(a, g, DType::f32, keys);
      for (std::size_t i = 0; i < got.size(); ++i)
        nearest[i] = std::max(nearest[i], max(abs(got[i].to(DType::f64) - exact[i]) / allowed[i]).item());
    }
    for (const double ratio : nearest) {
      CHECK(ratio < 1);
      CHECK(ratio > 1e-3);
    }
  }
}

namespace {

// Its forward and the gradients of its inputs, in the inputs' dtype.
using Computed = std::vector<Tensor> (*)(const std::vector<Tensor>& inputs);
struct BoundedOp {
  const char* name;
  pt2::Step step;  // its arguments are values 0, 1 and 2
  std::vector<Tensor> inputs;
  Computed compute;
};

std::vector<BoundedOp> bounded_ops(double offset) {
  Generator generator(5);
  const auto wide = [](const Tensor& t) { return t.to(DType::f32).to(DType::f64); };
  const Tensor x = wide(randn({6, 4, 5, 5}, {}, generator) + offset);
  const Tensor rows = wide(randn({12, 40}, {}, generator) * 3 + offset);
  const Tensor w = wide(randn({4}, {}, generator));
  const Tensor b = wide(randn({4}, {}, generator));
  const Tensor row_weight = wide(randn({40}, {}, generator));
  const Tensor row_bias = wide(randn({40}, {}, generator));
  const Tensor zero = zeros({4}, {.dtype = DType::f64});
  const pt2::Value::List of_row{std::int64_t{40}};
  const pt2::Value none;
  return {
      {"layer norm",
       step_of("aten.layer_norm.default", {pt2::Ref{0}, of_row, pt2::Ref{1}, pt2::Ref{2}, 1e-5, true}),
       {rows, row_weight, row_bias},
       [](const std::vector<Tensor>& in) { return std::vector{layer_norm(in[0], 1, in[1], in[2], 1e-5)}; }},
      {"RMS norm",
       step_of("aten.rms_norm.default", {pt2::Ref{0}, of_row, pt2::Ref{1}, 1e-6}),
       {rows, row_weight},
       [](const std::vector<Tensor>& in) { return std::vector{rms_norm(in[0], 1, in[1], 1e-6)}; }},
      {"batch norm",
       step_of("aten.batch_norm.default",
               {pt2::Ref{0}, pt2::Ref{1}, pt2::Ref{2}, pt2::Ref{3}, pt2::Ref{3}, true, 0.1, 1e-5, false}),
       {x, w, b},
       [](const std::vector<Tensor>& in) {
         return std::vector{batch_norm(in[0], in[1], in[2], {}, {}, true, 1e-5).y};
       }},
      {"group norm",
       step_of("aten.group_norm.default", {pt2::Ref{0}, std::int64_t{2}, pt2::Ref{1}, pt2::Ref{2}, 1e-5, true}),
       {x, w, b},
       [](const std::vector<Tensor>& in) {
         const Tensor y = layer_norm(reshape(in[0], {6, 2, 50}), 1, {}, {}, 1e-5);
         return std::vector{reshape(y, {6, 4, 5, 5}) * reshape(in[1], {4, 1, 1}) + reshape(in[2], {4, 1, 1})};
       }},
      {"log softmax",
       step_of("aten.log_softmax.int", {pt2::Ref{0}, std::int64_t{-1}, none}),
       {rows},
       [](const std::vector<Tensor>& in) { return std::vector{log_softmax(in[0], 1)}; }},
      {"cross entropy",
       step_of("aten.cross_entropy_loss.default",
               {pt2::Ref{0}, pt2::Ref{1}, none, std::int64_t{1}, std::int64_t{-100}, 0.1}),
       {rows, from_data(std::vector<std::int64_t>{0, 39, 5, -100, 7, 7, 12, 1, 2, 3, -100, 38}, {12})},
       [](const std::vector<Tensor>& in) {
         return std::vector{cross_entropy(in[0], in[1], {.label_smoothing = 0.1, .ignore_index = -100})};
       }},
  };
}

std::vector<Tensor> with_gradients(const BoundedOp& op, DType dtype, const Tensor& g) {
  std::vector<Tensor> inputs;
  std::vector<Tensor> leaves;
  for (const Tensor& t : op.inputs) {
    inputs.push_back(t.is_floating() ? t.to(dtype).detach().set_requires_grad() : t);
    if (t.is_floating()) leaves.push_back(inputs.back());
  }
  const Tensor y = op.compute(inputs)[0];
  std::vector<Tensor> all{y.detach()};
  const Tensor seed = g.defined() ? g.to(dtype) : ones_like(y);
  for (const Tensor& found : autograd::grad(std::vector<Tensor>{y}, leaves, std::vector<Tensor>{seed}))
    all.push_back(found);
  return all;
}

}  // namespace

TEST_CASE("norms and losses in f32 are within their bounds, which are not far above, with and without an offset") {
  const lab::Units units = lab::units_of(DType::f32);
  for (const double offset : {0.0, 10.0}) {
    for (const BoundedOp& op : bounded_ops(offset)) {
      CAPTURE(op.name);
      CAPTURE(offset);
      lab::ValueTensors inputs;
      for (std::size_t i = 0; i < op.inputs.size(); ++i) inputs.emplace_back(static_cast<int>(i), op.inputs[i]);
      const std::vector<Tensor> errors(inputs.size());
      Generator generator(9);
      const Tensor like = op.compute(op.inputs)[0];
      const Tensor g = randn(like.sizes(), {}, generator).to(DType::f64);
      const std::vector<Tensor> exact = with_gradients(op, DType::f64, g);
      const std::vector<Tensor> got = with_gradients(op, DType::f32, g);
      const lab::ValueTensors outputs{{9, exact[0]}};
      std::vector<Tensor> results(exact.begin() + 1, exact.end());
      results.resize(inputs.size());
      auto bounds = lab::norm_bounds(op.step, inputs, errors, outputs, units);
      if (!bounds) bounds = lab::loss_bounds(op.step, inputs, errors, outputs, units);
      auto of_gradients = lab::norm_gradient_bounds(op.step, inputs, errors, g, {}, results, units);
      if (!of_gradients) of_gradients = lab::loss_gradient_bounds(op.step, inputs, errors, g, {}, results, units);
      REQUIRE(bounds);
      REQUIRE(of_gradients);
      const double forward = share_of_bound(got[0], exact[0], bounds->at(0));
      CHECK(forward < 1);
      CHECK(forward > 1e-3);
      for (std::size_t i = 1; i < exact.size(); ++i) {
        const double near = share_of_bound(got[i], exact[i], of_gradients->at(i - 1));
        CHECK(near < 1);
        CHECK(near > 1e-4);
      }
    }
  }
}

TEST_CASE("a bound of softmax stays finite and explains masks of the least number, whose own error is large") {
  const double least = -3.4028234663852886e38;
  const Tensor x = from_data(std::vector<double>{1, 2, least, 3, least, least}, {2, 3}, {.dtype = DType::f64});
  const lab::Units units = lab::units_of(DType::f32);
  const Tensor bound = lab::softmax_bound(x, abs(x) * 1e-6, units);
  const std::vector<double> all = testing::values(bound);
  for (const double b : all) CHECK(std::isfinite(b));
  CHECK(all[0] > 1e-7);
  CHECK(all[0] < 1e-5);
  CHECK(all[2] < 1e-30);
  CHECK(all[4] < 1e-30);
}

TEST_CASE("a change that overflowed is no 0: it leaves open every value") {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::nan("");
  const auto f64 = [](const std::vector<double>& v) { return from_data(v, {5}, {.dtype = DType::f64}); };
  const Tensor away = lab::distance(f64({inf, nan, inf, 1, -inf}), f64({0.5, 0.5, inf, 3, nan}));
  CHECK(testing::values(away) == std::vector<double>{inf, inf, 0, 2, 0});
}

TEST_CASE(
    "sampled orders: the spread of a product is near its rounding error, and far below the bound over all orders") {
  const pt2::Program program = program_of("mlp");
  const StateDict record = lab::record_step(program, given_of("mlp"));
  const Judgement judgement = lab::judge(program, record);
  int sampled = 0;
  for (const Judged& j : judgement.tensors) {
    if (j.sampled < 0) continue;
    CAPTURE(j.name);
    ++sampled;
    CHECK(j.sampled > 0);
    CHECK(j.sampled < j.allowed);
    CHECK(j.difference < 16 * j.sampled);
    CHECK_FALSE(j.unusual());
  }
  CHECK(sampled >= 2);
}

TEST_CASE("a running mean near 0 may differ by the rounding of its sum") {
  const pt2::Program program = program_of("cnn");
  const StateDict record = lab::record_step(program, given_of("cnn"));
  const Tensor mean = record.tensor("after:c.1.running_mean");
  const Tensor x = record.tensor("in.0:c.1");
  const double sum_of_sizes = gradual::mean(abs(x)).item();
  // 48 numbers a channel, in f32: n u = 2.9e-6 of the mean magnitude, a tenth of which enters.
  const auto moved = [&](double by) { return with(record, "after:c.1.running_mean", mean + by * sum_of_sizes); };
  CHECK(first_name(lab::judge(program, moved(5e-8))) == "");
  CHECK(first_name(lab::judge(program, moved(1e-5))) == "after:c.1.running_mean");
}

TEST_CASE("a record without inputs or with others is an error; what is not in the graph is listed") {
  const pt2::Program program = program_of("mlp");
  const StateDict record = lab::record_step(program, given_of("mlp"));
  CHECK_THROWS_WITH_AS(lab::judge(program, StateDict()), doctest::Contains("no in.0:, the input x of the model"),
                       Error);
  CHECK_THROWS_WITH_AS(lab::judge(program, with(record, "in.0:", zeros({3, 7}))), doctest::Contains("[3, 7]"), Error);
  CHECK_THROWS_WITH_AS(lab::judge(program, with(record, "before:fc1.bias", zeros({3}))),
                       doctest::Contains("before:fc1.bias is [3]; the graph has [8]"), Error);
  CHECK_THROWS_WITH_AS(lab::record_step(program, record, DType::f8e4m3fn), doctest::Contains("e4m3fn"), Error);
  const Judgement judgement = lab::judge(program, with(record, "out.0:nowhere", zeros({1})));
  CHECK(judgement.not_judged == std::vector<std::string>{"out.0:nowhere"});
  CHECK(first_name(lab::judge(program, with(record, "out.0:fc1", zeros({3, 9})))) == "out.0:fc1");
}

TEST_CASE("a recorded tensor of another kind than the graph's is listed, not judged") {
  const pt2::Program program = program_of("tied");
  const StateDict record = lab::record_step(program, given_of("tied"));
  const Judgement judgement = lab::judge(program, with(record, "in.0:embed", zeros({2, 3})));
  CHECK(first_name(judgement) == "");
  CHECK(judgement.not_judged.front() == "in.0:embed");
}
