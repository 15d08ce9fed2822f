// The attributes of a product (matmul, linear) of f32 operands that hold exact values of f8 formats, each times one
// scale: y = (a * a_scale) (b * b_scale). Only for a call that suits() its device (dispatch.h): a GPU then multiplies
// the codes by f8 instructions, and the scales in the same kernel. FastF8Scope must allow it (compute_mode.h).
#pragma once

#include "../formats/dtype.h"

namespace gradual {

struct F8Attrs {
  DType a, b;  // f8e4m3fn, f8e5m2
  // in the memory of the call's device; null: 1
  const float* a_scale;
  const float* b_scale;
};

}  // namespace gradual
