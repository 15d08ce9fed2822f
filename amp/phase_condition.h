// Phases of a recipe's schedule that begin when a measured quantity says so. The run measures it in the training
// itself, in every step in which such a phase is the next one, whether anybody observes the run or not.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "../nn/module.h"
#include "quantization.h"

namespace gradual {

enum class MeasuredQuantity : std::uint8_t {
  gradient_to_noise,  // |gradient| / |noise|, of the weights whose wgrad rounds an operand
  gradient_norm,      // |gradient| of all parameters, without the loss scale
  count_
};
template <> inline constexpr std::string_view kEnumNames<MeasuredQuantity>[] = {"gradient_to_noise", "gradient_norm"};

namespace amp {

// A row for each quantity, in their order.
struct QuantityInfo {
  MeasuredQuantity quantity;
  bool of_noise;  // needs QuantizationState::measures
  std::string_view about;
};
inline constexpr QuantityInfo kQuantities[] = {
    {MeasuredQuantity::gradient_to_noise, true,
     "the norm of the weights' gradient without rounding over that of what rounding the operands of wgrad adds to it; "
     "below sqrt(3) training in few bits becomes less effective (arXiv 2505.19115)"},
    {MeasuredQuantity::gradient_norm, false, "the norm of the gradient of all parameters, before clipping"}};
static_assert(std::size(kQuantities) == static_cast<std::size_t>(MeasuredQuantity::count_));

constexpr const QuantityInfo& info_of(MeasuredQuantity quantity) { return kQuantities[static_cast<int>(quantity)]; }

// The phase begins after the quantity was below a threshold in so many steps in a row. A step whose quantity is not
// finite, such as one with an overflow or without noise, counts as not below.
struct PhaseCondition {
  MeasuredQuantity quantity = MeasuredQuantity::gradient_to_noise;
  double below = 0;  // above 0
  int steps = 1;     // at least 1

  bool operator==(const PhaseCondition&) const = default;
};
// Error naming the wrong field.
void check_valid(const PhaseCondition& condition);

// Of the present gradients of these parameters, which have the loss scale, and of the noise that the state has summed
// since the last update. Read at the end of the step's backward; the noise is taken. GPUs: the host waits.
double measured(MeasuredQuantity quantity, const std::vector<Tensor>& parameters, QuantizationState& state,
                double loss_scale);

}  // namespace amp
}  // namespace gradual
