#include "gradient_estimator.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "quantizer_kernels.h"

namespace gradual::detail {
namespace {

// By how much the rounding of a scale may take the largest element beyond the largest value, relative to that.
constexpr double kSlack = 0x1p-20;
// Codes with a zero point are integers, whose zero point is rounded: an element is clipped if its integer is beyond.
constexpr double kHalfStep = 0.5;

double smooth_slope(double u, double below, double above) {
  if (!(below < above)) return 1 / kSmoothPower;
  const double t = std::fabs(2 * (u - below) / (above - below) - 1);
  return std::min(std::pow(t, 1 / kSmoothPower - 1) / kSmoothPower, kLargestSlope);
}

}  // namespace

GradientEstimator::GradientEstimator(const Quantizer& q)
    : gradient_(q.gradient),
      down_{rounded_format(q), {.mode = RoundingMode::down}, Overflow::saturate},
      up_{rounded_format(q), {.mode = RoundingMode::up}, Overflow::saturate} {
  const bool zero_point = has_zero_points(q.scaling);
  const double slack_below = zero_point ? kHalfStep : kSlack * std::fabs(q.format.min());
  const double slack_above = zero_point ? kHalfStep : kSlack * q.format.max();
  low_ = q.format.min() - slack_below;
  high_ = q.format.max() + slack_above;
}

template <class T> void GradientEstimator::slopes_of(const T* from, float* to, std::int64_t n, float zero) const {
  const auto clipped = [&](std::int64_t i) {
    const double u = static_cast<double>(from[i]) + zero;
    return u < low_ || u > high_;
  };
  if (gradient_ != QuantizerGradient::differentiable) {
    const bool straight = gradient_ == QuantizerGradient::straight;
    for (std::int64_t i = 0; i < n; ++i) to[i] = !straight && clipped(i) ? 0 : 1;
    return;
  }
  std::vector<T> below(static_cast<std::size_t>(n));
  std::vector<T> above(static_cast<std::size_t>(n));
  down_.round(from, below.data(), n, 0, {});
  up_.round(from, above.data(), n, 0, {});
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    to[i] = clipped(i) ? 0 : static_cast<float>(smooth_slope(from[i], below[at], above[at]));
  }
}

void GradientEstimator::slopes(const float* from, float* to, std::int64_t n, float zero) const {
  slopes_of(from, to, n, zero);
}
void GradientEstimator::slopes(const double* from, float* to, std::int64_t n, float zero) const {
  slopes_of(from, to, n, zero);
}

}  // namespace gradual::detail
