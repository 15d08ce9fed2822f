// Losses.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <utility>

#include "../core/ops/derived_ops.h"
#include "../core/support/throwf.h"
#include "ops_table.h"

namespace gradual::pt2 {
namespace {

Reduction reduction(const Arguments& a, int i) {
  constexpr Reduction kByCode[] = {Reduction::none, Reduction::mean, Reduction::sum};
  const std::int64_t code = a.integer(i);
  if (code < 0 || code > 2) a.fail(i, "0 (none), 1 (mean) or 2 (sum)");
  return kByCode[code];
}

// [N, C, d..] as rows [N d.., C].
Tensor as_rows(const Tensor& x) {
  if (x.dim() <= 2) return x.dim() == 1 ? unsqueeze(x, 0) : x;
  Shape order{0};
  for (int d = 2; d < x.dim(); ++d) order.push_back(d);
  order.push_back(1);
  return reshape(permute(x, order), {-1, x.size(1)});
}

// -w[c] log_p[c] of each row, 0 for the ignored class; the mean is over the weights.
Tensor weighted_nll(const Tensor& log_p, const Tensor& classes, const Tensor& weight, std::int64_t ignored,
                    Reduction by) {
  const Tensor used = ne(classes, static_cast<double>(ignored));
  const Tensor safe = where(used, classes, 0);
  const Tensor chosen = where(used, neg(squeeze(gather(log_p, 1, unsqueeze(safe, 1)), 1)), 0);
  const Tensor w = mul(weight.defined() ? index_select(weight, 0, safe) : ones(safe.sizes(), options_of(log_p)),
                       cast(used, log_p.dtype()));
  const Tensor each = mul(chosen, w);
  if (by == Reduction::none) return each;
  return by == Reduction::sum ? sum(each) : div(sum(each), sum(w));
}

// -sum over classes of weight * log_p of each row, 0 for the ignored class; the mean is over the targets' weights.
Tensor weighted_smoothing(const Tensor& log_p, const Tensor& classes, const Tensor& weight, std::int64_t ignored,
                          Reduction by) {
  const Tensor used = ne(classes, static_cast<double>(ignored));
  const Tensor each = where(used, neg(sum(mul(log_p, weight), {1})), 0);
  if (by == Reduction::none) return each;
  if (by == Reduction::sum) return sum(each);
  const Tensor of_targets = index_select(weight, 0, where(used, classes, 0));
  return div(sum(each), sum(where(used, of_targets, 0)));
}

// input target weight reduction ignore_index label_smoothing
Value cross_entropy_row(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const Tensor& target = a.tensor(1);
  const Reduction by = reduction(a, 3);
  const double smoothing = a.number(5);
  const std::int64_t classes = x.size(x.dim() == 1 ? 0 : 1);
  if (!target.is_floating() && a.none(2)) {
    const CrossEntropyOptions options{.reduction = by, .label_smoothing = smoothing, .ignore_index = a.integer(4)};
    if (x.dim() > 1) return cross_entropy(x, as_index(target), options);
    const Tensor loss = cross_entropy(unsqueeze(x, 0), reshape(as_index(target), 1), options);
    return by == Reduction::none ? reshape(loss, target.sizes()) : loss;
  }
  const Tensor log_p = log_softmax(as_rows(x), 1);
  const Tensor weight = a.optional_tensor(2);
  if (target.is_floating()) {
    Tensor p = as_rows(target);
    if (smoothing > 0) p = add(mul(p, 1 - smoothing), smoothing / static_cast<double>(classes));
    if (weight.defined()) p = mul(p, weight);
    const Tensor each = neg(sum(mul(log_p, p), {1}));
    if (by == Reduction::none) {
      Shape sizes;
      for (int d = 0; d < x.dim(); ++d)
        if (d != (x.dim() == 1 ? 0 : 1)) sizes.push_back(x.size(d));
      return reshape(each, sizes);
    }
    const double rows = static_cast<double>(std::max<std::int64_t>(1, log_p.size(0)));
    return by == Reduction::sum ? sum(each) : div(sum(each), rows);
  }
  const Tensor flat = reshape(as_index(target), {-1});
  Tensor loss = weighted_nll(log_p, flat, weight, a.integer(4), by);
  if (smoothing > 0) {
    const Tensor smooth = weighted_smoothing(log_p, flat, weight, a.integer(4), by);
    loss = add(mul(loss, 1 - smoothing), mul(smooth, smoothing / static_cast<double>(classes)));
  }
  return by == Reduction::none ? reshape(loss, target.sizes()) : loss;
}
// self target weight reduction ignore_index
Value nll_row(const Arguments& a) {
  const Tensor target = as_index(a.tensor(1));
  const Tensor loss =
      weighted_nll(as_rows(a.tensor(0)), reshape(target, {-1}), a.optional_tensor(2), a.integer(4), reduction(a, 3));
  return loss.dim() == 0 ? loss : reshape(loss, target.sizes());
}

// Operands of one shape, as PyTorch broadcasts them.
std::pair<Tensor, Tensor> alike(const Arguments& a) {
  const Shape sizes = broadcast_shapes(a.tensor(0).sizes(), a.tensor(1).sizes(), "a loss");
  return {expand(a.tensor(0), sizes), expand(a.tensor(1), sizes)};
}
Value mse(const Arguments& a) {
  const auto [x, y] = alike(a);
  return mse_loss(x, y, reduction(a, 2));
}
Value l1(const Arguments& a) {
  const auto [x, y] = alike(a);
  return l1_loss(x, y, reduction(a, 2));
}
// d^2 / (2 beta) for |d| < beta, then |d| - beta / 2.
Value smooth_l1(const Arguments& a) {
  const auto [x, y] = alike(a);
  const double beta = a.number(3);
  if (beta == 0) return l1_loss(x, y, reduction(a, 2));
  return div(huber_loss(x, y, reduction(a, 2), beta), beta);
}
Value huber(const Arguments& a) {
  const auto [x, y] = alike(a);
  return huber_loss(x, y, reduction(a, 2), a.number(3));
}
// self target weight reduction
Value bce(const Arguments& a) {
  if (a.none(2)) return bce_loss(a.tensor(0), a.tensor(1), reduction(a, 3));
  return reduced_loss(mul(bce_loss(a.tensor(0), a.tensor(1), Reduction::none), a.tensor(2)), reduction(a, 3));
}
// self target weight pos_weight reduction
Value bce_logits(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const Tensor& y = a.tensor(1);
  if (a.none(2) && a.none(3)) return bce_with_logits_loss(x, y, reduction(a, 4));
  Tensor each;
  if (a.none(3)) {
    each = bce_with_logits_loss(x, y, Reduction::none);
  } else {  // (1 - y) x + (1 + (p - 1) y) log(1 + exp(-x))
    const Tensor log_weight = add(mul(sub(a.tensor(3), 1), y), 1);
    each = add(mul(sub(1, y), x), mul(log_weight, softplus(neg(x))));
  }
  if (!a.none(2)) each = mul(each, a.tensor(2));
  return reduced_loss(each, reduction(a, 4));
}
// self target reduction log_target
Value kl(const Arguments& a) {
  if (!a.flag(3)) return kl_div(a.tensor(0), a.tensor(1), reduction(a, 2));
  const Tensor each = mul(exp(a.tensor(1)), sub(a.tensor(1), a.tensor(0)));
  return reduced_loss(each, reduction(a, 2));
}
// input1 input2 target margin reduction
Value margin_ranking(const Arguments& a) {
  const Tensor each =
      clamp_strictly(add(mul(neg(a.tensor(2)), sub(a.tensor(0), a.tensor(1))), a.number(3)), 0, INFINITY);
  return reduced_loss(each, reduction(a, 4));
}

// input target log_input full eps reduction
Value poisson_nll(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const Tensor& y = a.tensor(1);
  Tensor each = a.flag(2) ? sub(exp(x), mul(y, x)) : sub(x, mul(y, log(add(x, a.number(4)))));
  if (a.flag(3)) {  // Stirling's approximation of log(y!)
    const Tensor large = where(gt(y, 1), y, 1);
    const Tensor rest = add(sub(mul(large, log(large)), large), mul(log(mul(large, 2 * std::numbers::pi)), 0.5));
    each = add(each, where(gt(y, 1), rest, 0));
  }
  return reduced_loss(each, reduction(a, 5));
}
// log(1 + exp(-y x)).
Value soft_margin(const Arguments& a) {
  return reduced_loss(softplus(neg(mul(a.tensor(1), a.tensor(0)))), reduction(a, 2));
}
// self target margin reduction
Value hinge_embedding(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const Tensor apart = where(ne(a.tensor(1), 1), clamp_strictly(sub(a.number(2), x), 0, INFINITY), 0);
  return reduced_loss(add(apart, where(ne(a.tensor(1), -1), x, 0)), reduction(a, 3));
}
Tensor pair_distance(const Tensor& x, const Tensor& y, double p, double eps, bool keep = false) {
  return norm(add(sub(x, y), eps), p, {-1}, keep);
}
// anchor positive negative margin p eps swap reduction
Value triplet_margin(const Arguments& a) {
  const double p = a.number(4);
  const double eps = a.number(5);
  const Tensor near = pair_distance(a.tensor(0), a.tensor(1), p, eps);
  Tensor far = pair_distance(a.tensor(0), a.tensor(2), p, eps);
  if (a.flag(6)) far = minimum(far, pair_distance(a.tensor(1), a.tensor(2), p, eps));
  return reduced_loss(clamp_strictly(add(sub(near, far), a.number(3)), 0, INFINITY), reduction(a, 7));
}
// input1 input2 target margin reduction
Value cosine_embedding(const Arguments& a) {
  constexpr double kEps = 1e-12;
  const Tensor& x = a.tensor(0);
  const Tensor& y = a.tensor(1);
  const Tensor lengths = mul(add(sum(square(x), {-1}), kEps), add(sum(square(y), {-1}), kEps));
  const Tensor cosine = div(sum(mul(x, y), {-1}), sqrt(lengths));
  const Tensor apart = where(eq(a.tensor(2), -1), clamp_strictly(sub(cosine, a.number(3)), 0, INFINITY), 0);
  return reduced_loss(add(where(eq(a.tensor(2), 1), sub(1, cosine), 0), apart), reduction(a, 4));
}
// self target p margin weight reduction
Value multi_margin(const Arguments& a) {
  const Tensor x = a.tensor(0).dim() == 1 ? unsqueeze(a.tensor(0), 0) : a.tensor(0);
  const Tensor index = reshape(as_index(a.tensor(1)), {-1});
  const double p = a.number(2);
  if (p != 1 && p != 2) a.fail(2, "1 or 2");
  const Tensor gap = add(sub(x, gather(x, 1, unsqueeze(index, 1))), a.number(3));
  Tensor each = clamp_strictly(gap, 0, INFINITY);
  if (p == 2) each = square(each);
  if (!a.none(4)) each = mul(each, unsqueeze(index_select(a.tensor(4), 0, index), 1));
  const Tensor own = eq(one_hot(index, x.size(1)), 1);
  const Tensor rows = div(sum(where(own, 0, each), {1}), static_cast<double>(x.size(1)));
  const Tensor loss = reduced_loss(rows, reduction(a, 5));
  return loss.dim() == 0 ? loss : reshape(loss, a.tensor(1).sizes());
}

constexpr OpRow kLossRows[] = {
    {"aten.cross_entropy_loss.default", "self target weight=None reduction=1 ignore_index=-100 label_smoothing=0.0",
     cross_entropy_row},
    {"aten.nll_loss.default", "self target weight=None reduction=1 ignore_index=-100", nll_row},
    {"aten.nll_loss_nd.default", "self target weight=None reduction=1 ignore_index=-100", nll_row},
    {"aten.nll_loss2d.default", "self target weight=None reduction=1 ignore_index=-100", nll_row},
    {"aten.mse_loss.default", "self target reduction=1", mse},
    {"aten.l1_loss.default", "self target reduction=1", l1},
    {"aten.smooth_l1_loss.default", "self target reduction=1 beta=1.0", smooth_l1},
    {"aten.huber_loss.default", "self target reduction=1 delta=1.0", huber},
    {"aten.binary_cross_entropy.default", "self target weight=None reduction=1", bce},
    {"aten.binary_cross_entropy_with_logits.default", "self target weight=None pos_weight=None reduction=1",
     bce_logits},
    {"aten.kl_div.default", "self target reduction=1 log_target=False", kl},
    {"aten.poisson_nll_loss.default", "input target log_input full eps reduction", poisson_nll},
    {"aten.soft_margin_loss.default", "self target reduction=1", soft_margin},
    {"aten.hinge_embedding_loss.default", "self target margin=1.0 reduction=1", hinge_embedding},
    {"aten.triplet_margin_loss.default", "anchor positive negative margin=1.0 p=2 eps=1e-06 swap=False reduction=1",
     triplet_margin},
    {"aten.cosine_embedding_loss.default", "input1 input2 target margin=0.0 reduction=1", cosine_embedding},
    {"aten.multi_margin_loss.default", "self target p=1 margin=1 weight=None reduction=1", multi_margin},
    {"aten.pairwise_distance.default", "x1 x2 p=2 eps=1e-06 keepdim=False",
     [](const Arguments& a) -> Value {
       return pair_distance(a.tensor(0), a.tensor(1), a.number(2), a.number(3), a.flag(4));
     }},
    {"aten.margin_ranking_loss.default", "input1 input2 target margin=0.0 reduction=1", margin_ranking},
};

}  // namespace

std::span<const OpRow> loss_rows() { return kLossRows; }

}  // namespace gradual::pt2
