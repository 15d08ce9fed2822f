// Backward rules of contractions and pooling: each gradient is a contraction again.
#include "../core/ops.h"
#include "rule.h"

namespace gradual {
namespace {

using C = RuleContext;

// f8 operands give f32 results; their gradients go back through a cast.
Tensor as_input(const C& c, int i, const Tensor& g) { return g.dtype() == c.dtype(i) ? g : cast(g, c.dtype(i)); }

// A saved operand as the gradient meets it: f8 ones are widened, since f8 and f32 do not mix.
Tensor operand(const C& c, int i) {
  const Tensor t = c.input(i);
  return is_f8(t.dtype()) ? cast(t, c.grad().dtype()) : t;
}
// [.., n] as rows [-1, n], where sizes may be 0.
Tensor rows_of(const Tensor& t) { return t.ndim() == 2 ? t : t.ndim() == 1 ? unsqueeze(t, 0) : flatten(t, 0, -2); }

// y = a b: da = dy b^T, db = a^T dy. A 1-d operand is a row on the left and a column on the right.
void matmul_rule(const C& c) {
  const bool row = c.sizes(0).size() == 1;
  const bool column = c.sizes(1).size() == 1;
  Tensor g = c.grad();
  if (row) g = unsqueeze(g, column ? -1 : -2);
  if (column) g = unsqueeze(g, -1);
  if (c.needs(0)) {
    Tensor b = operand(c, 1);
    if (column) b = unsqueeze(b, -1);
    Tensor da = matmul(g, transpose(b, -2, -1));
    if (row) da = squeeze(da, -2);
    c.set(0, as_input(c, 0, sum_to(da, c.sizes(0))));
  }
  if (c.needs(1)) {
    Tensor a = operand(c, 0);
    if (row) a = unsqueeze(a, 0);
    Tensor db = matmul(transpose(a, -2, -1), g);
    if (column) db = squeeze(db, -1);
    c.set(1, as_input(c, 1, sum_to(db, c.sizes(1))));
  }
}

// y = x W^T + b: dx = dy W, dW = dy^T x, db = the sum of dy's rows.
void linear_rule(const C& c) {
  const Tensor& g = c.grad();
  if (c.needs(0)) c.set(0, as_input(c, 0, matmul(g, operand(c, 1))));
  const Tensor rows = rows_of(g);
  if (c.needs(1)) { c.set(1, as_input(c, 1, matmul(transpose(rows, 0, 1), rows_of(operand(c, 0))))); }
  if (c.needs(2)) c.set(2, as_input(c, 2, sum(rows, {0})));
}

ConvAttrs with_size(ConvAttrs a, const Shape& s) {
  a.size[0] = s[2];
  a.size[1] = s[3];
  return a;
}

void conv2d_rule(const C& c) {
  const auto& a = c.get<ConvAttrs>();
  if (c.needs(0)) c.set(0, as_input(c, 0, conv2d_backward_input(c.grad(), operand(c, 1), with_size(a, c.sizes(0)))));
  if (c.needs(1)) c.set(1, as_input(c, 1, conv2d_backward_weight(c.grad(), operand(c, 0), with_size(a, c.sizes(1)))));
  if (c.needs(2)) c.set(2, as_input(c, 2, sum(c.grad(), {0, 2, 3})));
}
// dx(dy, w) is linear in both: in dy it is the adjoint of conv2d, in w that of conv2d_backward_weight.
void conv2d_backward_input_rule(const C& c) {
  ConvAttrs a = c.get<ConvAttrs>();
  if (c.needs(0)) c.set(0, conv2d(c.grad(), c.input(1), {}, a));
  if (c.needs(1)) c.set(1, conv2d_backward_weight(c.input(0), c.grad(), with_size(a, c.sizes(1))));
}
void conv2d_backward_weight_rule(const C& c) {
  ConvAttrs a = c.get<ConvAttrs>();
  if (c.needs(0)) c.set(0, conv2d(c.input(1), c.grad(), {}, a));
  if (c.needs(1)) c.set(1, conv2d_backward_input(c.input(0), c.grad(), with_size(a, c.sizes(1))));
}

PoolAttrs with_size(PoolAttrs a, const Shape& s) {
  a.size[0] = s[2];
  a.size[1] = s[3];
  return a;
}
void max_pool_rule(const C& c) {
  c.set(0, max_pool2d_backward(c.grad(), c.output(1), with_size(c.get<PoolAttrs>(), c.sizes(0))));
}
void max_pool_backward_rule(const C& c) { c.set(0, max_pool2d_gather(c.grad(), c.input(1))); }
void max_pool_gather_rule(const C& c) {
  c.set(0, max_pool2d_backward(c.grad(), c.input(1), with_size(PoolAttrs{}, c.sizes(0))));
}
void avg_pool_rule(const C& c) { c.set(0, avg_pool2d_backward(c.grad(), with_size(c.get<PoolAttrs>(), c.sizes(0)))); }
void avg_pool_backward_rule(const C& c) { c.set(0, avg_pool2d(c.grad(), c.get<PoolAttrs>())); }
void adaptive_pool_rule(const C& c) {
  c.set(0, adaptive_avg_pool2d_backward(c.grad(), with_size(PoolAttrs{}, c.sizes(0))));
}
void adaptive_pool_backward_rule(const C& c) { c.set(0, adaptive_avg_pool2d(c.grad(), c.sizes(0)[2], c.sizes(0)[3])); }

}  // namespace

void register_contraction_rules() {
  set_rule(OpId::matmul, matmul_rule, {in(1), in(0)});
  set_rule(OpId::linear, linear_rule, {in(1), in(0)});
  set_rule(OpId::conv2d, conv2d_rule, {in(1), in(0)});
  set_rule(OpId::conv2d_backward_input, conv2d_backward_input_rule, {in(1), in(0)});
  set_rule(OpId::conv2d_backward_weight, conv2d_backward_weight_rule, {in(1), in(0)});
  set_rule(OpId::max_pool2d, max_pool_rule, {out(1)});
  set_rule(OpId::max_pool2d_backward, max_pool_backward_rule, {in(1)});
  set_rule(OpId::max_pool2d_gather, max_pool_gather_rule, {in(1)});
  set_rule(OpId::avg_pool2d, avg_pool_rule);
  set_rule(OpId::avg_pool2d_backward, avg_pool_backward_rule);
  set_rule(OpId::adaptive_avg_pool2d, adaptive_pool_rule);
  set_rule(OpId::adaptive_avg_pool2d_backward, adaptive_pool_backward_rule);
  set_no_rule(OpId::scaled_dot_product_attention, "composite: its parts have rules");
}

}  // namespace gradual
