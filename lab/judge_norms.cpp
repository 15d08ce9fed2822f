#include "judge_norms.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "judge_bounds.h"
#include "judge_ops.h"
#include "norm_bounds.h"

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

Tensor broadcasting(const Tensor& t, const Norm& n) { return n.channels.empty() ? t : reshape(t, n.channels); }

NormNumbers numbers_of(const Norm& n, const pt2::Step& step, const ValueTensors& inputs,
                       const std::vector<Tensor>& errors, const Units& units) {
  // The error of an operand, and its rounding.
  const auto error = [&](int id) {
    const Tensor t = of(inputs, id);
    return add(or_zeros(error_of(inputs, errors, id), t), mul(abs(t), units.store));
  };
  NormNumbers numbers;
  numbers.x = reshape(of(inputs, n.x), n.sizes);
  numbers.x_error = reshape(error(n.x), n.sizes);
  numbers.dims = n.dims;
  numbers.centred = n.centred;
  numbers.own = n.own;
  numbers.eps = n.eps;
  if (!n.own) {
    const NormOp& op = *norm_of(step);
    const int mean_id = id_of(step, static_cast<std::size_t>(op.mean));
    const int variance_id = id_of(step, static_cast<std::size_t>(op.variance));
    numbers.mean = reshape(of(inputs, mean_id), n.channels);
    numbers.mean_error = reshape(error(mean_id), n.channels);
    numbers.variance = reshape(of(inputs, variance_id), n.channels);
    numbers.variance_error = reshape(error(variance_id), n.channels);
  }
  if (n.weight >= 0) {
    numbers.weight = broadcasting(of(inputs, n.weight), n);
    numbers.weight_error = broadcasting(error(n.weight), n);
  }
  if (n.bias >= 0) {
    numbers.bias = broadcasting(of(inputs, n.bias), n);
    numbers.bias_error = broadcasting(error(n.bias), n);
  }
  return numbers;
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
  const NormNumbers numbers = numbers_of(*n, step, inputs, errors, units);
  const Tensor bound = norm_output_bound(numbers, norm_parts(numbers, units), units);
  std::vector<Tensor> bounds(outputs.size());  // running statistics have bounds of their own
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& y = outputs[i].second;
    if (y.sizes() == of(inputs, n->x).sizes())
      bounds[i] = add(reshape(bound, y.sizes()), add(mul(abs(y), 2 * units.store), units.least));
  }
  return bounds;
}

std::optional<std::vector<Tensor>> norm_gradient_bounds(const pt2::Step& step, const ValueTensors& inputs,
                                                        const std::vector<Tensor>& errors, const Tensor& gradient,
                                                        const Tensor& gradient_error,
                                                        const std::vector<Tensor>& results, const Units& units) {
  const std::optional<Norm> n = read(step, inputs);
  if (!n || gradient.sizes() != of(inputs, n->x).sizes()) return std::nullopt;
  const NormNumbers numbers = numbers_of(*n, step, inputs, errors, units);
  const NormParts p = norm_parts(numbers, units);
  const Tensor g = reshape(gradient, n->sizes);
  const Tensor g_error = add(reshape(or_zeros(gradient_error, gradient), n->sizes), mul(abs(g), units.store));
  std::vector<Tensor> bounds(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const int id = inputs[i].first;
    const Tensor& result = results[i];
    if (!result.defined()) continue;
    const Tensor stored = add(mul(abs(result), 2 * units.store), units.least);
    const double rows = static_cast<double>(g.numel()) / static_cast<double>(std::max<std::int64_t>(1, result.numel()));
    if (id == n->x) {
      const Tensor dx = reshape(result, n->sizes);
      bounds[i] = add(reshape(norm_input_gradient_bound(numbers, p, g, g_error, dx, units), result.sizes()), stored);
    } else if (id == n->weight) {
      bounds[i] = add(for_weight(norm_weight_gradient_bound(numbers, p, g, g_error, rows, units), *n, result), stored);
    } else if (id == n->bias) {
      bounds[i] = add(for_weight(norm_bias_gradient_bound(g, g_error, rows, units), *n, result), stored);
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
  NormNumbers n;
  n.x = inputs[0].second;
  if (!moves(n.x) || n.x.numel() == 0) return std::nullopt;
  const bool of_dims = !step.op->target.ends_with(".default");
  for (const std::int64_t d : of_dims ? integers_of(step, 1) : std::vector<std::int64_t>{})
    n.dims.push_back(d < 0 ? d + n.x.dim() : d);
  NormParts p;
  p.terms = static_cast<double>(n.x.numel()) / static_cast<double>(std::max<std::int64_t>(1, y.numel()));
  n.x_error = add(or_zeros(errors[0], n.x), mul(abs(n.x), units.store));
  const Tensor middle = mean(n.x, n.dims, true);
  const double sums = gamma(p.terms + kJoins, units.sum);
  const Tensor mean_error = add(mean(n.x_error, n.dims, true), mul(mean(abs(n.x), n.dims, true), sums));
  p.deviation = sub(n.x, middle);
  const Tensor variance = mean(square(p.deviation), n.dims, true);
  const Tensor error = reshape(norm_variance_error(n, p, mean_error, variance, units), y.sizes());
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
