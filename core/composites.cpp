// The composite rows: ops written with other ops, above autograd, so that amp sees them whole.
#include <cmath>

#include "dispatch.h"
#include "ops.h"

namespace gradual {
namespace {

Tensor reduce_loss(const Tensor& per_element, const OpCall& c) {
  switch (static_cast<Reduction>(c.get<ReductionAttrs>().reduction)) {
    case Reduction::none: return per_element;
    case Reduction::sum: return sum(per_element, {}, false, c.where);
    case Reduction::mean: break;
  }
  return mean(per_element, {}, false, c.where);
}

void check_loss(const OpCall& c) {
  if (c[0].sizes() != c[1].sizes()) fail(describe(c) + ": input and target must have the same shape");
}

Outputs mse(const OpCall& c) {
  check_loss(c);
  return {{reduce_loss(square(sub({c[0], c.where}, c[1]), c.where), c)}};
}

Outputs l1(const OpCall& c) {
  check_loss(c);
  return {{reduce_loss(abs(sub({c[0], c.where}, c[1]), c.where), c)}};
}

// -(y log p + (1 - y) log(1 - p)), logs clamped at -100 as PyTorch does, so that p = 0 or 1 stays finite.
Outputs bce(const OpCall& c) {
  check_loss(c);
  const Tensor& p = c[0];
  const Tensor& y = c[1];
  const double inf = INFINITY;
  const Tensor log_p = clamp(log(p, c.where), -100, inf, c.where);
  const Tensor log_q = clamp(log1p(neg(p, c.where), c.where), -100, inf, c.where);
  const Tensor likelihood = add({mul({y, c.where}, log_p), c.where}, mul({sub({1, c.where}, y), c.where}, log_q));
  return {{reduce_loss(neg(likelihood, c.where), c)}};
}

// max(x, 0) - x y + log(1 + exp(-|x|)), which never overflows; softplus(-x) + x (1 - y) is the same sum.
Outputs bce_with_logits(const OpCall& c) {
  check_loss(c);
  const Tensor& x = c[0];
  const Tensor& y = c[1];
  const Tensor positive = mul({x, c.where}, sub({1, c.where}, y));
  return {{reduce_loss(add({positive, c.where}, softplus(neg(x, c.where), c.where)), c)}};
}

// softmax(q k^T * scale + mask) v with the softmax in f32 whatever q's dtype (Vaswani et al. 2017). q is scaled
// before the product so that f16 scores stay in range.
Outputs attention(const OpCall& c) {
  const Tensor &q = c[0], &k = c[1], &v = c[2], &mask = c[3];
  if (!q.defined() || !k.defined() || !v.defined() || q.ndim() < 2 || k.ndim() < 2 || v.ndim() < 2)
    fail(describe(c) + ": q, k and v must be [.., length, head size]");
  const auto& a = c.get<AttentionAttrs>();
  const double scale = a.scale != 0 ? a.scale : 1 / std::sqrt(static_cast<double>(q.size(-1)));
  Tensor scores = matmul(mul({q, c.where}, {scale, c.where}), transpose(k, -2, -1, c.where), c.where);
  const DType dtype = scores.dtype();
  if (dtype != DType::f64) scores = cast(scores, DType::f32, c.where);
  if (a.causal) {
    const Tensor allowed = tril(ones({q.size(-2), k.size(-2)}, {.dtype = DType::bool_, .device = q.device()}));
    scores = where(allowed, {scores, c.where}, -INFINITY);
  }
  if (mask.defined()) {
    scores = mask.dtype() == DType::bool_ ? where(mask, {scores, c.where}, -INFINITY)
                                          : add({scores, c.where}, cast(mask, scores.dtype(), c.where));
  }
  Tensor probabilities = cast(softmax(scores, -1, c.where), dtype, c.where);
  if (a.dropout > 0)
    probabilities = dispatch1(OpId::dropout, {&probabilities}, DropoutAttrs{a.dropout, a.key}, c.where);
  return {{matmul(probabilities, v, c.where)}};
}

Outputs embed(const OpCall& c) {
  const Tensor& weight = c[0];
  const Tensor& indices = c[1];
  if (weight.ndim() != 2) fail(describe(c) + ": the weight must be [entries, size]");
  Shape sizes = indices.sizes();
  sizes.push_back(weight.sizes()[1]);
  return {{reshape(index_select(weight, 0, reshape(indices, {-1}, c.where), c.where), sizes, c.where)}};
}

}  // namespace

void register_composites() {
  const auto set = [](OpId op, CompositeFn fn) { columns().composite[static_cast<int>(op)] = fn; };
  set(OpId::mse_loss, mse);
  set(OpId::l1_loss, l1);
  set(OpId::bce_loss, bce);
  set(OpId::bce_with_logits_loss, bce_with_logits);
  set(OpId::scaled_dot_product_attention, attention);
  set(OpId::embedding, embed);
}

}  // namespace gradual
