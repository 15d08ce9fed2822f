// Backward rules of contractions and pooling: each gradient is a contraction again.
#include "../core/ops/fusions.h"
#include "../core/ops/ops.h"
#include "rule.h"

namespace gradual {
namespace {

using C = RuleContext;

// A saved operand for the gradient's product: f8 is widened, since f8 and f32 do not mix.
Tensor operand(const C& c, int i) {
  const Tensor t = c.input(i);
  return is_f8(t.dtype()) ? cast(t, c.grad().dtype()) : t;
}
// [.., n] as rows [-1, n]; sizes may be 0.
Tensor rows_of(const Tensor& t) { return t.dim() == 2 ? t : t.dim() == 1 ? unsqueeze(t, 0) : flatten(t, 0, -2); }

// y = a b: da = dy b^T, db = a^T dy. A 1-d operand is a row on the left and a column on the right.
void matmul_rule(const C& c) {
  const bool row = c.sizes(0).size() == 1;
  const bool column = c.sizes(1).size() == 1;
  Tensor g = c.grad();
  if (row) g = unsqueeze(g, column ? -1 : -2);
  if (column) g = unsqueeze(g, -1);
  if (c.needs(0)) {
    const Tensor b = column ? unsqueeze(operand(c, 1), -1) : operand(c, 1);
    const Tensor da = matmul(g, transpose(b, -2, -1));
    c.set(0, row ? squeeze(da, -2) : da);
  }
  if (c.needs(1)) {
    const Tensor a = row ? unsqueeze(operand(c, 0), 0) : operand(c, 0);
    const Tensor db = matmul(transpose(a, -2, -1), g);
    c.set(1, column ? squeeze(db, -1) : db);
  }
}

// y = x W^T + b: dx = dy W, dW = dy^T x, db = the sum of dy's rows. If the backend suits it, one op computes dW and db.
void linear_gradients(const C& c, const Tensor& g) {
  if (c.needs(0)) c.set(0, matmul(g, operand(c, 1)));
  const Tensor rows = rows_of(g);
  const auto suited = [&] { return capability(OpId::linear_backward_weight, g.device()).suits != nullptr; };
  if (c.needs(1) && c.needs(2) && fused_rows() && suited()) {
    const Outputs both = call_row(OpId::linear_backward_weight, {}, rows, rows_of(operand(c, 0)));
    c.set(1, both[0]);
    c.set(2, both[1]);
    return;
  }
  if (c.needs(1)) c.set(1, matmul(transpose(rows, 0, 1), rows_of(operand(c, 0))));
  if (c.needs(2)) c.set(2, sum(rows, {0}));
}

void linear_relu_rule(const C& c) {
  const Tensor g = times_slope(c, OpId::relu_backward, {}, c.take_output(0));  // the output is freed here
  linear_gradients(c, g);
}

// The second output is gelu's argument; if the backward is recorded, it may have a gradient too.
void linear_gelu_rule(const C& c) {
  Tensor g = c.grad().defined() ? gelu_gradient(c, c.take_output(1)) : Tensor();
  if (c.grad(1).defined()) g = g.defined() ? g + c.grad(1) : c.grad(1);
  linear_gradients(c, g);
}
// dw = dy^T x and db = the sum of dy's rows, either of which may have no gradient.
void linear_backward_weight_rule(const C& c) {
  const Tensor& gw = c.grad(0);
  const Tensor& gb = c.grad(1);
  if (c.needs(0)) c.set(0, gw.defined() ? linear(c.input(1), gw, gb) : expand(gb, c.sizes(0)));
  if (c.needs(1) && gw.defined()) c.set(1, matmul(c.input(0), gw));
}

// The op's attributes with the height and width of input `i`, for the backward op that makes a tensor of that size.
template <class A> A sized(const C& c, int i) {
  A a;
  if (c.node().attrs.is<A>()) a = c.get<A>();
  a.size[0] = c.sizes(i)[2];
  a.size[1] = c.sizes(i)[3];
  return a;
}

void conv2d_rule(const C& c) {
  if (c.needs(0)) c.set(0, conv2d_backward_input(c.grad(), operand(c, 1), sized<ConvAttrs>(c, 0)));
  if (c.needs(1)) c.set(1, conv2d_backward_weight(c.grad(), operand(c, 0), sized<ConvAttrs>(c, 1)));
  if (c.needs(2)) c.set(2, sum(c.grad(), {0, 2, 3}));
}
// The gradient of an average pool is an op of the same form, and the reverse.
template <OpId kGradient> void average_rule(const C& c) {
  c.set(0, call_row(kGradient, sized<PoolAttrs>(c, 0), c.grad())[0]);
}

// With scores S, P = softmax(S), y = P v: dv = P^T dy, dS = P (dP - sum(dP P)) for dP = dy v^T, and dq, dk from dS.
// Half operands are widened, so that the gradients of these gradients are rounded once too.
void flash_attention_rule(const C& c) {
  const auto& a = c.get<AttentionAttrs>();
  if (!c.create_graph())
    return c.set_all(call_row(OpId::flash_attention_backward, a, c.grad(), c.input(0), c.input(1), c.input(2),
                              c.output(0), c.output(1)));
  const auto wide = [](const Tensor& t) { return is_half(t.dtype()) ? cast(t, DType::f32) : t; };
  const Tensor q = wide(c.input(0));
  const Tensor k = wide(c.input(1));
  const Tensor v = wide(c.input(2));
  const Tensor g = wide(c.grad());
  const double scale = attention_scale(a, q.size(-1));
  const DimAttrs along{.dim = q.dim() - 1, .causal = a.causal};
  const Tensor p = call_row(OpId::softmax, along, matmul(q * scale, transpose(k, -2, -1)))[0];
  const Tensor dp = matmul(g, transpose(v, -2, -1));
  const Tensor ds = p * (dp - sum(dp * p, {-1}, true)) * scale;
  c.set(0, matmul(ds, k));
  c.set(1, matmul(transpose(ds, -2, -1), q));
  c.set(2, matmul(transpose(p, -2, -1), g));
}

}  // namespace

void register_contraction_rules() {
  set_rule(OpId::matmul, {in(1), in(0)}, matmul_rule);
  set_rule(OpId::linear, {in(1), in(0)}, [](const C& c) { linear_gradients(c, c.grad()); });
  set_rule(OpId::linear_relu, {in(1) | out(0), in(0) | out(0), out(0)}, linear_relu_rule);
  set_rule(OpId::linear_gelu, {in(1) | out(1), in(0) | out(1), out(1)}, linear_gelu_rule).differentiable = 3;
  set_rule(OpId::linear_backward_weight, {in(1), in(0)}, linear_backward_weight_rule).differentiable = 3;
  set_rule(OpId::conv2d, {in(1), in(0)}, conv2d_rule);
  // dx(dy, w) is linear in both: in dy it is the adjoint of conv2d, in w that of conv2d_backward_weight.
  set_rule(OpId::conv2d_backward_input, {in(1), in(0)}, [](const C& c) {
    if (c.needs(0)) c.set(0, conv2d(c.grad(), c.input(1), {}, c.get<ConvAttrs>()));
    if (c.needs(1)) c.set(1, conv2d_backward_weight(c.input(0), c.grad(), sized<ConvAttrs>(c, 1)));
  });
  set_rule(OpId::conv2d_backward_weight, {in(1), in(0)}, [](const C& c) {
    if (c.needs(0)) c.set(0, conv2d(c.input(1), c.grad(), {}, c.get<ConvAttrs>()));
    if (c.needs(1)) c.set(1, conv2d_backward_input(c.input(0), c.grad(), sized<ConvAttrs>(c, 1)));
  });
  set_rule(OpId::max_pool2d, {out(1)}, [](const C& c) {
    c.set(0, call_row(OpId::max_pool2d_backward, sized<PoolAttrs>(c, 0), c.grad(), c.output(1))[0]);
  });
  set_rule(OpId::max_pool2d_backward, {in(1)}, [](const C& c) {  // an output depends on a single input element
    c.set(0, reshape(gather(flatten(c.grad(), 2), 2, flatten(c.input(1), 2)), c.sizes(0)));
  });
  set_rule(OpId::avg_pool2d, {}, average_rule<OpId::avg_pool2d_backward>);
  set_rule(OpId::avg_pool2d_backward, {}, average_rule<OpId::avg_pool2d>);
  set_rule(OpId::adaptive_avg_pool2d, {}, average_rule<OpId::adaptive_avg_pool2d_backward>);
  set_rule(OpId::adaptive_avg_pool2d_backward, {}, average_rule<OpId::adaptive_avg_pool2d>);
  constexpr int kAttention = in(0) | in(1) | in(2) | out(0) | out(1);
  set_rule(OpId::flash_attention, {kAttention, kAttention, kAttention}, flash_attention_rule).fused = true;
}

}  // namespace gradual
