// What the sources of quantization.h share. Internal.
#pragma once

#include <optional>
#include <utility>
#include <variant>

#include "quantization.h"

namespace gradual::amp {

// By Role: activation, weight, error.
inline constexpr std::pair<const char*, AmaxHistory QuantizationState::Site::*> kHistories[] = {
    {"x", &QuantizationState::Site::x}, {"w", &QuantizationState::Site::w}, {"dy", &QuantizationState::Site::dy}};

// True if what is rounded is not the operand itself.
inline bool changes_numbers(const Quantizer& q) { return q.hadamard || q.center; }

// The quantizer that rounds those other numbers.
inline Quantizer untransformed(Quantizer q) {
  q.hadamard = false;
  q.signs = HadamardSigns::fixed;
  q.center = false;
  return q;
}

// What a quantizer has beyond the rounding of the numbers at hand by scales of their own: a transform, a mean that is
// subtracted, or a scale that is kept between steps; "a Hadamard transform". Null: none of these.
const char* beyond_own_scales(const Quantizer& q);

// Null: the quantizer has no history.
inline const DelayedScale* delayed(const std::optional<Quantizer>& q) {
  return q ? std::get_if<DelayedScale>(&q->scaling) : nullptr;
}

}  // namespace gradual::amp
