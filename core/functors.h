// The maths of the elementwise ops, once for every backend. T is the compute type: float, double, or int64 for integers
// and bool. Integers wrap on overflow, as two's complement does.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "fast_math.h"

namespace gradual::functors {

// Arithmetic without undefined overflow for integers.
template <class T, class F> GRADUAL_HD T wrapping(T a, T b, const F& f) {
  if constexpr (std::is_floating_point_v<T>) {
    return f(a, b);
  } else {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(f(static_cast<U>(a), static_cast<U>(b)));
  }
}
template <class T> GRADUAL_HD T add(T x, T y) {
  return wrapping(x, y, [](auto a, auto b) { return a + b; });
}
template <class T> GRADUAL_HD T sub(T x, T y) {
  return wrapping(x, y, [](auto a, auto b) { return a - b; });
}
template <class T> GRADUAL_HD T mul(T x, T y) {
  return wrapping(x, y, [](auto a, auto b) { return a * b; });
}
template <class T> GRADUAL_HD T neg(T x) {
  return wrapping(x, x, [](auto a, auto) { return -a; });
}
template <class T> GRADUAL_HD T abs(T x) {
  if constexpr (std::is_floating_point_v<T>) return std::fabs(x);
  else return x < 0 ? neg(x) : x;
}
// -1, 0 or 1; zero for NaN too, as PyTorch has it.
template <class T> GRADUAL_HD T sign(T x) { return static_cast<T>(x > 0) - static_cast<T>(x < 0); }
template <class T> GRADUAL_HD T relu(T x) { return x < 0 ? T{0} : x; }  // NaN stays
template <class T> GRADUAL_HD T leaky_relu(T x, T slope) { return x < 0 ? x * slope : x; }
// min(max(x, low), high): NaN stays, and high wins where low > high.
template <class T> GRADUAL_HD T clamp(T x, T low, T high) {
  const T raised = x < low ? low : x;
  return raised > high ? high : raised;
}
template <class T> GRADUAL_HD T pow(T x, T y) { return y == 2 ? x * x : std::pow(x, y); }
// x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), which is x sigmoid of twice the argument.
template <class T> GRADUAL_HD T gelu_tanh(T x) {
  constexpr T kTwiceRoot = static_cast<T>(1.5957691216057307);  // 2 sqrt(2/pi)
  return math::times_sigmoid(x, kTwiceRoot * (x + static_cast<T>(0.044715) * x * x * x));
}
// NaN in either operand gives NaN.
template <class T> GRADUAL_HD T maximum(T x, T y) { return x > y || x != x ? x : y; }
template <class T> GRADUAL_HD T minimum(T x, T y) { return x < y || x != x ? x : y; }

}  // namespace gradual::functors
