// What stands for the derivative of rounding scaled elements to a format.
#pragma once

#include <cstdint>

#include "../formats/rounding.h"
#include "quantizer.h"

namespace gradual::detail {

// The differentiable estimator replaces rounding between two neighbours a < b of the grid by
//   f(u) = a + (b - a) / 2 (1 + sign(t) |t|^(1/k)),  t = 2 (u - a) / (b - a) - 1,
// which leads from a to b and is steep half way: f'(u) = |t|^(1/k - 1) / k. It takes k = 5 and at most 3 for f', as
// Wang et al. 2025 (arXiv 2501.17116) do. On the grid f' is 1/k.
inline constexpr double kSmoothPower = 5;
inline constexpr double kLargestSlope = 3;

class GradientEstimator {
 public:
  explicit GradientEstimator(const Quantizer& quantizer);
  // The slopes at n scaled elements, less a zero point of their codes.
  void slopes(const float* from, float* to, std::int64_t n, float zero) const;
  void slopes(const double* from, float* to, std::int64_t n, float zero) const;

 private:
  template <class T> void slopes_of(const T* from, float* to, std::int64_t n, float zero) const;

  QuantizerGradient gradient_;
  Rounder down_, up_;
  double low_ = 0;  // elements beyond these are clipped
  double high_ = 0;
};

}  // namespace gradual::detail
