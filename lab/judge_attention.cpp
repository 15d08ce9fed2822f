#include "judge_attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "judge_bounds.h"

namespace gradual::lab {
namespace {

constexpr double kFunction = 8;     // units of rounding of exp and log, and of the few operations around them
constexpr double kRescalings = 16;  // terms that sums in blocks add, which are rescaled as the largest score grows

Tensor transposed(const Tensor& t) { return transpose(t, -2, -1); }

// Errors of a product of two matrices whose sums have `terms` terms.
Tensor product_error(const Tensor& a, const Tensor& a_error, const Tensor& b, const Tensor& b_error, double terms,
                     const Units& units) {
  const Tensor size_a = abs(a);
  const Tensor size_b = abs(b);
  const double own = gamma(terms + kRescalings, units.sum) + 2 * units.store;
  Tensor error = mul(matmul(size_a, size_b), own);
  error = add(error, matmul(a_error, add(size_b, b_error)));
  error = add(error, matmul(size_a, b_error));
  return add(error, units.least);
}

// Probabilities and by how much they may differ.
struct Probabilities {
  Tensor p, error;
};

// Of scores with these errors. exp's argument is the score less the row's largest one, or less the logarithm of the
// row's sum: that difference is rounded, too.
Probabilities probabilities(const Tensor& scores, const Tensor& error, const Units& units) {
  const Tensor unmasked = softmax(scores, -1);
  const Tensor p = where(gt(unmasked, 0), unmasked, 0);  // 0 in a row that is masked whole
  const Tensor s = finite(scores);
  const Tensor largest = amax(scores, {-1}, true);
  const Tensor logarithm = finite(add(largest, log(sum(exp(sub(scores, largest)), {-1}, true))));
  // The row's sum grows by at most this factor, and shrinks by no more.
  const Tensor of_scores = sub(logsumexp(add(scores, error), {-1}, true), logsumexp(scores, {-1}, true));
  const double own = gamma(length(scores, -1) + kRescalings, units.sum) + kFunction * units.sum + 2 * units.store;
  Tensor relative = add(error, where(isnan(of_scores), 0, of_scores));  // NaN: a row that is masked whole
  relative = add(relative, mul(add(abs(s), abs(logarithm)), 2 * units.sum));
  relative = add(relative, own);
  // Of a score so small that its exponential is 0, too; a probability lies between 0 and 1.
  const Tensor grown = where(gt(p, 0), mul(p, expm1(relative)), exp(add(sub(scores, logarithm), relative)));
  const Tensor bound = minimum(where(isnan(grown), 1, add(grown, units.least)), 1);
  return {p, bound};
}

// dx = p (g - the row's sum of p g), with the errors of p and g. `size` are the magnitudes that were added up in g.
Tensor through_softmax(const Probabilities& probability, const Tensor& g, const Tensor& g_error, const Tensor& size,
                       const Units& units) {
  const Tensor& p = probability.p;
  const Tensor mean = sum(mul(p, g), {-1}, true);
  const double terms = gamma(2 * length(p, -1) + kRescalings, units.sum) + 4 * units.store;
  Tensor mean_error = mul(sum(mul(p, size), {-1}, true), terms);
  mean_error = add(mean_error, sum(mul(probability.error, size), {-1}, true));
  mean_error = add(mean_error, sum(mul(p, g_error), {-1}, true));
  const Tensor centred = sub(g, mean);
  Tensor error = mul(probability.error, add(abs(centred), add(g_error, mean_error)));
  error = add(error, mul(p, add(g_error, mean_error)));
  const double own = kFunction * units.sum + 2 * units.store;
  error = add(error, mul(mul(p, add(abs(g), abs(mean))), own));
  return add(error, units.least);
}

// The heads of k and v repeated for groups of queries.
Tensor repeated(const Tensor& t, const Tensor& q) {
  if (t.dim() < 3 || t.size(-3) == q.size(-3) || t.size(-3) == 1) return t;
  const int dim = t.dim() - 3;
  Shape wide = t.sizes();
  wide.insert(dim + 1, q.size(-3) / t.size(-3));
  Shape sizes = t.sizes();
  sizes[dim] = q.size(-3);
  return reshape(expand(unsqueeze(t, dim + 1), wide), sizes);
}

// The sum over what was repeated or broadcast, back to the sizes of `like`.
Tensor summed(const Tensor& t, const Tensor& like) {
  if (t.sizes() == like.sizes()) return t;
  const bool groups = like.dim() >= 3 && t.dim() == like.dim() && like.size(-3) != 1 && t.size(-3) != like.size(-3);
  if (!groups) return sum_to(t, like.sizes());
  const int dim = t.dim() - 3;
  Shape wide = t.sizes();
  wide[dim] = like.size(-3);
  wide.insert(dim + 1, t.size(-3) / like.size(-3));
  return sum_to(sum(reshape(t, wide), {dim + 1}), like.sizes());
}

struct Scores {
  Tensor k, v, k_error, v_error, q_error;  // with repeated heads
  Probabilities probability;
};

Scores scores_of(const AttentionStep& a, const Units& units) {
  Scores s;
  s.k = repeated(a.k, a.q);
  s.v = repeated(a.v, a.q);
  s.k_error = repeated(or_zeros(a.k_error, a.k), a.q);
  s.v_error = repeated(or_zeros(a.v_error, a.v), a.q);
  s.q_error = or_zeros(a.q_error, a.q);
  Tensor scores = mul(matmul(a.q, transposed(s.k)), a.scale);
  Tensor error = mul(product_error(a.q, s.q_error, transposed(s.k), transposed(s.k_error), length(a.q, -1), units),
                     std::abs(a.scale));
  // Either operand may be scaled first, and rounded.
  error = add(error, mul(matmul(abs(a.q), abs(transposed(s.k))), 2 * units.store * std::abs(a.scale)));
  if (a.mask.defined()) {
    scores = add(scores, a.mask);
    error = add(error, mul(abs(finite(a.mask)), units.store));
    if (a.mask_error.defined()) error = add(error, a.mask_error);
  }
  error = add(error, mul(abs(finite(scores)), 2 * units.store));
  s.probability = probabilities(scores, error, units);
  return s;
}

}  // namespace

Tensor attention_bound(const AttentionStep& a, const Units& units) {
  const Scores s = scores_of(a, units);
  return product_error(s.probability.p, s.probability.error, s.v, s.v_error, length(s.v, -2), units);
}

AttentionGradientBounds attention_gradient_bounds(const AttentionStep& a, const Tensor& gradient,
                                                  const Tensor& gradient_error, const Units& units) {
  const Scores s = scores_of(a, units);
  const Tensor& p = s.probability.p;
  const Tensor g_error = or_zeros(gradient_error, gradient);
  const double queries = length(a.q, -2);
  const double keys = length(s.k, -2);
  AttentionGradientBounds bounds;
  const Tensor v_error =
      product_error(transposed(p), transposed(s.probability.error), gradient, g_error, queries, units);
  bounds.v = summed(v_error, a.v);
  const Tensor dp = matmul(gradient, transposed(s.v));
  const Tensor dp_error =
      product_error(gradient, g_error, transposed(s.v), transposed(s.v_error), length(s.v, -1), units);
  const Tensor size = matmul(abs(gradient), abs(transposed(s.v)));
  // The sums of dO O have the terms of dP and those of the row.
  const Tensor ds_error =
      through_softmax(s.probability, dp, add(dp_error, mul(size, gamma(length(s.v, -1), units.sum))), size, units);
  const Tensor ds = mul(p, sub(dp, sum(mul(p, dp), {-1}, true)));
  const double scale = std::abs(a.scale);
  bounds.q = mul(product_error(ds, ds_error, s.k, s.k_error, keys, units), scale);
  bounds.k =
      summed(mul(product_error(transposed(ds), transposed(ds_error), a.q, s.q_error, queries, units), scale), a.k);
  if (a.mask.defined()) bounds.mask = summed(add(ds_error, mul(abs(ds), 2 * units.store)), a.mask);
  return bounds;
}

Tensor softmax_bound(const Tensor& x, const Tensor& error, const Units& units) {
  const Probabilities probability = probabilities(x, or_zeros(error, x), units);
  return add(probability.error, mul(probability.p, 2 * units.store));
}

Tensor softmax_gradient_bound(const Tensor& x, const Tensor& error, const Tensor& gradient,
                              const Tensor& gradient_error, const Units& units) {
  const Probabilities probability = probabilities(x, or_zeros(error, x), units);
  return through_softmax(probability, gradient, or_zeros(gradient_error, gradient), abs(gradient), units);
}

}  // namespace gradual::lab
