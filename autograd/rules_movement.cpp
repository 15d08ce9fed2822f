// Backward rules of views and movement.
#include "../core/ops.h"
#include "rule.h"

namespace gradual {
namespace {

using C = RuleContext;

void view_rule(const C& c) { c.set(0, reshape(c.grad(), c.sizes(0))); }
void permute_rule(const C& c) {
  const Shape& dims = c.get<ShapeAttrs>().shape;
  Shape inverse = dims;
  for (int i = 0; i < dims.size(); ++i) inverse[static_cast<int>(dims[i])] = i;
  c.set(0, permute(c.grad(), inverse));
}
void expand_rule(const C& c) { c.set(0, sum_to(c.grad(), c.sizes(0))); }
void slice_rule(const C& c) { c.set(0, slice_backward(c.grad(), c.get<SliceAttrs>())); }
void slice_backward_rule(const C& c) {
  const auto& a = c.get<SliceAttrs>();
  c.set(0, slice(c.grad(), a.dim, {a.start, a.stop, a.step}));
}
void cat_rule(const C& c) {
  const int dim = c.get<DimAttrs>().dim;
  std::int64_t start = 0;
  for (int i = 0; i < c.inputs(); ++i) {
    const std::int64_t n = c.sizes(i)[dim];
    if (c.needs(i)) c.set(i, narrow(c.grad(), dim, start, n));
    start += n;
  }
}
void gather_rule(const C& c) {
  const Tensor zero = zeros(c.sizes(0), {.dtype = c.dtype(0), .device = c.grad().device()});
  c.set(0, scatter_add(zero, c.get<IndexAttrs>().dim, c.input(1), c.grad()));
}
void scatter_add_rule(const C& c) {
  if (c.needs(0)) c.set(0, c.grad());
  if (!c.needs(2)) return;
  // src may be larger than the index: what no index names gets no gradient.
  const Tensor g = gather(c.grad(), c.get<IndexAttrs>().dim, c.input(1));
  Shape before = Shape::filled(g.ndim(), 0);
  Shape after = before;
  for (int i = 0; i < g.ndim(); ++i) after[i] = c.sizes(2)[i] - g.sizes()[i];
  c.set(2, g.sizes() == c.sizes(2) ? g : pad(g, before, after));
}
void index_select_rule(const C& c) {
  const int dim = c.get<IndexAttrs>().dim;
  c.set(0, index_add(c.grad(), dim, c.input(1), c.sizes(0)[dim]));
}
void index_add_rule(const C& c) { c.set(0, index_select(c.grad(), c.get<IndexAttrs>().dim, c.input(1))); }
void pad_rule(const C& c) {
  const auto& a = c.get<PadAttrs>();
  Tensor g = c.grad();
  for (int i = 0; i < a.before.size(); ++i) g = narrow(g, i, a.before[i], c.sizes(0)[i]);
  c.set(0, g);
}
void tril_rule(const C& c) { c.set(0, tril(c.grad(), c.get<TrilAttrs>().diagonal)); }

}  // namespace

void register_movement_rules() {
  set_rule(OpId::view, view_rule);
  set_rule(OpId::permute, permute_rule);
  set_rule(OpId::expand, expand_rule);
  set_rule(OpId::slice, slice_rule);
  set_rule(OpId::slice_backward, slice_backward_rule);
  set_rule(OpId::cat, cat_rule);
  set_rule(OpId::gather, gather_rule, {in(1)});
  set_rule(OpId::scatter_add, scatter_add_rule, {0, 0, in(1)});
  set_rule(OpId::index_select, index_select_rule, {in(1)});
  set_rule(OpId::index_add, index_add_rule, {in(1)});
  set_rule(OpId::pad, pad_rule);
  set_rule(OpId::tril, tril_rule);
  set_no_rule(OpId::one_hot, "an integer result");
  set_no_rule(OpId::embedding, "composite: its parts have rules");
}

}  // namespace gradual
