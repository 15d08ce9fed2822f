#include "student_t.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unsupported/Eigen/SpecialFunctions>

namespace gradual::lab {
namespace {

constexpr double kNormal = 1e7;  // degrees from which on the distribution is the normal one

}  // namespace

double student_tail(double t, double degrees) {
  if (std::isnan(t) || std::isnan(degrees)) return std::nan("");
  if (std::isinf(t)) return t > 0 ? 0 : 1;
  const double above = degrees >= kNormal ? std::erfc(std::abs(t) / std::sqrt(2.0)) / 2
                                          : Eigen::numext::betainc(degrees / 2, 0.5, degrees / (degrees + t * t)) / 2;
  return t >= 0 ? above : 1 - above;
}

double student_quantile(double tail, double degrees) {
  double low = 0;
  double high = 1;
  while (student_tail(high, degrees) > tail && high < 1e300) high *= 2;
  for (int i = 0; i < 200 && low < high; ++i) {
    const double middle = std::midpoint(low, high);
    if (middle == low || middle == high) break;
    if (student_tail(middle, degrees) > tail) low = middle;
    else high = middle;
  }
  return high;
}

double fisher_tail(double f, double above, double below) {
  if (std::isnan(f) || !(above > 0) || !(below > 0)) return std::nan("");
  if (std::isinf(f)) return 0;
  return Eigen::numext::betainc(below / 2, above / 2, below / (below + above * f));
}

}  // namespace gradual::lab
