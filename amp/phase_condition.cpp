#include "phase_condition.h"

#include <algorithm>
#include <cmath>

#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "bookkeeping.h"

namespace gradual::amp {
namespace {

double squares_of(const Tensor& gradient) { return sum(square(cast(gradient, DType::f64))).item(); }

double gradient_to_noise(const std::vector<Tensor>& parameters, const NoiseOfGradients& noise) {
  double of_gradients = 0;
  double of_noise = 0;
  for (const Tensor& p : parameters) {
    const auto found = noise.find(storage_id(p));
    if (found == noise.end() || found->second.squares == 0 || !p.grad().defined()) continue;
    of_gradients += squares_of(p.grad()) - found->second.excess;
    of_noise += found->second.squares;
  }
  return std::sqrt(std::max(of_gradients, 0.0) / of_noise);
}

double gradient_norm(const std::vector<Tensor>& parameters) {
  double squares = 0;
  for (const Tensor& p : parameters)
    if (p.grad().defined()) squares += squares_of(p.grad());
  return std::sqrt(squares);
}

}  // namespace

void check_valid(const PhaseCondition& c) {
  if (!(c.below > 0 && std::isfinite(c.below))) throwf("when: below is {}; allowed is a number above 0", c.below);
  if (c.steps < 1) throwf("when: steps is {}; allowed is at least 1", c.steps);
}

double measured(MeasuredQuantity quantity, const std::vector<Tensor>& parameters, QuantizationState& state,
                double loss_scale) {
  const Bookkeeping unseen;
  const NoiseOfGradients noise = state.take_noise();
  switch (quantity) {
    case MeasuredQuantity::gradient_to_noise: return gradient_to_noise(parameters, noise);
    case MeasuredQuantity::gradient_norm: return gradient_norm(parameters) / loss_scale;
    case MeasuredQuantity::count_: break;
  }
  return std::nan("");
}

}  // namespace gradual::amp
