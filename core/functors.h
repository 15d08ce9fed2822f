// The maths of the elementwise ops, once for every backend. T is the compute type: float, double, or int64 for integers
// and bool. Integers wrap on overflow, as two's complement does.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "attrs.h"
#include "fast_math.h"

namespace gradual::functors {

template <class T> inline constexpr bool kFloating = std::is_floating_point_v<T>;

// Arithmetic without undefined overflow for integers.
template <class T, class F> GRADUAL_HD T wrapping(T a, T b, const F& f) {
  if constexpr (kFloating<T>) {
    return f(a, b);
  } else {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(f(static_cast<U>(a), static_cast<U>(b)));
  }
}

// --- one input ---------------------------------------------------------------------------------------------------

template <class T> struct Neg {
  GRADUAL_HD T operator()(T x) const {
    if constexpr (kFloating<T>) return -x;
    else return wrapping(T{0}, x, [](auto a, auto b) { return a - b; });
  }
};
template <class T> struct Abs {
  GRADUAL_HD T operator()(T x) const {
    if constexpr (kFloating<T>) return std::fabs(x);
    else return x < 0 ? Neg<T>{}(x) : x;
  }
};
// -1, 0 or 1; zero for NaN too, as PyTorch has it.
template <class T> struct Sign {
  GRADUAL_HD T operator()(T x) const { return (x > 0 ? T{1} : T{0}) - (x < 0 ? T{1} : T{0}); }
};
template <class T> struct Square {
  GRADUAL_HD T operator()(T x) const {
    return wrapping(x, x, [](auto a, auto b) { return a * b; });
  }
};
template <class T> struct Relu {
  GRADUAL_HD T operator()(T x) const { return x < 0 ? T{0} : x; }  // NaN stays
};
template <class T> struct LeakyRelu {
  T slope;
  explicit LeakyRelu(const ScalarAttrs& a) : slope(static_cast<T>(a.value)) {}
  GRADUAL_HD T operator()(T x) const { return x < 0 ? x * slope : x; }
};
// min(max(x, low), high): NaN stays, and high wins where low > high.
template <class T> struct Clamp {
  T low, high;
  explicit Clamp(const ScalarAttrs& a)
      : low(bound(std::ceil(a.value), a.value)), high(bound(std::floor(a.high), a.high)) {}
  GRADUAL_HD T operator()(T x) const {
    const T raised = x < low ? low : x;
    return raised > high ? high : raised;
  }

 private:
  // Integers x with a <= x are those with ceil(a) <= x.
  static T bound(double rounded, double exact) {
    if constexpr (kFloating<T>) return static_cast<T>(exact);
    else if (rounded >= 0x1p63) return std::numeric_limits<T>::max();
    else if (rounded < -0x1p63) return std::numeric_limits<T>::min();
    else return static_cast<T>(rounded);
  }
};
template <class T> struct Exp {
  GRADUAL_HD T operator()(T x) const { return math::exp(x); }
};
template <class T> struct Log {
  GRADUAL_HD T operator()(T x) const { return math::log(x); }
};
template <class T> struct Log1p {
  GRADUAL_HD T operator()(T x) const { return math::log1p(x); }
};
template <class T> struct Sqrt {
  GRADUAL_HD T operator()(T x) const { return std::sqrt(x); }
};
template <class T> struct Rsqrt {
  GRADUAL_HD T operator()(T x) const { return T{1} / std::sqrt(x); }
};
template <class T> struct Reciprocal {
  GRADUAL_HD T operator()(T x) const { return T{1} / x; }
};
template <class T> struct Sin {
  GRADUAL_HD T operator()(T x) const { return std::sin(x); }
};
template <class T> struct Cos {
  GRADUAL_HD T operator()(T x) const { return std::cos(x); }
};
template <class T> struct Tanh {
  GRADUAL_HD T operator()(T x) const { return math::tanh(x); }
};
template <class T> struct Sigmoid {
  GRADUAL_HD T operator()(T x) const { return math::sigmoid(x); }
};
template <class T> struct Erf {
  GRADUAL_HD T operator()(T x) const { return math::erf(x); }
};
// x times the normal distribution function (Hendrycks and Gimpel, 2016).
template <class T> struct Gelu {
  GRADUAL_HD T operator()(T x) const { return math::gelu(x); }
};
// x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), which is x sigmoid of twice the argument.
template <class T> struct GeluTanh {
  GRADUAL_HD T operator()(T x) const {
    constexpr T kTwiceRoot = static_cast<T>(1.5957691216057307);  // 2 sqrt(2/pi)
    const T u = kTwiceRoot * (x + static_cast<T>(0.044715) * x * x * x);
    return math::times_sigmoid(x, u);
  }
};
template <class T> struct Silu {
  GRADUAL_HD T operator()(T x) const { return math::times_sigmoid(x, x); }
};
// log(1 + exp(x)) without overflow.
template <class T> struct Softplus {
  GRADUAL_HD T operator()(T x) const { return math::softplus(x); }
};
template <class T> struct LogicalNot {
  GRADUAL_HD T operator()(T x) const { return x == 0 ? T{1} : T{0}; }
};

// --- two and three inputs -----------------------------------------------------------------------------------------

template <class T> struct Add {
  GRADUAL_HD T operator()(T x, T y) const {
    return wrapping(x, y, [](auto a, auto b) { return a + b; });
  }
};
template <class T> struct Sub {
  GRADUAL_HD T operator()(T x, T y) const {
    return wrapping(x, y, [](auto a, auto b) { return a - b; });
  }
};
template <class T> struct Mul {
  GRADUAL_HD T operator()(T x, T y) const {
    return wrapping(x, y, [](auto a, auto b) { return a * b; });
  }
};
// x + alpha y, rounded twice: the product is a number of the compute type.
template <class T> struct AddScaled {
  T alpha;
  GRADUAL_HD T operator()(T x, T y) const { return Add<T>{}(x, Mul<T>{}(alpha, y)); }
};
template <class T> struct Div {
  GRADUAL_HD T operator()(T x, T y) const { return x / y; }
};
template <class T> struct Pow {
  GRADUAL_HD T operator()(T x, T y) const { return y == 2 ? x * x : std::pow(x, y); }
};
// NaN in either operand gives NaN.
template <class T> struct Maximum {
  GRADUAL_HD T operator()(T x, T y) const { return x > y || x != x ? x : y; }
};
template <class T> struct Minimum {
  GRADUAL_HD T operator()(T x, T y) const { return x < y || x != x ? x : y; }
};
template <class T> struct Eq {
  GRADUAL_HD T operator()(T x, T y) const { return x == y ? T{1} : T{0}; }
};
template <class T> struct Ne {
  GRADUAL_HD T operator()(T x, T y) const { return x != y ? T{1} : T{0}; }
};
template <class T> struct Lt {
  GRADUAL_HD T operator()(T x, T y) const { return x < y ? T{1} : T{0}; }
};
template <class T> struct Le {
  GRADUAL_HD T operator()(T x, T y) const { return x <= y ? T{1} : T{0}; }
};
template <class T> struct Gt {
  GRADUAL_HD T operator()(T x, T y) const { return x > y ? T{1} : T{0}; }
};
template <class T> struct Ge {
  GRADUAL_HD T operator()(T x, T y) const { return x >= y ? T{1} : T{0}; }
};
template <class T> struct LogicalAnd {
  GRADUAL_HD T operator()(T x, T y) const { return x != 0 && y != 0 ? T{1} : T{0}; }
};
template <class T> struct LogicalOr {
  GRADUAL_HD T operator()(T x, T y) const { return x != 0 || y != 0 ? T{1} : T{0}; }
};
template <class T> struct LogicalXor {
  GRADUAL_HD T operator()(T x, T y) const { return (x != 0) != (y != 0) ? T{1} : T{0}; }
};
template <class T> struct Where {
  GRADUAL_HD T operator()(T condition, T x, T y) const { return condition != 0 ? x : y; }
};

}  // namespace gradual::functors
