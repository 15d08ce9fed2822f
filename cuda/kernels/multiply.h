// Multiplication with the CPU's bits, including a NaN's sign and payload: a GPU's arithmetic produces only one NaN.
#pragma once

#include "../../core/quantize/quantizer_kernels.h"

namespace gradual::cuda {

__device__ inline float times(float x, float by) {
  const float y = x * by;
  if (y == y) return y;
  if (x != x) return detail::quieted(x);
  return by != by ? detail::quieted(by) : std::bit_cast<float>(0xffc00000u);
}

}  // namespace gradual::cuda
