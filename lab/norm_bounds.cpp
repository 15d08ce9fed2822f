#include "norm_bounds.h"

#include <cmath>
#include <cstdint>

#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "judge_bounds.h"

namespace gradual::lab {
namespace {

constexpr double kJoins = 4;     // roundings of a term, and of the scaling of its sum
constexpr double kFunction = 4;  // units of rounding of 1 / sqrt and of the few operations around it

// The relative error of (v + eps)^(-1/2) if v has this one and stays at least 0. Infinite where v + eps may be 0.
Tensor root_error(const Tensor& v_error, const Tensor& variance, double eps, const Units& units) {
  const Tensor v_eps = add(variance, eps);
  const Tensor least = add(maximum(sub(variance, v_error), 0), eps);
  const Tensor grows = sub(rsqrt(div(least, v_eps)), 1);
  const Tensor falls = sub(1, rsqrt(add(div(v_error, v_eps), 1)));
  return add(maximum(grows, falls), kFunction * units.sum);
}

}  // namespace

// The variance's error: of the differences, of the mean (to second order, since they add up to 0), and of the sum.
// Updating formulas add n u sigma times the root mean square of x (Chan, Golub and LeVeque 1983).
Tensor norm_variance_error(const NormNumbers& n, const NormParts& p, const Tensor& mean_error, const Tensor& variance,
                           const Units& units) {
  const Tensor of_element = add(n.x_error, mul(abs(p.deviation), units.sum));
  Tensor error = mul(mean(mul(abs(p.deviation), of_element), n.dims, true), 2);
  error = add(error, add(mean(square(of_element), n.dims, true), square(mean_error)));
  const Tensor size = sqrt(mul(variance, mean(square(n.x), n.dims, true)));
  return add(error, mul(maximum(size, variance), gamma(p.terms + kJoins, units.sum)));
}

// c / sqrt(|c|^2 / n + eps) is a gradient, that of n sqrt(|c|^2 / n + eps), whose second derivative is at most the
// reciprocal root: so the normalised row moves by at most that, at the smallest |c|, times what c moves.
static void narrow(NormParts& p, const NormNumbers& n, const Units& units) {
  const NormParts near = nearby_norm(n, p, units).parts;
  const Tensor moved = mul(n.x_rows, 1 / std::sqrt(p.terms));
  const Tensor size = sqrt(mean(square(p.deviation), n.dims, true));
  const Tensor grows = sub(div(near.root, p.root), 1);
  const Tensor falls = sub(1, div(rsqrt(add(square(add(size, moved)), n.eps)), p.root));
  const Tensor shift = maximum(grows, falls);
  p.root_error = minimum(p.root_error, add(shift, mul(near.root_error, add(shift, 1))));
  p.normal_error = minimum(p.normal_error, add(mul(near.root, n.x_rows), near.normal_error));
}

NormParts norm_parts(const NormNumbers& n, const Units& units) {
  NormParts p;
  p.terms = 1;
  for (const std::int64_t d : n.dims) p.terms *= static_cast<double>(n.x.size(static_cast<int>(d)));
  const double sums = gamma(p.terms + kJoins, units.sum);
  Tensor mean_error = n.mean_error;
  Tensor variance = n.variance;
  Tensor v_error = n.variance_error;
  if (n.own) {
    p.mean = n.centred ? mean(n.x, n.dims, true) : zeros_like(mean(n.x, n.dims, true));
    mean_error = n.centred ? add(mean(n.x_error, n.dims, true), mul(mean(abs(n.x), n.dims, true), sums)) : p.mean;
    p.deviation = sub(n.x, p.mean);
    variance = mean(square(p.deviation), n.dims, true);
    v_error = norm_variance_error(n, p, mean_error, variance, units);
  } else {
    p.mean = n.mean;
    p.deviation = sub(n.x, p.mean);
  }
  // (x - mean) r and x r - mean r round differently.
  const Tensor shifted = n.centred ? add(abs(n.x), abs(p.mean)) : abs(n.x);
  p.deviation_error = add(add(n.x_error, mean_error), mul(shifted, 2 * units.sum));
  const Tensor v_eps = add(variance, n.eps);
  p.root = rsqrt(v_eps);
  p.root_error = root_error(v_error, variance, n.eps, units);
  p.normal = mul(p.deviation, p.root);
  p.normal_error = mul(p.root, mul(p.deviation_error, add(p.root_error, 1)));
  p.normal_error = add(p.normal_error, mul(abs(p.normal), add(p.root_error, kFunction * units.sum)));
  p.weight = n.weight.defined() ? n.weight : ones({1}, {.dtype = DType::f64});
  p.weight_error = or_zeros(n.weight_error, p.weight);
  if (n.own && n.x_rows.defined()) narrow(p, n, units);
  return p;
}

// A row c = x - mean of n elements has moved by at most its norm of errors, and so has the root of its mean square by
// that over sqrt(n).
NearbyNorm nearby_norm(const NormNumbers& n, const NormParts& p, const Units& units) {
  const double u = units.sum;
  const double sums = gamma(p.terms + kJoins, units.sum);
  const Tensor zero = zeros({1}, {.dtype = DType::f64});
  NearbyNorm near{n, p};
  const Tensor moved = mul(n.x_rows, 1 / std::sqrt(p.terms));
  const Tensor mean_moved = n.centred ? minimum(mean(n.x_error, n.dims, true), moved) : zero;
  const Tensor x = add(abs(n.x), n.x_error);
  const Tensor middle = add(abs(p.mean), mean_moved);
  const Tensor deviation = add(abs(p.deviation), minimum(add(n.x_error, mean_moved), n.x_rows));
  const Tensor size = sqrt(mean(square(p.deviation), n.dims, true));
  const Tensor least = square(maximum(sub(size, moved), 0));
  const Tensor most = square(add(size, moved));
  const Tensor mean_error = n.centred ? mul(mean(x, n.dims, true), sums) : zero;
  Tensor v_error = add(mul(most, u * (2 + u)), square(mean_error));
  const Tensor wide = sqrt(mul(most, mean(square(x), n.dims, true)));
  v_error = add(v_error, mul(maximum(wide, most), sums));
  near.numbers.x = x;
  near.parts.mean = middle;
  near.parts.root = rsqrt(add(least, n.eps));
  near.parts.root_error = root_error(v_error, least, n.eps, units);
  near.parts.deviation = deviation;
  const Tensor shifted = n.centred ? add(x, middle) : x;
  near.parts.deviation_error = add(mean_error, mul(shifted, 2 * u));
  near.parts.normal = minimum(mul(deviation, near.parts.root), std::sqrt(p.terms));
  Tensor& normal_error = near.parts.normal_error;
  normal_error = mul(near.parts.root, mul(near.parts.deviation_error, add(near.parts.root_error, 1)));
  normal_error = add(normal_error, mul(near.parts.normal, add(near.parts.root_error, kFunction * u)));
  near.parts.weight = add(abs(p.weight), p.weight_error);
  near.parts.weight_error = zeros_like(near.parts.weight);
  return near;
}

Tensor norm_output_bound(const NormNumbers& n, const NormParts& p, const Units& units) {
  Tensor bound = mul(p.normal_error, add(abs(p.weight), p.weight_error));
  bound = add(bound, mul(abs(p.normal), p.weight_error));
  Tensor terms = mul(abs(p.normal), abs(p.weight));
  if (n.bias.defined()) {
    bound = add(bound, n.bias_error);
    terms = add(terms, abs(n.bias));
  }
  return add(bound, mul(terms, 2 * units.sum + units.store));
}

Tensor norm_input_gradient_bound(const NormNumbers& n, const NormParts& p, const Tensor& g, const Tensor& g_error,
                                 const Tensor& dx, const Units& units) {
  const double u = units.sum;
  const double sums = gamma(p.terms + kJoins, units.sum);
  const Tensor gw = mul(g, p.weight);
  const Tensor gw_error =
      add(mul(g_error, add(abs(p.weight), p.weight_error)), mul(abs(g), add(p.weight_error, mul(abs(p.weight), u))));
  const Tensor scale = mul(p.root, add(p.root_error, 1));
  if (!n.own) return add(mul(scale, gw_error), mul(abs(dx), add(p.root_error, kFunction * u)));
  const Tensor over = add(abs(n.x), abs(p.mean));
  const Tensor m2 = mean(mul(gw, p.normal), n.dims, true);
  Tensor m2_error = mul(mean(mul(abs(gw), over), n.dims, true), mul(p.root, sums));
  m2_error = add(m2_error, mean(mul(gw_error, add(abs(p.normal), p.normal_error)), n.dims, true));
  m2_error = add(m2_error, mean(mul(abs(gw), p.normal_error), n.dims, true));
  Tensor error = gw_error;
  Tensor size = add(abs(gw), mul(abs(p.normal), abs(m2)));
  if (n.centred) {
    const Tensor m1 = mean(gw, n.dims, true);
    error = add(error, add(mean(gw_error, n.dims, true), mul(mean(abs(gw), n.dims, true), sums)));
    size = add(size, abs(m1));
  }
  error = add(error, add(mul(p.normal_error, abs(m2)), mul(m2_error, add(abs(p.normal), p.normal_error))));
  error = add(mul(scale, error), mul(abs(dx), p.root_error));
  error = add(error, mul(mul(p.root, size), 2 * kFunction * u));
  // a x + c with constants a and c of the row.
  return add(error, mul(mul(square(p.root), mul(abs(m2), over)), kFunction * u));
}

Tensor norm_weight_gradient_bound(const NormNumbers& n, const NormParts& p, const Tensor& g, const Tensor& g_error,
                                  double terms, const Units& units) {
  const double sums = gamma(terms + kJoins, units.sum);
  Tensor error = mul(g_error, add(abs(p.normal), p.normal_error));
  error = add(error, mul(abs(g), p.normal_error));
  return add(error, mul(mul(abs(g), mul(add(abs(n.x), abs(p.mean)), p.root)), sums));
}

Tensor norm_bias_gradient_bound(const Tensor& g, const Tensor& g_error, double terms, const Units& units) {
  return add(g_error, mul(abs(g), gamma(terms + kJoins, units.sum)));
}

}  // namespace gradual::lab
