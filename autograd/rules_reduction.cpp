// Backward rules of reductions.
#include <cmath>

#include "../core/ops.h"
#include "rule.h"

namespace gradual {
namespace {

using C = RuleContext;

// `t`, a reduced tensor, with the dims it lost back as size 1.
Tensor keep_dims(const C& c, const Tensor& t) {
  const auto& a = c.get<ReduceAttrs>();
  if (a.keepdim) return t;
  Shape sizes = c.sizes(0);
  for (int i = 0; i < sizes.size(); ++i)
    if (a.dims >> i & 1) sizes[i] = 1;
  return reshape(t, sizes);
}
Tensor spread(const C& c, const Tensor& t) { return expand(keep_dims(c, t), c.sizes(0)); }

double reduced_count(const C& c) {
  double n = 1;
  for (int i = 0; i < c.sizes(0).size(); ++i)
    if (c.get<ReduceAttrs>().dims >> i & 1) n *= static_cast<double>(c.sizes(0)[i]);
  return n;
}
Shape reduced_dims(const C& c) {
  Shape dims;
  for (int i = 0; i < c.sizes(0).size(); ++i)
    if (c.get<ReduceAttrs>().dims >> i & 1) dims.push_back(i);
  return dims;
}

void sum_rule(const C& c) { c.set(0, spread(c, c.grad())); }
void mean_rule(const C& c) { c.set(0, spread(c, c.grad() / reduced_count(c))); }
// 2 (x - mean) / (n - correction)
void var_rule(const C& c) {
  const Tensor x = c.input(0);
  const double n = reduced_count(c) - c.get<ReduceAttrs>().value;
  const Shape dims = reduced_dims(c);
  const Tensor centred = dims.empty() ? x * 0 : x - mean(x, dims, true);
  c.set(0, keep_dims(c, c.grad()) * (centred * (2 / n)));
}
// Equal extremes share the gradient, as PyTorch's amax does.
void extreme_rule(const C& c) {
  const Tensor x = c.input(0);
  const Tensor hit = cast(x == keep_dims(c, c.output(0)), c.grad().dtype());
  const Shape dims = reduced_dims(c);
  const Tensor count = dims.empty() ? hit : sum(hit, dims, true);
  c.set(0, keep_dims(c, c.grad()) * (hit / count));
}
void logsumexp_rule(const C& c) {
  const Tensor x = c.input(0);
  c.set(0, keep_dims(c, c.grad()) * exp(x - keep_dims(c, c.output(0))));
}
// d |x|_p = sign(x) (|x| / norm)^(p-1), 0 where the norm is 0.
void norm_rule(const C& c) {
  const double p = c.get<ReduceAttrs>().value;
  const Tensor x = c.input(0);
  if (p == 0) return c.set(0, x * 0);
  if (p == 1) return c.set(0, keep_dims(c, c.grad()) * sign(x));
  const Tensor n = keep_dims(c, c.output(0));
  if (std::isinf(p)) {
    const Tensor hit = cast(abs(x) == n, x.dtype());
    const Shape dims = reduced_dims(c);
    return c.set(0, keep_dims(c, c.grad()) * (sign(x) * hit / (dims.empty() ? hit : sum(hit, dims, true))));
  }
  const Tensor safe = where(n == 0, 1, n);
  const Tensor ratio = p == 2 ? x / safe : sign(x) * pow(abs(x) / safe, p - 1);
  c.set(0, keep_dims(c, c.grad()) * ratio);
}

}  // namespace

void register_reduction_rules() {
  set_rule(OpId::sum, sum_rule);
  set_rule(OpId::mean, mean_rule);
  set_rule(OpId::var, var_rule, {in(0)});
  const auto both = static_cast<std::uint16_t>(in(0) | out(0));
  set_rule(OpId::max, extreme_rule, {both});
  set_rule(OpId::min, extreme_rule, {both});
  set_rule(OpId::logsumexp, logsumexp_rule, {both});
  set_rule(OpId::norm, norm_rule, {both});
  set_no_rule(OpId::argmax, "an integer result");
  set_no_rule(OpId::argmin, "an integer result");
}

}  // namespace gradual
