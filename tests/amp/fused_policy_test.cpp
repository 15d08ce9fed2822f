// Fused ops (linear_relu, linear_gelu, batch_norm with relu, dropout_add) follow the policies of their parts.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "../../amp/autocast.h"
#include "../../amp/rewrite.h"
#include "../../autograd/autograd.h"
#include "../../autograd/tape.h"
#include "../../core/ops/ops.h"
#include "../../nn/activation.h"
#include "../../nn/linear.h"
#include "../../nn/sequential.h"
#include "recorder.h"
#include "support.h"

using namespace gradual;
using amp::Autocast;
using amp::CastPolicy;

namespace {

using Tensors = std::vector<Tensor>;

Tensor linear_one(const Tensors& t) { return linear_relu(t[0], t[1], t[2]); }
Tensor linear_two(const Tensors& t) { return relu(linear(t[0], t[1], t[2])); }
Tensor gelu_one(const Tensors& t) { return linear_gelu(t[0], t[1], t[2], Gelu::tanh); }
Tensor gelu_two(const Tensors& t) { return gelu(linear(t[0], t[1], t[2]), Gelu::tanh); }
Tensor norm_one(const Tensors& t) { return batch_norm(t[0], t[2], {}, {}, {}, true, 1e-5, true).y; }
Tensor norm_two(const Tensors& t) { return relu(batch_norm(t[0], t[2], {}, {}, {}, true).y); }

struct Seen {
  Tensor y;
  std::vector<Tensor> gradients;
  std::vector<OpId> ops;  // forward, below autograd
};
Seen run(const amp::PolicyTable& table, Tensor (*op)(const Tensors&), DType dtype) {
  Tensors in{random({6, 4}, 1, dtype), random({4, 4}, 2, dtype), random({4}, 3, dtype)};
  for (Tensor& t : in) t.set_requires_grad();
  Seen seen;
  {
    Recorder recorder;
    const Autocast scope({.dtype = DType::bf16, .table = table});
    seen.y = op(in);
    for (const auto& s : recorder.seen) seen.ops.push_back(s.op);
  }
  seen.gradients = autograd::grad({seen.y}, in, {random({6, 4}, 4, seen.y.dtype())}, {.allow_unused = true});
  return seen;
}

void check_same(const Seen& a, const Seen& b) {
  CHECK(same_bits(a.y, b.y));
  for (std::size_t i = 0; i < a.gradients.size(); ++i) {
    REQUIRE(a.gradients[i].defined() == b.gradients[i].defined());
    if (a.gradients[i].defined()) CHECK(same_bits(a.gradients[i], b.gradients[i]));
  }
}

bool ran(const Seen& seen, OpId op) { return std::find(seen.ops.begin(), seen.ops.end(), op) != seen.ops.end(); }

}  // namespace

TEST_CASE("fused ops with relu or gelu follow the policies of their parts") {
  const std::vector<std::vector<std::pair<OpId, CastPolicy>>> edits{
      {},
      {{OpId::linear, CastPolicy::fp32()}},
      {{OpId::linear, CastPolicy::pass()}},
      {{OpId::batch_norm, CastPolicy::fp32()}},
      {{OpId::relu, CastPolicy::fp32()}},
      {{OpId::gelu, CastPolicy::fp32()}},
      {{OpId::relu, CastPolicy::cast(DType::f16)}},
      {{OpId::relu, CastPolicy::lower()}, {OpId::linear, CastPolicy::fp32()}, {OpId::batch_norm, CastPolicy::fp32()}}};
  for (const auto& edit : edits)
    for (const DType dtype : {DType::f32, DType::f16}) {
      amp::PolicyTable table;
      bool alone = false;
      bool gelu_alone = false;
      for (const auto& [op, policy] : edit) {
        table.set(op, policy);
        alone = alone || op == OpId::relu;
        gelu_alone = gelu_alone || op == OpId::gelu;
      }
      CAPTURE(to_string(table));
      const Seen linear = run(table, linear_one, dtype);
      const Seen norm = run(table, norm_one, dtype);
      check_same(linear, run(table, linear_two, dtype));
      check_same(norm, run(table, norm_two, dtype));
      const Seen gelu = run(table, gelu_one, dtype);
      check_same(gelu, run(table, gelu_two, dtype));
      CHECK(ran(gelu, OpId::linear_gelu) == !gelu_alone);
      CHECK(ran(gelu, OpId::gelu) == gelu_alone);
      CHECK(ran(linear, OpId::linear_relu) == !alone);
      CHECK(ran(linear, OpId::relu) == alone);
      CHECK(ran(norm, OpId::relu) == alone);
    }
}

TEST_CASE("linear_relu is banned if linear or relu is banned") {
  const Tensor x = ones({2, 3});
  const Tensor w = ones({4, 3});
  for (const OpId op : {OpId::linear, OpId::relu}) {
    amp::PolicyTable table;
    table.set(op, CastPolicy::banned("not here"));
    const Autocast scope({.table = table});
    CHECK(message_of([&] { linear_relu(x, w); }).ends_with("not here"));
  }
}

TEST_CASE("a rewrite of linear runs in linear_relu, and relu after it") {
  amp::PolicyTable table;
  int calls = 0;
  table.set("linear", CastPolicy::rewrite("halved", [&calls](const OpCall& call) -> Outputs {
              ++calls;
              if (call.op == OpId::linear) return {{linear(call[0] * 0.5, call[1], call[2])}};
              return {{matmul(call[0] * 0.5, call[1])}};
            }));
  const Seen one = run(table, linear_one, DType::f32);
  CHECK(calls == 3);  // and dgrad and wgrad
  check_same(one, run(table, linear_two, DType::f32));
  CHECK_FALSE(same_bits(one.y, run({}, linear_one, DType::f32).y));
}

TEST_CASE("a rewrite of linear runs in linear_gelu, and gelu after it") {
  amp::PolicyTable table;
  table.set("linear", CastPolicy::rewrite("halved", [](const OpCall& call) -> Outputs {
              if (call.op == OpId::linear) return {{linear(call[0] * 0.5, call[1], call[2])}};
              return {{matmul(call[0] * 0.5, call[1])}};
            }));
  const Seen one = run(table, gelu_one, DType::f32);
  check_same(one, run(table, gelu_two, DType::f32));
  CHECK_FALSE(same_bits(one.y, run({}, gelu_one, DType::f32).y));
}

TEST_CASE("linear_relu and linear_gelu have linear's policy and refuse one of their own") {
  amp::PolicyTable table;
  CHECK(message_of([&] { table.set("linear_gelu", CastPolicy::fp32()); }) ==
        "policy table: linear_gelu takes no policy but pass: it is linear and gelu, which have theirs");
  CHECK(message_of([&] { table.set("linear_relu", CastPolicy::fp32()); }) ==
        "policy table: linear_relu takes no policy but pass: it is linear and relu, which have theirs");
  table.set("linear", CastPolicy::fp32());
  CHECK(to_string(table[OpId::linear_relu]) == "fp32");
  CHECK(to_string(table[OpId::linear_gelu]) == "fp32");
  CHECK(table.why("linear_relu", {DType::f16})
            .starts_with("linear_relu is linear and relu. linear is in the fp32 list: runs in f32"));
}

TEST_CASE("dropout_add follows the policies of dropout and add") {
  const auto one = [](const Tensors& t) {
    Generator g(4);
    return dropout_add(t[0], t[1], 0.4, g);
  };
  const auto two = [](const Tensors& t) {
    Generator g(4);
    return t[1] + dropout(t[0], 0.4, g);
  };
  const std::vector<std::vector<std::pair<OpId, CastPolicy>>> edits{{},
                                                                    {{OpId::add, CastPolicy::pass()}},
                                                                    {{OpId::add, CastPolicy::lower()}},
                                                                    {{OpId::dropout, CastPolicy::cast(DType::f16)}},
                                                                    {{OpId::dropout, CastPolicy::fp32()}}};
  for (const auto& edit : edits)
    for (const DType x : {DType::f32, DType::f16, DType::bf16})
      for (const DType residual : {DType::f32, DType::f16}) {
        amp::PolicyTable table;
        bool apart = false;
        for (const auto& [op, policy] : edit) {
          table.set(op, policy);
          apart = policy.kind != amp::PolicyKind::pass;
        }
        CAPTURE(to_string(table));
        const Tensors in{random({6, 4}, 1, x).set_requires_grad(), random({6, 4}, 2, residual).set_requires_grad()};
        Tensor y[2];
        std::vector<Tensor> gradients[2];
        for (const bool fused : {false, true}) {
          Recorder recorder;
          {
            const Autocast scope({.dtype = DType::bf16, .table = table});
            y[fused] = fused ? one(in) : two(in);
          }
          const bool whole =
              std::ranges::any_of(recorder.seen, [](const auto& s) { return s.op == OpId::dropout_add; });
          CHECK(whole == (fused && !apart));
          gradients[fused] = autograd::grad({y[fused]}, in, {random({6, 4}, 4, y[fused].dtype())});
        }
        CHECK(same_bits(y[0], y[1]));
        for (std::size_t i = 0; i < in.size(); ++i) CHECK(same_bits(gradients[0][i], gradients[1][i]));
      }
  amp::PolicyTable table;
  CHECK(message_of([&] { table.set("dropout_add", CastPolicy::fp32()); }) ==
        "policy table: dropout_add takes no policy but pass: it is dropout and add, which have theirs");
  table.set(OpId::add, CastPolicy::banned("no sums"));
  const Autocast scope({.dtype = DType::bf16, .table = table});
  CHECK(message_of([&] { dropout_add(zeros({2}), zeros({2}), 0.5); }).ends_with("no sums"));
}

TEST_CASE("a cast for linear_relu names it as its cause") {
  nn::Sequential model(nn::Linear(3, 4), nn::ReLU());
  Tensor y;
  {
    const Autocast scope({.dtype = DType::bf16});
    y = model(random({2, 3}, 1));
  }
  int casts = 0;
  const Tape tape = Tape::of(y);
  for (const auto& node : tape.nodes()) {
    if (node->is_leaf()) continue;
    CHECK(std::string(node->module) == "0");
    if (node->op == OpId::cast) ++casts;
  }
  CHECK(casts == 2);  // weight and bias; x is no part of the graph
}
