#include "learned_scale.h"

#include <algorithm>
#include <cmath>

namespace gradual {

double first_step(double mean_magnitude, const Format& format) {
  if (!(mean_magnitude > 0) || std::isinf(mean_magnitude)) return 1;
  return 2 * mean_magnitude / std::sqrt(format.max());
}

double step_gradient_scale(std::int64_t elements, const Format& format) {
  return 1 / std::sqrt(static_cast<double>(elements) * format.max());
}

float scale_of_step(double step) {
  constexpr double kLeast = 0x1p-100;
  return static_cast<float>(1 / std::clamp(step, kLeast, 1 / kLeast));
}

}  // namespace gradual
