// Tells a product that its f32 operands hold exact values of f8 formats, each with one scale. A GPU may then multiply
// their codes, if FastF8Scope allows it (core/ops/compute_mode.h).
#pragma once

#include "../formats/dtype.h"
#include "../support/scoped.h"

namespace gradual {

struct F8Operands {
  DType a, b;  // f8e4m3fn, f8e5m2
  // in the GPU's memory; null: 1
  const float* a_scale;
  const float* b_scale;
  bool* scaled;  // set to true if the product includes both scales
};
// For the product that this thread computes; null: unknown.
inline constexpr auto f8_operands = per_thread<const F8Operands*, F8Operands>;
using F8OperandsScope = ScopeOf<const F8Operands*, f8_operands>;

}  // namespace gradual
