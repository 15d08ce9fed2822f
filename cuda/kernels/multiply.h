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

// The same with doubles.
__device__ inline double times(double x, float by) {
  const double y = x * by;
  if (y == y) return y;
  if (x != x) return std::bit_cast<double>(std::bit_cast<std::uint64_t>(x) | std::uint64_t{1} << 51);
  return by != by ? static_cast<double>(detail::quieted(by)) : std::bit_cast<double>(std::uint64_t{0xfff8} << 48);
}

// detail::times_to_odd with the CPU's NaN. T: float or double.
template <class T> __device__ T times_to_odd(T x, float by) {
  const T y = detail::times_to_odd(x, by);
  return y == y ? y : times(x, by);
}

// detail::unscaled with the CPU's NaN.
__device__ inline float unscaled(float x, float inverse, float of_tensor) {
  const float y = detail::unscaled(x, inverse, of_tensor);
  return y == y ? y : times(times(x, inverse), of_tensor);
}

}  // namespace gradual::cuda
