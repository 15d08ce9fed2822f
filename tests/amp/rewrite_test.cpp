#include "../../amp/rewrite.h"

#include <doctest/doctest.h>

#include "../../amp/autocast.h"
#include "../../autograd/autograd.h"
#include "../../core/ops/ops.h"
#include "recorder.h"
#include "support.h"

using namespace gradual;
using amp::Autocast;
using amp::CastPolicy;

namespace {

// To f8e4m3fn and back: the operand as an 8-bit contraction would see it.
Tensor q(const Tensor& t) { return t.to(DType::f8e4m3fn).to(DType::f32); }

// Any contraction on rounded operands; the third input is a bias, which stays as it is.
Outputs rounded_contraction(const OpCall& call) {
  Outputs out;
  switch (call.op) {
    case OpId::matmul: out[0] = matmul(q(call[0]), q(call[1])); break;
    case OpId::linear: out[0] = linear(q(call[0]), q(call[1]), call[2]); break;
    case OpId::conv2d: out[0] = conv2d(q(call[0]), q(call[1]), call[2], call.get<ConvAttrs>()); break;
    case OpId::conv2d_backward_input:
      out[0] = conv2d_backward_input(q(call[0]), q(call[1]), call.get<ConvAttrs>());
      break;
    case OpId::conv2d_backward_weight:
      out[0] = conv2d_backward_weight(q(call[0]), q(call[1]), call.get<ConvAttrs>());
      break;
    default: throw_error("rounded_contraction: no " + std::string(to_string(call.op)));
  }
  return out;
}

amp::PolicyTable table_with(const amp::Rewrite& rewrite) {
  amp::PolicyTable table;
  for (const char* op : {"matmul", "linear", "conv2d"}) table.set(op, CastPolicy::rewrite("e4m3", rewrite));
  return table;
}

}  // namespace

TEST_CASE("a rewritten matmul computes with rounded operands, forward and backward") {
  Tensor x = random({5, 7}, 1).set_requires_grad();
  Tensor w = random({7, 3}, 2).set_requires_grad();
  const Tensor dy = random({5, 3}, 3);
  Tensor y;
  {
    const Autocast scope({.table = table_with(rounded_contraction)});
    y = matmul(x, w);
  }
  CHECK(same_bits(y.detach(), matmul(q(x.detach()), q(w.detach()))));
  CHECK_FALSE(same_bits(y.detach(), matmul(x.detach(), w.detach())));
  y.backward(dy);
  CHECK(same_bits(x.grad(), matmul(q(dy), q(w.detach()).t())));
  CHECK(same_bits(w.grad(), matmul(q(x.detach()).t(), q(dy))));
}

TEST_CASE("linear with bias and conv2d likewise, the bias gradient is the plain sum") {
  Tensor x = random({2, 4, 7}, 1).set_requires_grad();
  Tensor w = random({3, 7}, 2).set_requires_grad();
  Tensor b = random({3}, 3).set_requires_grad();
  const Tensor dy = random({2, 4, 3}, 4);
  const Autocast scope({.table = table_with(rounded_contraction)});
  linear(x, w, b).backward(dy);
  const Tensor rows = dy.reshape({8, 3});
  {
    const Autocast off({.enabled = false});
    CHECK(same_bits(x.grad(), matmul(q(dy), q(w.detach()))));
    CHECK(same_bits(w.grad(), matmul(q(rows).t(), q(x.detach().reshape({8, 7})))));
    CHECK(same_bits(b.grad(), rows.sum({0})));
  }
  Tensor image = random({2, 3, 5, 5}, 5).set_requires_grad();
  Tensor kernel = random({4, 3, 3, 3}, 6).set_requires_grad();
  const Tensor dimage = random({2, 4, 5, 5}, 7);
  conv2d(image, kernel, {}, {.padding = 1}).backward(dimage);
  ConvAttrs a{{.padding = {1, 1}}};
  const Autocast off({.enabled = false});
  a.size[0] = 5;
  a.size[1] = 5;
  CHECK(same_bits(image.grad(), conv2d_backward_input(q(dimage), q(kernel.detach()), a)));
  a.size[0] = 3;
  a.size[1] = 3;
  CHECK(same_bits(kernel.grad(), conv2d_backward_weight(q(dimage), q(image.detach()), a)));
}

TEST_CASE("broadcast batches are summed back and half operands get half gradients") {
  Tensor a = random({2, 4, 5}, 1).to(DType::f16).set_requires_grad();
  Tensor b = random({5, 3}, 2).set_requires_grad();
  const Autocast scope({.table = table_with(rounded_contraction)});
  const Tensor y = matmul(a, b);
  CHECK(y.dtype() == DType::f32);  // the function decides
  sum(y).backward();
  CHECK(a.grad().dtype() == DType::f16);
  CHECK(b.grad().dtype() == DType::f32);
  CHECK(b.grad().sizes() == Shape{5, 3});
}

TEST_CASE("it is one node on the tape, and nothing is kept but its operands") {
  Tensor x = random({5, 7}, 1).set_requires_grad();
  const Tensor w = random({7, 3}, 2);
  const Autocast scope({.table = table_with(rounded_contraction)});
  Recorder recorder;
  const Tensor y = matmul(x, w);
  CHECK(recorder.count(OpId::custom) == 1);
  CHECK(recorder.count(OpId::matmul) == 1);
  CHECK(recorder.count(OpId::cast) == 4);
  recorder.seen.clear();
  sum(y).backward();
  CHECK(recorder.count(OpId::matmul) == 1);  // w needs no gradient
  CHECK(recorder.count(OpId::cast) >= 4);
}

TEST_CASE("a rewrite is told each operand's role") {
  std::vector<std::string> seen;
  const amp::Rewrite rewrite = [&](const OpCall& call) {
    std::string text(to_string(call.op));
    for (int i = 0; i < 2; ++i) text.append(" ").append(to_string(amp::operand_role(i)));
    seen.push_back(text);
    return rounded_contraction(call);
  };
  Tensor x = random({2, 4, 7}, 1).set_requires_grad();
  Tensor w = random({3, 7}, 2).set_requires_grad();
  const Autocast scope({.table = table_with(rewrite)});
  sum(linear(x, w)).backward();
  CHECK(seen == std::vector<std::string>{"linear activation weight", "matmul error weight", "matmul error activation"});
  CHECK_THROWS_AS(amp::operand_role(0), Error);
  // Parts of one storage keep their own roles, as queries and keys made by one projection do.
  seen.clear();
  const Tensor both = x * 2;
  sum(matmul(both.narrow(1, 0, 2), both.narrow(1, 2, 2).transpose(1, 2))).backward();
  CHECK(seen == std::vector<std::string>{"matmul activation weight", "matmul error weight", "matmul activation error"});
}

TEST_CASE("gradients of gradients are rewritten as well") {
  Tensor x = random({4, 4}, 1).set_requires_grad();
  Tensor w = random({4, 4}, 2).set_requires_grad();
  const Autocast scope({.table = table_with(rounded_contraction)});
  const Tensor y = matmul(x, w);
  const Tensor dy = random({4, 4}, 3);
  const Tensor dx = autograd::grad({y}, {x}, {dy}, {.create_graph = true})[0];
  CHECK(same_bits(dx.detach(), matmul(dy, w.detach().t()).detach()));  // matmul here is rewritten too
  const Tensor v = random({4, 4}, 4);
  const Tensor dw = autograd::grad({dx}, {w}, {v})[0];  // dx = q(dy) q(w)^T: dw = v^T q(dy)
  const Autocast off({.enabled = false});
  CHECK(same_bits(dw.contiguous(), matmul(q(dy).t(), q(v)).t().contiguous()));
}

TEST_CASE("a saved operand that was edited, or a result of another shape, is an error") {
  Tensor x = random({4, 4}, 1).set_requires_grad();
  const Tensor w = random({4, 4}, 2);
  {
    const Autocast scope({.table = table_with(rounded_contraction)});
    const Tensor y = sum(matmul(x, w));
    w.add_(1);
    CHECK_THROWS_WITH_AS(y.backward(),
                         doctest::Contains("matmul rewritten by e4m3: a saved tensor [4, 4] f32 was changed"), Error);
    CHECK_THROWS_WITH_AS(matmul(x, random({3, 4}, 3)), doctest::Contains("inner dimensions 4 and 3 differ"), Error);
  }
  const Autocast scope({.table = table_with([](const OpCall& c) { return Outputs{{c[0].detach().sum()}}; })});
  CHECK_THROWS_WITH_AS(matmul(x, w), doctest::Contains("must give a floating tensor of shape [4, 4], gave [] f32"),
                       Error);
}
