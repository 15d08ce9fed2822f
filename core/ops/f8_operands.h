// What the caller of a product knows of its f32 operands: that they hold values of f8 formats, exactly, under one scale each.
// A GPU may then multiply their codes, where FastF8Scope lets it (core/ops/compute_mode.h).
#pragma once

#include "../formats/dtype.h"
#include "../support/scoped.h"

namespace gradual {

struct F8Operands {
  DType a, b;                      // f8e4m3fn, f8e5m2
  const float *a_scale, *b_scale;  // in the GPU's memory; null: 1
  bool* scaled;                    // becomes true where the product is times both
};
// Of the product that this thread computes; null: nothing is known.
inline const F8Operands*& f8_operands() {
  thread_local const F8Operands* current = nullptr;
  return current;
}
struct F8OperandsScope : Scoped<const F8Operands*> {
  explicit F8OperandsScope(const F8Operands* operands) : Scoped(f8_operands(), operands) {}
};

}  // namespace gradual
