// The composite ops: written with other ops, above autograd, so that amp sees them whole.
#include <cmath>

#include "../formats/accumulator.h"
#include "../support/throwf.h"
#include "derived_ops.h"
#include "dispatch.h"

namespace gradual {
namespace {

// A composite op that reduces the loss of each element.
template <Tensor (*each)(const Tensor& x, const Tensor& y, Loc at)> Outputs loss(const OpCall& c) {
  if (c[0].sizes() != c[1].sizes()) throw_error(c, "input and target must have the same shape");
  return {{reduced_loss(each(c[0], c[1], c.where), c.get<Reduction>(), c.where)}};
}

Tensor each_mse_loss(const Tensor& x, const Tensor& y, Loc at) { return square(sub({x, at}, y), at); }

Tensor each_l1_loss(const Tensor& x, const Tensor& y, Loc at) { return abs(sub({x, at}, y), at); }

// f(x), a logarithm with this pole, clamped at -100 as in PyTorch. At the pole f is evaluated at another point: the
// slope there is infinite, and times the clamp's 0 it would give a gradient of NaN.
template <Tensor (*f)(const Tensor& x, Loc at)> Tensor clamped(const Tensor& x, double pole, Loc at) {
  const Tensor there = eq({x, at}, pole);
  return where(there, {-100, at}, clamp(f(where(there, {pole + 1, at}, x), at), -100, INFINITY, at));
}

// -(y log p + (1 - y) log(1 - p)). Finite for p = 0 and 1, where only the other logarithm has a gradient.
Tensor each_bce_loss(const Tensor& p, const Tensor& y, Loc at) {
  if (p.device().is_cpu())
    for (const double v : p.to_vector<double>())
      if (v < 0 || v > 1) throwf("bce_loss: {} is not a probability; bce_with_logits_loss takes logits", v);
  const Tensor log_p = clamped<log>(p, 0, at);
  const Tensor log_q = clamped<log1p>(neg(p, at), -1, at);
  return neg(add({mul({y, at}, log_p), at}, mul({sub({1, at}, y), at}, log_q)), at);
}

// max(x, 0) - x y + log(1 + exp(-|x|)), which never overflows. If y is 0 or 1 and x has its sign, the first two terms
// cancel exactly, in the gradient too. |x| has slope 1 at 0, consistent with the step function.
Tensor each_bce_with_logits_loss(const Tensor& x, const Tensor& y, Loc at) {
  const Tensor positive = ge({x, at}, 0);
  const Tensor log_part = softplus(where(positive, {neg(x, at), at}, x), at);
  const Tensor slope = sub({cast(positive, x.dtype(), at), at}, y);
  const Tensor lost = logical_and({isinf(x, at), at}, eq({slope, at}, 0));  // Inf times 0 would be NaN
  const Tensor line = mul({where(lost, {0, at}, {x, at}), at}, slope);
  return add({line, at}, log_part);
}

// True if flash_attention computes this: no mask, dropout or accumulator, and the backend suits the call.
bool fused(const OpCall& c) {
  const auto& a = c.get<AttentionAttrs>();
  if (c[3].defined() || a.dropout > 0 || current_accumulator()) return false;
  const int n = c[0].dim();
  const auto alike = [&](const Tensor& t) {
    return t.dtype() == c[0].dtype() && t.dim() == n && t.sizes().first(n - 2) == c[0].sizes().first(n - 2);
  };
  const bool meet = alike(c[1]) && alike(c[2]) && c[1].size(-1) == c[0].size(-1) && c[2].size(-2) == c[1].size(-2);
  return meet && suits({OpId::flash_attention, TensorRefs(c.inputs.data(), 3), c.attrs, c.where});
}

// bool [.., L, 1]: true for queries whose added mask [.., L, S] is -Inf for all keys that they may attend to.
Tensor sees_nothing(const Tensor& mask, bool causal, const Shape& scores, Loc at) {
  Tensor added = mask.detach();
  if (causal) {
    const Shape sum = broadcast_shapes(scores, mask.sizes(), "scaled_dot_product_attention's mask");
    const Tensor past = tril(ones(sum.last(2), {.device = mask.device()}), 0, at);
    added = where(cast(past, DType::bool_, at), {added, at}, -INFINITY);
  }
  return eq({max(added, added.dim() > 0 ? Shape{-1} : Shape{}, true, at), at}, -INFINITY);
}

Tensor attention_cast(const Tensor& t, DType dtype, Loc at) {
  const CauseScope cause(causes::attention);
  return cast(t, dtype, at);
}

// softmax(q k^T * scale + mask) v (Vaswani et al. 2017). Half operands are widened: scores, probabilities and their
// gradients are f32, and y and the gradients of q, k and v are rounded once.
Outputs attention(const OpCall& c) {
  const Tensor& mask = c[3];
  for (int i = 0; i < 3; ++i)
    if (!c[i].defined() || c[i].dim() < 2) throw_error(c, "q, k and v must be [.., length, head size]");
  const auto& a = c.get<AttentionAttrs>();
  if (!(a.dropout >= 0 && a.dropout <= 1)) throw_error(c, "dropout must be 0 to 1");
  if (!std::isfinite(a.scale)) throwf(c, "the scale must be finite, given {}", a.scale);
  if (mask.defined() && mask.dtype() != DType::bool_ && !mask.is_floating())
    throwf(c, "the mask must be bool or floating, given {}", to_string(mask.dtype()));
  if (fused(c)) return {{dispatch1(OpId::flash_attention, {&c[0], &c[1], &c[2]}, a, c.where)}};
  const double scale = attention_scale(a, c[0].size(-1));
  const auto wide = [&](const Tensor& t) { return is_half(t.dtype()) ? attention_cast(t, DType::f32, c.where) : t; };
  const Tensor q = wide(c[0]);
  const Tensor k = wide(c[1]);
  const Tensor v = wide(c[2]);
  Tensor scores = matmul(mul({q, c.where}, {scale, c.where}), transpose(k, -2, -1, c.where), c.where);
  // A row of only -Inf would give a softmax of NaN, and v a gradient of NaN, for a query that may attend to no key.
  const bool chosen = mask.defined() && mask.dtype() == DType::bool_;
  Tensor blind;  // queries with such a row in an added mask
  if (chosen) {
    scores = where(mask, {scores, c.where}, -float_info(scores.dtype()).max);
  } else if (mask.defined()) {
    Tensor added = cast(mask, scores.dtype(), c.where);
    if (scores.numel() > 0 && mask.numel() > 0) {
      blind = sees_nothing(added, a.causal, scores.sizes(), c.where);
      added = where(blind, 0, {added, c.where});
    }
    scores = add({scores, c.where}, added);
  }
  const DimAttrs last{.dim = scores.dim() - 1, .causal = a.causal};
  Tensor probabilities = dispatch1(OpId::softmax, {&scores}, last, c.where);
  if (chosen) probabilities = where(mask, {probabilities, c.where}, 0);
  if (a.dropout > 0)
    probabilities = dispatch1(OpId::dropout, {&probabilities}, DropoutAttrs{a.dropout, a.key}, c.where);
  Tensor y = matmul(probabilities, v, c.where);
  if (blind.defined()) y = where(blind, 0, {y, c.where});
  return {{attention_cast(y, promote(promote(c[0].dtype(), c[1].dtype()), c[2].dtype()), c.where)}};
}

Outputs embed(const OpCall& c) {
  const Tensor& weight = c[0];
  const Tensor& indices = c[1];
  if (weight.dim() != 2) throw_error(c, "the weight must be [entries, size]");
  Shape sizes = indices.sizes();
  sizes.push_back(weight.sizes()[1]);
  return {{reshape(index_select(weight, 0, reshape(indices, {-1}, c.where), c.where), sizes, c.where)}};
}

}  // namespace

void register_composites() {
  const auto set = [](OpId op, CompositeFn fn) { columns().composite[static_cast<int>(op)] = fn; };
#define GRADUAL_LOSS_OP(name) set(OpId::name, loss<each_##name>);
#include "../ops.def"
  set(OpId::scaled_dot_product_attention, attention);
  set(OpId::embedding, embed);
}

}  // namespace gradual
