#include "judge_norms.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "judge_bounds.h"
#include "judge_ops.h"

namespace gradual::lab {
namespace {

constexpr double kJoins = 4;     // roundings of a term, and of the scaling of its sum
constexpr double kFunction = 4;  // units of rounding of 1 / sqrt and of the few operations around it

// Where the operands of a norm stand among the arguments; -1: it has none.
struct NormOp {
  const char* name;
  int weight = -1;
  int bias = -1;
  int mean = -1;  // running mean and variance
  int variance = -1;
  int training = -1;  // whether the batch's own are used
  int eps = -1;
};
constexpr NormOp kNorms[] = {
    {.name = "aten.layer_norm", .weight = 2, .bias = 3, .eps = 4},
    {.name = "aten.batch_norm", .weight = 1, .bias = 2, .mean = 3, .variance = 4, .training = 5, .eps = 7},
    {.name = "aten.group_norm", .weight = 2, .bias = 3, .eps = 4},
    {.name = "aten.instance_norm", .weight = 1, .bias = 2, .mean = 3, .variance = 4, .training = 5, .eps = 7},
    {.name = "aten.rms_norm", .weight = 2, .eps = 3},
};

const NormOp* norm_of(const pt2::Step& step) {
  const auto found = std::ranges::find_if(kNorms, [&](const NormOp& op) { return is_op(step, op.name); });
  return found == std::end(kNorms) ? nullptr : &*found;
}

// y = (x - mean) r w + b with r = (variance + eps)^(-1/2), in a shape in which `dims` are those of a sum and all else
// broadcasts.
struct Norm {
  Shape sizes;  // of x as it is reduced
  Shape dims;
  Shape channels;  // the shape in which weight and bias broadcast; empty: their own
  int x = -1;
  int weight = -1;
  int bias = -1;
  bool centred = true;  // an RMS norm subtracts no mean
  bool own = true;      // the statistics are those of x
  double eps = 0;
};

std::optional<Norm> read(const pt2::Step& step, const ValueTensors& inputs) {
  const NormOp* const op = norm_of(step);
  if (!op) return std::nullopt;
  Norm n;
  n.x = id_of(step, 0);
  const Tensor x = of(inputs, n.x);
  if (!moves(x) || x.numel() == 0 || x.dim() < 2) return std::nullopt;
  n.weight = op->weight < 0 ? -1 : id_of(step, static_cast<std::size_t>(op->weight));
  n.bias = op->bias < 0 ? -1 : id_of(step, static_cast<std::size_t>(op->bias));
  n.centred = !is_op(step, "aten.rms_norm");
  const double* const eps = argument_of<double>(step, static_cast<std::size_t>(op->eps));
  n.eps = eps ? *eps : float_info(DType::f32).epsilon;
  if (op->training >= 0) {
    const bool* const training = argument_of<bool>(step, static_cast<std::size_t>(op->training));
    n.own = !training || *training;
  }
  n.sizes = x.sizes();
  if (is_op(step, "aten.layer_norm") || is_op(step, "aten.rms_norm")) {
    const auto over = static_cast<int>(integers_of(step, 1).size());
    for (int d = x.dim() - over; d < x.dim(); ++d) n.dims.push_back(d);
    return n;
  }
  n.channels = Shape::filled(x.dim(), 1);
  n.channels[1] = x.size(1);
  if (is_op(step, "aten.group_norm")) {
    const std::int64_t groups = integers_of(step, 1).at(0);
    const std::int64_t each = x.size(1) / groups;
    n.sizes = {x.size(0), groups, each};
    n.channels = {1, groups, each};
    for (int d = 2; d < x.dim(); ++d) {
      n.sizes.push_back(x.size(d));
      n.channels.push_back(1);
    }
  }
  const bool batch = is_op(step, "aten.batch_norm");
  for (int d = batch ? 0 : 2; d < n.sizes.size(); ++d)
    if (!batch || d != 1) n.dims.push_back(d);
  return n;
}

// What a norm computes on its way, and the errors of it.
struct Parts {
  Tensor x, x_error;  // as it is reduced
  Tensor mean;        // keeps its dims
  Tensor deviation, deviation_error;
  Tensor root, root_error;  // r, and its relative error
  Tensor normal, normal_error;
  Tensor weight, weight_error;  // undefined: 1
  double terms = 0;
};

Tensor broadcasting(const Tensor& t, const Norm& n) { return n.channels.empty() ? t : reshape(t, n.channels); }

// The variance's error: of the differences, of the mean (to second order, since they add up to 0), and of the sum.
// Updating formulas add n u sigma times the root mean square of x (Chan, Golub and LeVeque 1983).
Tensor variance_error(const Parts& p, const Tensor& x_error, const Tensor& mean_error, const Tensor& variance,
                      const Shape& dims, const Units& units) {
  const Tensor of_element = add(x_error, mul(abs(p.deviation), units.sum));
  Tensor error = mul(mean(mul(abs(p.deviation), of_element), dims, true), 2);
  error = add(error, add(mean(square(of_element), dims, true), square(mean_error)));
  const Tensor size = sqrt(mul(variance, mean(square(p.x), dims, true)));
  return add(error, mul(maximum(size, variance), gamma(p.terms + kJoins, units.sum)));
}

// The relative error of (v + eps)^(-1/2) if v has this one.
Tensor root_error(const Tensor& v_error, const Tensor& v_eps, const Units& units) {
  constexpr double kNearlyAll = 0.999;
  const Tensor part = minimum(div(v_error, v_eps), kNearlyAll);
  return add(sub(rsqrt(sub(1, part)), 1), kFunction * units.sum);
}

Parts parts_of(const Norm& n, const pt2::Step& step, const ValueTensors& inputs, const std::vector<Tensor>& errors,
               const Units& units) {
  Parts p;
  const Tensor x = of(inputs, n.x);
  p.x = reshape(x, n.sizes);
  p.x_error = add(reshape(or_zeros(error_of(inputs, errors, n.x), x), n.sizes), mul(abs(p.x), units.store));
  p.terms = 1;
  for (const std::int64_t d : n.dims) p.terms *= static_cast<double>(p.x.size(static_cast<int>(d)));
  const double sums = gamma(p.terms + kJoins, units.sum);
  Tensor mean_error;
  Tensor variance;
  Tensor v_error;
  if (n.own) {
    p.mean = n.centred ? mean(p.x, n.dims, true) : zeros_like(mean(p.x, n.dims, true));
    mean_error = n.centred ? add(mean(p.x_error, n.dims, true), mul(mean(abs(p.x), n.dims, true), sums)) : p.mean;
    p.deviation = sub(p.x, p.mean);
    variance = mean(square(p.deviation), n.dims, true);
    v_error = variance_error(p, p.x_error, mean_error, variance, n.dims, units);
  } else {
    const NormOp& op = *norm_of(step);
    const int mean_id = id_of(step, static_cast<std::size_t>(op.mean));
    const int variance_id = id_of(step, static_cast<std::size_t>(op.variance));
    const Tensor running = of(inputs, mean_id);
    const Tensor spread = of(inputs, variance_id);
    p.mean = reshape(running, n.channels);
    variance = reshape(spread, n.channels);
    mean_error =
        add(reshape(or_zeros(error_of(inputs, errors, mean_id), running), n.channels), mul(abs(p.mean), units.store));
    v_error =
        add(reshape(or_zeros(error_of(inputs, errors, variance_id), spread), n.channels), mul(variance, units.store));
    p.deviation = sub(p.x, p.mean);
  }
  // (x - mean) r and x r - mean r round differently.
  const Tensor shifted = n.centred ? add(abs(p.x), abs(p.mean)) : abs(p.x);
  p.deviation_error = add(add(p.x_error, mean_error), mul(shifted, 2 * units.sum));
  const Tensor v_eps = add(variance, n.eps);
  p.root = rsqrt(v_eps);
  p.root_error = root_error(v_error, v_eps, units);
  p.normal = mul(p.deviation, p.root);
  p.normal_error = mul(p.root, mul(p.deviation_error, add(p.root_error, 1)));
  p.normal_error = add(p.normal_error, mul(abs(p.normal), add(p.root_error, kFunction * units.sum)));
  if (n.weight >= 0) {
    const Tensor w = of(inputs, n.weight);
    p.weight = broadcasting(w, n);
    p.weight_error = broadcasting(add(or_zeros(error_of(inputs, errors, n.weight), w), mul(abs(w), units.store)), n);
  } else {
    p.weight = ones({1}, {.dtype = DType::f64});
    p.weight_error = zeros_like(p.weight);
  }
  return p;
}

Tensor output_bound(const Norm& n, const Parts& p, const ValueTensors& inputs, const std::vector<Tensor>& errors,
                    const Tensor& y, const Units& units) {
  const Tensor product = mul(abs(p.normal), abs(p.weight));
  Tensor bound = mul(p.normal_error, add(abs(p.weight), p.weight_error));
  bound = add(bound, mul(abs(p.normal), p.weight_error));
  Tensor terms = product;
  if (n.bias >= 0) {
    const Tensor b = of(inputs, n.bias);
    bound = add(bound, broadcasting(add(or_zeros(error_of(inputs, errors, n.bias), b), mul(abs(b), units.store)), n));
    terms = add(terms, abs(broadcasting(b, n)));
  }
  bound = add(bound, mul(terms, 2 * units.sum + units.store));
  return add(reshape(bound, y.sizes()), add(mul(abs(y), 2 * units.store), units.least));
}

// The gradient of x: r (g' - mean g' - x' mean(g' x')), with g' = g w and x' the normalised x.
Tensor input_gradient_bound(const Norm& n, const Parts& p, const Tensor& g, const Tensor& g_error, const Tensor& dx,
                            const Units& units) {
  const double u = units.sum;
  const double sums = gamma(p.terms + kJoins, u);
  const Tensor gw = mul(g, p.weight);
  const Tensor gw_error =
      add(mul(g_error, add(abs(p.weight), p.weight_error)), mul(abs(g), add(p.weight_error, mul(abs(p.weight), u))));
  const Tensor scale = mul(p.root, add(p.root_error, 1));
  if (!n.own) return add(mul(scale, gw_error), mul(abs(dx), add(p.root_error, kFunction * u)));
  const Tensor over = add(abs(p.x), abs(p.mean));
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

// The sum of t over all that a weight broadcasts to.
Tensor for_weight(const Tensor& t, const Norm& n, const Tensor& weight) {
  const Shape wide = n.channels.empty() ? weight.sizes() : n.channels;
  return reshape(sum_to(t, wide), weight.sizes());
}

}  // namespace

std::optional<std::vector<Tensor>> norm_bounds(const pt2::Step& step, const ValueTensors& inputs,
                                               const std::vector<Tensor>& errors, const ValueTensors& outputs,
                                               const Units& units) {
  const std::optional<Norm> n = read(step, inputs);
  if (!n || outputs.empty()) return std::nullopt;
  const Parts p = parts_of(*n, step, inputs, errors, units);
  std::vector<Tensor> bounds(outputs.size());  // running statistics have bounds of their own
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].second.sizes() == of(inputs, n->x).sizes())
      bounds[i] = output_bound(*n, p, inputs, errors, outputs[i].second, units);
  return bounds;
}

std::optional<std::vector<Tensor>> norm_gradient_bounds(const pt2::Step& step, const ValueTensors& inputs,
                                                        const std::vector<Tensor>& errors, const Tensor& gradient,
                                                        const Tensor& gradient_error,
                                                        const std::vector<Tensor>& results, const Units& units) {
  const std::optional<Norm> n = read(step, inputs);
  if (!n || gradient.sizes() != of(inputs, n->x).sizes()) return std::nullopt;
  const Parts p = parts_of(*n, step, inputs, errors, units);
  const Tensor g = reshape(gradient, n->sizes);
  const Tensor g_error = add(reshape(or_zeros(gradient_error, gradient), n->sizes), mul(abs(g), units.store));
  std::vector<Tensor> bounds(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const int id = inputs[i].first;
    const Tensor& result = results[i];
    if (!result.defined()) continue;
    const Tensor stored = add(mul(abs(result), 2 * units.store), units.least);
    const double rows = static_cast<double>(g.numel()) / static_cast<double>(std::max<std::int64_t>(1, result.numel()));
    const double sums = gamma(rows + kJoins, units.sum);
    if (id == n->x) {
      const Tensor dx = reshape(result, n->sizes);
      bounds[i] = add(reshape(input_gradient_bound(*n, p, g, g_error, dx, units), result.sizes()), stored);
    } else if (id == n->weight) {
      Tensor error = mul(g_error, add(abs(p.normal), p.normal_error));
      error = add(error, mul(abs(g), p.normal_error));
      error = add(error, mul(mul(abs(g), mul(add(abs(p.x), abs(p.mean)), p.root)), sums));
      bounds[i] = add(for_weight(error, *n, result), stored);
    } else if (id == n->bias) {
      bounds[i] = add(for_weight(add(g_error, mul(abs(g), sums)), *n, result), stored);
    }
  }
  return bounds;
}

std::optional<std::vector<Tensor>> variance_bounds(const pt2::Step& step, const ValueTensors& inputs,
                                                   const std::vector<Tensor>& errors, const ValueTensors& outputs,
                                                   const Units& units) {
  const bool deviation = is_op(step, "aten.std");
  if ((!deviation && !is_op(step, "aten.var")) || inputs.size() != 1 || outputs.size() != 1) return std::nullopt;
  const Tensor& y = outputs[0].second;
  Parts p;
  p.x = inputs[0].second;
  if (!moves(p.x) || p.x.numel() == 0) return std::nullopt;
  Shape dims;
  const bool of_dims = !step.op->target.ends_with(".default");
  for (const std::int64_t d : of_dims ? integers_of(step, 1) : std::vector<std::int64_t>{})
    dims.push_back(d < 0 ? d + p.x.dim() : d);
  p.terms = static_cast<double>(p.x.numel()) / static_cast<double>(std::max<std::int64_t>(1, y.numel()));
  p.x_error = add(or_zeros(errors[0], p.x), mul(abs(p.x), units.store));
  const Tensor middle = mean(p.x, dims, true);
  const double sums = gamma(p.terms + kJoins, units.sum);
  const Tensor mean_error = add(mean(p.x_error, dims, true), mul(mean(abs(p.x), dims, true), sums));
  p.deviation = sub(p.x, middle);
  const Tensor variance = mean(square(p.deviation), dims, true);
  const Tensor error = reshape(variance_error(p, p.x_error, mean_error, variance, dims, units), y.sizes());
  const Tensor v = reshape(variance, y.sizes());
  // n / (n - correction): what the result is of the mean square.
  const Tensor known = gt(v, 0);
  const Tensor squared = deviation ? square(y) : y;
  const Tensor corrected = where(known, div(squared, where(known, v, 1)), p.terms / std::max(1.0, p.terms - 1));
  Tensor bound = mul(error, corrected);
  if (deviation) bound = minimum(div(bound, where(gt(y, 0), y, 1e-300)), sqrt(bound));
  bound = add(bound, mul(abs(y), kFunction * units.sum + 2 * units.store));
  return std::vector<Tensor>{add(bound, units.least)};
}

}  // namespace gradual::lab
