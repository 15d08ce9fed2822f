// Backward rules of ops that change shapes: reductions, views and movement.
#include <algorithm>
#include <cmath>

#include "../core/ops/infer.h"
#include "../core/ops/ops.h"
#include "engine.h"
#include "rule.h"

namespace gradual {
namespace {

using C = RuleContext;

// A reduced tensor `t` with its reduced dims restored as size 1.
Tensor keep_dims(const C& c, const Tensor& t) {
  const auto& a = c.get<ReduceAttrs>();
  return a.keepdim ? t : reshape(t, inference::reduced(c.sizes(0), a.dims, true));
}
Tensor spread(const C& c, const Tensor& t) { return expand(keep_dims(c, t), c.sizes(0)); }

// The reduced dims. They are empty only for a 0-d input, and no dims mean all.
Shape reduced_dims(const C& c) {
  Shape dims;
  for (int i = 0; i < c.sizes(0).size(); ++i)
    if (c.get<ReduceAttrs>().dims >> i & 1) dims.push_back(i);
  return dims;
}
double reduced_count(const C& c) {
  double n = 1;
  for (std::int64_t dim : reduced_dims(c)) n *= static_cast<double>(c.sizes(0)[static_cast<int>(dim)]);
  return n;
}
// `t` (with the reduced dims as size 1) divided among the extremes, which are the numbers that do not `lose`; 0 at the
// others. Selection: times 0, an Inf in `t` would give NaN.
Tensor share(const C& c, const Tensor& lose, const Tensor& t) {
  const Tensor extremes = reduced_count(c) - sum(lose, reduced_dims(c), true);  // i64
  const Tensor part = 1 / cast(extremes, t.dtype() == DType::f64 ? DType::f64 : DType::f32);
  return where(lose, 0, t * cast(part, t.dtype()));
}
// The numbers below the largest or above the smallest, which is `of`. Equal extremes share the gradient, as in
// PyTorch's amax. If `of` is NaN, neither the NaNs lose nor an Inf that would be the extreme without them.
template <bool kMax> Tensor loses(const Tensor& x, const Tensor& of) {
  if (kMax) return x < where(of != of, INFINITY, of);
  return x > where(of != of, -INFINITY, of);
}
template <bool kMax> void extreme(const C& c) {
  c.set(0, share(c, loses<kMax>(c.input(0), keep_dims(c, c.output(0))), keep_dims(c, c.grad())));
}

// d |x|_p = sign(x) (|x| / norm)^(p-1); 0 if the norm is 0, as is its derivative. Both are 0 where x is 0 as well,
// although the slope is infinite for p < 1, and its derivative for p < 2.
Tensor norm_slope(const C& c, const Tensor& x, double p) {
  if (p == 0) return zeros_like(x);
  if (p == 1) return sign(x);
  const Tensor n = keep_dims(c, c.output(0));
  if (std::isinf(p)) {
    const Tensor lose = p > 0 ? loses<true>(abs(x), n) : loses<false>(abs(x), n);
    return sign(x) * share(c, lose, ones_like(n));
  }
  if (p == 2) return x / where(n == 0, INFINITY, n);
  const Tensor flat = logical_or(x == 0, n == 0);
  return sign(x) * where(flat, 0, pow(where(flat, 1, abs(x) / where(n == 0, 1, n)), p - 1));
}

// exp(x - logsumexp). Of Infs each has an equal share, as extremes have, and next to one all other slopes are 0.
void logsumexp_rule(const C& c) {
  const Tensor x = c.input(0);
  const Tensor y = keep_dims(c, c.output(0));
  const Tensor infinite = logical_and(x == INFINITY, y == INFINITY);    // NaN next to an Inf stays NaN
  const Tensor below = clamp(where(infinite, 0, x - y), -INFINITY, 0);  // not above 0, where y was rounded down
  const Tensor sharing = cast(maximum(sum(infinite, reduced_dims(c), true), 1), y.dtype());
  c.set(0, keep_dims(c, c.grad()) * (exp(below) / sharing));
}

void scatter_add_rule(const C& c) {
  c.set(0, c.grad());
  if (!c.needs(2)) return;
  // src may be larger than the index: elements without an index get no gradient.
  const Tensor g = gather(c.grad(), c.get<IndexAttrs>().dim, c.input(1));
  Shape before = Shape::filled(g.dim(), 0);
  Shape after = before;
  for (int i = 0; i < g.dim(); ++i) after[i] = c.sizes(2)[i] - g.sizes()[i];
  c.set(2, g.sizes() == c.sizes(2) ? g : pad(g, before, after));
}
}  // namespace

void register_shape_rules() {
  set_rule(OpId::sum, {}, [](const C& c) { c.set(0, spread(c, c.grad())); });
  set_rule(OpId::mean, {}, [](const C& c) { c.set(0, spread(c, c.grad() / reduced_count(c))); });
  set_rule(OpId::var, {in(0)}, [](const C& c) {  // 2 (x - mean) / (n - correction)
    const Tensor centred = c.input(0) - mean(c.input(0), reduced_dims(c), true);
    c.set(0, keep_dims(c, c.grad()) * (centred * (2 / std::max(reduced_count(c) - c.get<ReduceAttrs>().value, 0.0))));
  });
  set_rule(OpId::max, {in(0) | out(0)}, extreme<true>);
  set_rule(OpId::min, {in(0) | out(0)}, extreme<false>);
  set_rule(OpId::logsumexp, {in(0) | out(0)}, logsumexp_rule);
  set_rule(OpId::norm, {in(0) | out(0)}, [](const C& c) {
    c.set(0, keep_dims(c, c.grad()) * norm_slope(c, c.input(0), c.get<ReduceAttrs>().value));
  });

  set_rule(OpId::view, {}, [](const C& c) { c.set(0, reshape(c.grad(), c.sizes(0))); });
  set_rule(OpId::permute, {}, [](const C& c) {
    const Shape& dims = c.get<Shape>();
    Shape inverse = dims;
    for (int i = 0; i < dims.size(); ++i) inverse[static_cast<int>(dims[i])] = i;
    c.set(0, permute(c.grad(), inverse));
  });
  set_rule(OpId::expand, {}, [](const C& c) { c.set(0, c.grad()); });
  set_rule(OpId::slice, {}, [](const C& c) {  // the slices of one tensor share one gradient buffer
    const auto& a = c.get<SliceAttrs>();
    autograd::Engine* const engine = autograd::Engine::current();
    if (engine && c.needs(0) && engine->put_slice(c.node(), a, c.grad())) return;
    c.set(0, call_row(OpId::slice_backward, a, c.grad())[0]);
  });
  set_rule(OpId::slice_backward, {}, [](const C& c) {
    const auto& a = c.get<SliceAttrs>();
    c.set(0, slice(c.grad(), a.dim, {a.start, a.stop, a.step}));
  });
  set_rule(OpId::cat, {}, [](const C& c) {
    const int dim = c.get<DimAttrs>().dim;
    std::int64_t start = 0;
    for (int i = 0; i < c.inputs(); ++i) {
      const std::int64_t n = c.sizes(i)[dim];
      if (c.needs(i)) c.set(i, narrow(c.grad(), dim, start, n));
      start += n;
    }
  });
  set_rule(OpId::gather, {in(1)}, [](const C& c) {
    const Tensor zero = zeros(c.sizes(0), {.dtype = c.dtype(0), .device = c.grad().device()});
    c.set(0, scatter_add(zero, c.get<IndexAttrs>().dim, c.input(1), c.grad()));
  });
  set_rule(OpId::scatter_add, {0, 0, in(1)}, scatter_add_rule);
  set_rule(OpId::index_select, {in(1)}, [](const C& c) {
    const int dim = c.get<IndexAttrs>().dim;
    c.set(0, index_add(c.grad(), dim, c.input(1), c.sizes(0)[dim]));
  });
  set_rule(OpId::index_add, {in(1)},
           [](const C& c) { c.set(0, index_select(c.grad(), c.get<IndexAttrs>().dim, c.input(1))); });
  set_rule(OpId::pad, {}, [](const C& c) {
    Tensor g = c.grad();
    for (int i = 0; i < g.dim(); ++i) g = narrow(g, i, c.get<PadAttrs>().before[i], c.sizes(0)[i]);
    c.set(0, g);
  });
  set_rule(OpId::tril, {}, [](const C& c) { c.set(0, tril(c.grad(), c.get<std::int64_t>())); });
  set_no_rule({OpId::argmax, OpId::argmin, OpId::one_hot}, "an integer result");
}

}  // namespace gradual
