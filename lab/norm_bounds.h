// How far rounding may move y = (x - mean) r w + b with r = (variance + eps)^(-1/2), and its gradients, whatever the
// order of the sums. docs/judge.md derives the bounds. Tensors are f64.
#pragma once

#include "../core/tensor/tensor.h"
#include "judge_units.h"

namespace gradual::lab {

// In a shape in which `dims` are those of a sum and all else broadcasts. Errors contain the rounding of the operands.
struct NormNumbers {
  Tensor x, x_error;
  Tensor x_rows;  // the norms of the errors of what is normalised, with 1 in place of `dims`; undefined: not known
  Shape dims;
  bool centred = true;  // an RMS norm subtracts no mean
  bool own = true;      // mean and variance are those of x
  double eps = 0;
  Tensor mean, mean_error, variance, variance_error;  // if they are not
  Tensor weight, weight_error;                        // undefined: 1
  Tensor bias, bias_error;                            // undefined: 0
};

// What a norm computes on its way, and the errors of it.
struct NormParts {
  Tensor mean;  // keeps its dims
  Tensor deviation, deviation_error;
  Tensor root, root_error;  // r, and its relative error
  Tensor normal, normal_error;
  Tensor weight, weight_error;
  double terms = 0;  // of each sum
};
NormParts norm_parts(const NormNumbers& n, const Units& units);

// The magnitudes that these may have for any x within its errors, where x_rows is known, without what x's error moves:
// their errors are those of rounding there.
struct NearbyNorm {
  NormNumbers numbers;  // x: its magnitudes
  NormParts parts;
};
NearbyNorm nearby_norm(const NormNumbers& n, const NormParts& p, const Units& units);

// Of y, without the rounding of the result.
Tensor norm_output_bound(const NormNumbers& n, const NormParts& p, const Units& units);
// The gradient of x: r (g' - mean g' - x' mean(g' x')), with g' = g w and x' the normalised x. Without the rounding of
// the result dx.
Tensor norm_input_gradient_bound(const NormNumbers& n, const NormParts& p, const Tensor& g, const Tensor& g_error,
                                 const Tensor& dx, const Units& units);
// Of the terms of the gradients of weight and bias, which are sums of `terms` of them: the bounds add up.
Tensor norm_weight_gradient_bound(const NormNumbers& n, const NormParts& p, const Tensor& g, const Tensor& g_error,
                                  double terms, const Units& units);
Tensor norm_bias_gradient_bound(const Tensor& g, const Tensor& g_error, double terms, const Units& units);
// The error of the variance of n.x, whose deviation is that of `p`.
Tensor norm_variance_error(const NormNumbers& n, const NormParts& p, const Tensor& mean_error, const Tensor& variance,
                           const Units& units);

}  // namespace gradual::lab
