// What observers learn about a call: its number on the tape, the op that a rewrite replaces, the roles of its operands,
// and why it runs.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../../amp/autocast.h"
#include "../../autograd/activation_checkpoint.h"
#include "../../autograd/autograd.h"
#include "../../autograd/function.h"
#include "../../autograd/node.h"
#include "../../core/observe/observer.h"
#include "../../core/ops/ops.h"
#include "../../optim/grad_scaler.h"
#include "support.h"

using namespace gradual;

namespace {

// The record of each op that ran, before and after it.
struct Records final : Observer {
  struct Seen {
    OpId called, op;
    bool replaced, within;
    OperandRole operands[2];  // of the op itself, or of the one in which it runs
    std::uint64_t node;
    CauseKind cause;
    std::string text;
  };
  static Seen of(const OpCall& call, const CallRecord& r) {
    Seen s{call.op, r.op,   r.replaced != nullptr, r.within != nullptr,
           {},      r.node, r.context.cause->kind, r.context.cause->text};
    const Replaced* const product = r.replaced ? r.replaced : r.within ? r.within->replaces : nullptr;
    for (int i = 0; product && i < 2; ++i) s.operands[i] = product->operands[i];
    return s;
  }
  void before(const OpCall& call, const CallRecord& record) override { begun.push_back(of(call, record)); }
  void after(const OpCall& call, const Outputs&, const CallRecord& record) override {
    ended.push_back(of(call, record));
  }
  std::vector<Seen> begun, ended;
};

std::uint64_t node_of(const Tensor& t) { return grad_meta(t)->edge.node->sequence; }

struct Double final : Function {
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override { return {in[0] * 2.0}; }
  std::vector<Tensor> backward(const std::vector<Tensor>& g) override { return {g[0] * 2.0}; }
};

amp::PolicyTable rewritten() {
  amp::PolicyTable table;
  table.set("matmul", amp::CastPolicy::rewrite("as it is",
                                               [](const OpCall& call) { return Outputs{{matmul(call[0], call[1])}}; }));
  return table;
}

}  // namespace

TEST_CASE("a record has the number of the call's node, before and after the op; 0 if it is not recorded") {
  const Tensor x = ones({2, 2}).set_requires_grad();
  const Tensor data = ones({2, 2});
  Records seen;
  Tensor y;
  Tensor z;
  {
    const ObserverScope scope(seen);
    const Tensor plain = data + 1.0;
    y = x * 3.0;
    z = apply(std::make_shared<Double>(), {y})[0];
    const NoGrad off;
    const Tensor none = x + 1.0;
  }
  REQUIRE(seen.ended.size() == 5);
  CHECK(seen.ended[0].node == 0);
  CHECK(seen.ended[1].node == node_of(y));
  CHECK(seen.ended[2].node == 0);  // within the function
  CHECK(seen.ended[3].node == node_of(z));
  CHECK(seen.ended[4].node == 0);
  CHECK(seen.begun[1].node == node_of(y));
  CHECK(seen.begun[2].node == node_of(z));  // the function begins before the op within it
}

TEST_CASE("a record has the op that a rewrite replaces and the roles of its operands, also within it") {
  Tensor x = ones({2, 3}).set_requires_grad();
  Tensor w = ones({3, 4}).set_requires_grad();
  Records seen;
  const amp::Autocast autocast({.table = rewritten()});
  {
    const ObserverScope scope(seen);
    sum(matmul(x, w)).backward();
  }
  using enum OperandRole;
  std::vector<std::vector<OperandRole>> roles;
  for (const Records::Seen& s : seen.ended) {
    if (s.op != OpId::matmul) continue;
    roles.push_back({s.operands[0], s.operands[1]});
    CHECK(s.replaced == (s.called == OpId::custom));
    CHECK(s.within == (s.called == OpId::matmul));
  }
  // Each product of the layer and the rewritten op around it: forward, dgrad, wgrad.
  const std::vector<std::vector<OperandRole>> want = {{activation, weight}, {activation, weight}, {error, weight},
                                                      {error, weight},      {activation, error},  {activation, error}};
  CHECK(roles == want);
}

TEST_CASE("a user's function replaces no op, and what runs in it is within it") {
  const Tensor x = ones({2}).set_requires_grad();
  Records seen;
  {
    const ObserverScope scope(seen);
    apply(std::make_shared<Double>(), {x});
    const Tensor outside = x + 1.0;
  }
  REQUIRE(seen.ended.size() == 3);
  CHECK(seen.ended[0].within);
  CHECK(!seen.ended[0].replaced);
  CHECK(seen.ended[1].op == OpId::custom);
  CHECK(!seen.ended[1].replaced);
  CHECK(!seen.ended[1].within);
  CHECK(!seen.ended[2].within);
}

TEST_CASE("a record says why an op runs that the program did not write") {
  const auto causes_of = [](const auto& program) {
    Records seen;
    const ObserverScope scope(seen);
    program();
    std::vector<CauseKind> kinds;
    for (const Records::Seen& s : seen.ended) {
      CHECK((s.cause == CauseKind::program) == s.text.empty());
      if (s.cause != CauseKind::program) kinds.push_back(s.cause);
    }
    return kinds;
  };
  const Tensor x = ones({2, 2}).set_requires_grad();
  const Tensor half = ones({2, 2}, {.dtype = DType::bf16});
  CHECK(causes_of([&] { x + half; }) == std::vector{CauseKind::promotion});
  CHECK(causes_of([&] {
          const amp::Autocast autocast({.dtype = DType::bf16});
          matmul(x, half);
        }) == std::vector{CauseKind::autocast});
  CHECK(causes_of([&] {
          optim::GradScaler scaler;
          scaler.scale(sum(x));
        }) == std::vector{CauseKind::loss_scaling});
  const std::vector<CauseKind> again = causes_of([&] {
    const auto doubled = [](const Tensor& t) { return t * 2.0; };
    sum(checkpoint(doubled, x)).backward();
  });
  CHECK(std::ranges::count(again, CauseKind::recomputation) >= 1);
}

TEST_CASE("equal causes are one object") {
  CHECK(&intern_cause(CauseKind::promotion, "promotion in add") ==
        &intern_cause(CauseKind::promotion, "promotion in add"));
  CHECK(&intern_cause(CauseKind::promotion, "as add") != &intern_cause(CauseKind::autocast, "as add"));
}
