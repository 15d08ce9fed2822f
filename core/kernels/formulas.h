// The formulas of the elementwise ops; all backends share them. The functions of float have no branches, so that the
// compiler vectorises plain loops over them. They use neither libm nor fused operations, so every machine gives the
// same bits. Their polynomials are Chebyshev fits. Errors are in units in the last place (ulp), the largest over all
// floats. The functions of double call libm.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <type_traits>

#include "../support/host_device.h"

namespace gradual::math {

// min(max(x, low), high). NaN stays. If low > high the result is high.
template <class T> GRADUAL_HD T clamp(T x, T low, T high) {
  const T raised = x < low ? low : x;
  return raised > high ? high : raised;
}

namespace detail {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kLn2High = 0x1.62e4p-1f;    // 15 bits, so that its product with an exponent is exact
inline constexpr float kLn2Low = 0x1.7f7d1cp-20f;  // log(2) - kLn2High
inline constexpr float kRound = 0x1.8p23f;         // adding and then subtracting it rounds to an integer

// A polynomial in x; c begins with the coefficient of the highest power.
template <int N> GRADUAL_HD inline float polynomial(const float (&c)[N], float x) {
  float y = c[0];
  for (int i = 1; i < N; ++i) y = y * x + c[i];
  return y;
}

GRADUAL_HD inline float two_to(std::uint32_t n) { return std::bit_cast<float>((n + 127u) << 23); }

// exp(c - d) = 2^n exp(r) with |r| <= log(2)/2 (Cody and Waite 1980), for c in [-105, 89] and a small d. The power of
// two is multiplied in two steps, so that subnormal results are right.
GRADUAL_HD inline float exp_of_difference(float c, float d) {
  constexpr float kExp[] = {0x1.6d13e2p-10f, 0x1.120e48p-7f, 0x1.555518p-5f, 0x1.5554dap-3f, 0x1p-1f};
  const float t = (c - d) * 0x1.715476p0f + kRound;
  const float n = t - kRound;
  const float r = (c - n * kLn2High) - n * kLn2Low - d;
  const float y = 1.0f + (r + r * r * polynomial(kExp, r));
  const auto power = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(t) - std::bit_cast<std::uint32_t>(kRound));
  const auto half = static_cast<std::uint32_t>(power >> 1);
  return y * two_to(half) * two_to(static_cast<std::uint32_t>(power) - half);
}

}  // namespace detail

GRADUAL_HD inline float exp(float x) { return detail::exp_of_difference(clamp(x, -105.0f, 89.0f), 0.0f); }

namespace detail {

// log(2^k x) = (k + e) log(2) + log(1 + f) with x = 2^e (1 + f) and 1 + f in [sqrt(1/2), sqrt(2)), for a positive,
// normal and finite x.
GRADUAL_HD inline float log_of_normal(float x, float k) {
  constexpr float kLog[] = {0x1.1d8ea6p-4f,  -0x1.d635bcp-4f, 0x1.dea282p-4f,  -0x1.fcf4c6p-4f, 0x1.23d21ap-3f,
                            -0x1.555b4ap-3f, 0x1.999d5ap-3f,  -0x1.fffffcp-3f, 0x1.555554p-2f};
  constexpr std::uint32_t kRootHalf = 0x3f3504f3;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) - kRootHalf;
  const float f = std::bit_cast<float>((bits & 0x007fffffu) + kRootHalf) - 1.0f;
  k += static_cast<float>(static_cast<std::int32_t>(bits) >> 23);
  const float tail = f * f * (f * polynomial(kLog, f)) + k * kLn2Low;
  return k * kLn2High + (f + (tail - 0.5f * f * f));
}

}  // namespace detail

GRADUAL_HD inline float log(float x) {
  const bool tiny = x < 0x1p-126f;
  const float y = detail::log_of_normal(tiny ? x * 0x1p23f : x, tiny ? -23.0f : 0.0f);
  const float special = x == 0.0f ? -detail::kInf : (x < 0.0f ? std::numeric_limits<float>::quiet_NaN() : x);
  const bool inside = (x > 0.0f) & (x < detail::kInf);  // no branch, so that the loop vectorises
  return inside ? y : special;
}

GRADUAL_HD inline float log1p(float x) {
  const float u = 1.0f + x;
  const float lost = (x < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x)) / u;
  const float y = log(u) + (u > 0.0f ? lost : 0.0f);  // a sum of two NaNs is one of them; which one is unspecified
  const bool itself = (x == 0.0f) | (x == detail::kInf);
  return u == 0.0f ? -detail::kInf : (itself ? x : y);
}

GRADUAL_HD inline float tanh(float x) {
  using namespace detail;
  constexpr float kTanh[] = {0x1.2c83cp-9f,   -0x1.116a16p-7f, 0x1.64a976p-6f,
                             -0x1.ba08c4p-5f, 0x1.1110eap-3f,  -0x1.555556p-2f};
  const float a = std::fabs(x);
  const float s = x * x;
  const float small = a + a * s * polynomial(kTanh, s);
  const float large = 1.0f - 2.0f / (exp(2.0f * a) + 1.0f);
  return std::copysign(a < 0.625f ? small : large, x);  // the sign of -0 too, which the sum with the cube would lose
}

namespace detail {

// exp(t^2) erfc(t) for t in [0, 10.5]: g(q) / (1 + 2t) with q = (t - 3) / (t + 3). One division gives both quotients.
GRADUAL_HD inline float scaled_erfc(float t) {
  constexpr float kErfc[] = {-0x1.1ee2dep-12f, -0x1.9d33c6p-11f, 0x1.06604cp-9f,  0x1.51c0f4p-9f,
                             -0x1.85da0ep-6f,  0x1.17ba6ep-4f,   -0x1.e889acp-4f, 0x1.098438p-3f,
                             -0x1.85a16ap-5f,  -0x1.15c08ap-3f,  0x1.40c522p0f};
  const float above = t + 3.0f;
  const float below = 1.0f + 2.0f * t;
  const float inverse = 1.0f / (above * below);
  return polynomial(kErfc, (t - 3.0f) * below * inverse) * (above * inverse);
}

// exp(-scale a^2) for a^2 scale <= 104 and scale 1 or 1/2. The upper bits of a have an exact square; the rest is small.
GRADUAL_HD inline float exp_of_square(float a, float scale) {
  const float upper = std::bit_cast<float>(std::bit_cast<std::uint32_t>(a) & 0xfffff000u);
  return exp_of_difference(-(upper * upper * scale), (a - upper) * (a + upper) * scale);
}

}  // namespace detail

GRADUAL_HD inline float erf(float x) {
  using namespace detail;
  constexpr float kErf[] = {0x1.4a569p-14f, -0x1.a45088p-11f, 0x1.54127p-8f, -0x1.b7fabap-6f,
                            0x1.ce2d1p-4f,  -0x1.81273ep-2f,  0x1.06eba8p-3f};
  const float a = std::fabs(x);
  const float t = a > 4.0f ? 4.0f : a;  // erf(4) rounds to 1
  const float small = x + x * polynomial(kErf, x * x);
  const float large = std::copysign(1.0f - scaled_erfc(t) * exp_of_square(t, 1.0f), x);
  return a < 1.0f ? small : large;
}

// x Phi(x), with Phi the normal distribution function. Phi follows from erfc(|x|/sqrt(2)), so that the left tail is
// accurate.
GRADUAL_HD inline float gelu(float x) {
  using namespace detail;
  const float a = std::fabs(x);
  const float t = a > 14.375f ? 14.375f : a;
  const float p = 0.5f * scaled_erfc(t * 0x1.6a09e6p-1f) * exp_of_square(t, 0.5f);
  const float y = x * (x < 0.0f ? p : 1.0f - p);
  return x == -kInf ? -0.0f : (x == x ? y : x + x);  // which of several NaNs stays is unspecified
}

// gelu's derivative Phi(x) + x phi(x), with the same Phi.
GRADUAL_HD inline float gelu_slope(float x) {
  using namespace detail;
  const float a = std::fabs(x);
  const float t = a > 14.375f ? 14.375f : a;
  const float e = exp_of_square(t, 0.5f);
  const float p = 0.5f * scaled_erfc(t * 0x1.6a09e6p-1f) * e;
  const float density = 0x1.988454p-2f * e;  // 1/sqrt(2 pi)
  const float tail = p - t * density;        // for x < 0; for x > 0 the result is 1 - tail
  return x != x ? x : (x < 0.0f ? tail : 1.0f - tail);
}
// x/2 (1 + tanh(k (x + c x^3))) (Hendrycks and Gimpel 2016) and its derivative.
inline constexpr double kGeluTanh = 0.79788456080286535588;  // sqrt(2/pi)
inline constexpr double kGeluCube = 0.044715;

GRADUAL_HD inline double exp(double x) { return std::exp(x); }
GRADUAL_HD inline double log(double x) { return std::log(x); }
GRADUAL_HD inline double log1p(double x) { return std::log1p(x); }
GRADUAL_HD inline double tanh(double x) { return std::tanh(x); }
GRADUAL_HD inline double erf(double x) { return std::erf(x); }
GRADUAL_HD inline double erfc(double x) { return std::erfc(x); }
GRADUAL_HD inline float erfc(float x) { return static_cast<float>(std::erfc(static_cast<double>(x))); }  // rounded once
GRADUAL_HD inline double gelu(double x) {
  return x == -std::numeric_limits<double>::infinity() ? -0.0 : x * (0.5 * std::erfc(x * -0.70710678118654752440));
}

GRADUAL_HD inline double gelu_slope(double x) {
  const double c = x < -40.0 ? -40.0 : (x > 40.0 ? 40.0 : x);  // avoids Inf * 0; NaN stays
  return 0.5 * std::erfc(c * -0.70710678118654752440) + c * std::exp(-0.5 * c * c) * 0.39894228040143267794;
}
// The derivative of x sigmoid(v) with v = 2 sqrt(2/pi) (x + c x^3), at -|x|: there sigmoid(v) is a small quotient, and
// nothing cancels. For x > 0 the derivative is 1 less that at -x.
template <class T> GRADUAL_HD T gelu_tanh_slope(T x) {
  constexpr T kFar = 30;  // there the slope is 0 or 1, and the cube is still finite
  constexpr T kTwiceRoot = static_cast<T>(2 * kGeluTanh);
  const T a = std::fabs(x);
  const T t = a > kFar ? kFar : a;
  const T square = t * t;
  const T v = kTwiceRoot * (t + static_cast<T>(kGeluCube) * t * square);
  const T dv = kTwiceRoot * (T{1} + static_cast<T>(3 * kGeluCube) * square);
  const T e = exp(-v);
  const T below = T{1} + e;
  const T tail = e / below * (T{1} - t * dv / below);
  return x != x ? x : (x < 0 ? tail : T{1} - tail);
}

// x / (1 + exp(-u)) without overflow. For x = u = -Inf the result is the limit 0.
template <class T> GRADUAL_HD T times_sigmoid(T x, T u) {
  const T e = exp(-std::fabs(u));
  const T top = u < 0 ? (e == 0 ? -T{0} : x * e) : x;
  return top / (1 + e);
}
template <class T> GRADUAL_HD T sigmoid(T x) {
  const T e = exp(-std::fabs(x));
  return (x < 0 ? e : T{1}) / (1 + e);
}
// log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)).
template <class T> GRADUAL_HD T softplus(T x) {
  const T y = (x < 0 ? T{0} : x) + log1p(exp(-std::fabs(x)));
  return x == x ? y : x + x;  // a sum of two NaNs would have a sign that depends on the compiler
}

// T is the compute type: float, double, or int64 for integers and bool.

// Arithmetic in which the overflow of integers wraps.
template <class T, class F> GRADUAL_HD T wrapping(T a, T b, const F& f) {
  if constexpr (std::is_floating_point_v<T>) {
    return f(a, b);
  } else {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(f(static_cast<U>(a), static_cast<U>(b)));
  }
}
template <class T> GRADUAL_HD T add(T x, T y) { return wrapping(x, y, std::plus<>()); }
template <class T> GRADUAL_HD T sub(T x, T y) { return wrapping(x, y, std::minus<>()); }
template <class T> GRADUAL_HD T mul(T x, T y) { return wrapping(x, y, std::multiplies<>()); }
template <class T> GRADUAL_HD T neg(T x) {
  return wrapping(x, x, [](auto a, auto) { return -a; });
}
template <class T> GRADUAL_HD T abs(T x) {
  if constexpr (std::is_floating_point_v<T>) return std::fabs(x);
  else return x < 0 ? neg(x) : x;
}
// f(x), and x itself for integers.
template <class T, class F> GRADUAL_HD T whole(T x, F f) {
  if constexpr (std::is_integral_v<T>) return x;
  else return f(x);
}
// -1, 0 or 1. NaN gives 0, as in PyTorch.
template <class T> GRADUAL_HD T sign(T x) { return static_cast<T>(x > 0) - static_cast<T>(x < 0); }
template <class T> GRADUAL_HD T relu(T x) { return x < 0 ? T{0} : x; }  // NaN stays
// What is left of x when a whole multiple of y is taken away: fmod with the sign of x, remainder with that of y. Floats
// are exact up to the rounding of a sum, however large the quotient is. The integer x divided by 0 leaves x.
template <class T> GRADUAL_HD T fmod(T x, T y) {
  if constexpr (std::is_floating_point_v<T>) return std::fmod(x, y);
  else return y == 0 ? x : (y == -1 ? T{0} : x % y);  // the least integer by -1 overflows
}
template <class T> GRADUAL_HD T remainder(T x, T y) {
  const T rest = fmod(x, y);
  const bool other_side = rest != 0 && y != 0 && (rest < 0) != (y < 0);
  return other_side ? rest + y : rest;
}
// x / y rounded toward zero and down. The float x / y is rounded before it is cut off, as in PyTorch: 10 for 1 and 0.1
// in f64. An integer divided by 0 gives 0.
template <class T> GRADUAL_HD T trunc_divide(T x, T y) {
  if constexpr (std::is_floating_point_v<T>) return std::trunc(x / y);
  else return y == 0 ? T{0} : (y == -1 ? neg(x) : x / y);
}
// For floats the quotient follows from the exact remainder, so that rounding never lifts it to the next integer.
template <class T> GRADUAL_HD T floor_divide(T x, T y) {
  const T rest = fmod(x, y);
  const bool other_side = rest != 0 && (rest < 0) != (y < 0);
  if constexpr (std::is_floating_point_v<T>) {
    if (y == 0) return x / y;
    T near = (x - rest) / y;
    if (other_side) near -= 1;
    if (near == 0) return std::copysign(T{0}, x / y);
    const T below = std::floor(near);
    return near - below > T(0.5) ? below + 1 : below;
  } else {
    return y == 0 ? T{0} : trunc_divide(x, y) - (other_side ? 1 : 0);
  }
}
// x 2^by and x 2^-by rounded down, in the 64 bits of the compute type. Shifts outside of them give what is left then.
inline constexpr std::int64_t kIntegerBits = 64;
GRADUAL_HD inline std::int64_t shift_left(std::int64_t x, std::int64_t by) {
  const bool beyond = by < 0 || by >= kIntegerBits;
  return beyond ? 0 : static_cast<std::int64_t>(static_cast<std::uint64_t>(x) << by);
}
GRADUAL_HD inline std::int64_t shift_right(std::int64_t x, std::int64_t by) {
  return x >> (by < 0 || by >= kIntegerBits ? kIntegerBits - 1 : by);
}
// x / 2 (1 + tanh(u)) = x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3).
template <class T> GRADUAL_HD T gelu_tanh(T x) {
  constexpr T kTwiceRoot = static_cast<T>(1.5957691216057307);  // 2 sqrt(2/pi)
  return times_sigmoid(x, kTwiceRoot * (x + static_cast<T>(0.044715) * x * x * x));
}
// NaN in either operand gives NaN.
template <class T> GRADUAL_HD T maximum(T x, T y) { return x > y || x != x ? x : y; }
template <class T> GRADUAL_HD T minimum(T x, T y) { return x < y || x != x ? x : y; }
}  // namespace gradual::math
