// The elementwise ops and their functions; all backends share them. A backend provides kernels for six kinds of
// functions: of numbers in the operands' compute type, of floats, of integers, of a float and the call's number,
// comparisons and truth values. unary_rows and binary_rows fill the backend's column with the functors that the op
// table names.
#pragma once

#include <cmath>
#include <cstdint>

#include "../ops/op.h"
#include "formulas.h"

namespace gradual::functors {

// clang-format off
struct None {};
struct Neg { template <class T> GRADUAL_HD T operator()(T x) const { return math::neg(x); } };
struct Abs { template <class T> GRADUAL_HD T operator()(T x) const { return math::abs(x); } };
struct Sign { template <class T> GRADUAL_HD T operator()(T x) const { return math::sign(x); } };
struct Floor {
  template <class T> GRADUAL_HD T operator()(T x) const {
    return math::whole(x, [](T v) { return std::floor(v); });
  }
};
struct Ceil {
  template <class T> GRADUAL_HD T operator()(T x) const {
    return math::whole(x, [](T v) { return std::ceil(v); });
  }
};
struct Round {
  template <class T> GRADUAL_HD T operator()(T x) const {
    return math::whole(x, [](T v) { return std::rint(v); });
  }
};
struct Trunc {
  template <class T> GRADUAL_HD T operator()(T x) const {
    return math::whole(x, [](T v) { return std::trunc(v); });
  }
};
struct Square { template <class T> GRADUAL_HD T operator()(T x) const { return math::mul(x, x); } };
struct Relu { template <class T> GRADUAL_HD T operator()(T x) const { return math::relu(x); } };
struct Exp { template <class T> GRADUAL_HD T operator()(T x) const { return math::exp(x); } };
struct Exp2 { template <class T> GRADUAL_HD T operator()(T x) const { return std::exp2(x); } };
struct Expm1 { template <class T> GRADUAL_HD T operator()(T x) const { return std::expm1(x); } };
struct Log2 { template <class T> GRADUAL_HD T operator()(T x) const { return std::log2(x); } };
struct Log { template <class T> GRADUAL_HD T operator()(T x) const { return math::log(x); } };
struct Log1p { template <class T> GRADUAL_HD T operator()(T x) const { return math::log1p(x); } };
struct Log10 { template <class T> GRADUAL_HD T operator()(T x) const { return std::log10(x); } };
struct Sqrt { template <class T> GRADUAL_HD T operator()(T x) const { return std::sqrt(x); } };
struct Rsqrt { template <class T> GRADUAL_HD T operator()(T x) const { return 1 / std::sqrt(x); } };
struct Reciprocal { template <class T> GRADUAL_HD T operator()(T x) const { return 1 / x; } };
struct Sin { template <class T> GRADUAL_HD T operator()(T x) const { return std::sin(x); } };
struct Cos { template <class T> GRADUAL_HD T operator()(T x) const { return std::cos(x); } };
struct Asin { template <class T> GRADUAL_HD T operator()(T x) const { return std::asin(x); } };
struct Acos { template <class T> GRADUAL_HD T operator()(T x) const { return std::acos(x); } };
struct Atan { template <class T> GRADUAL_HD T operator()(T x) const { return std::atan(x); } };
struct Asinh { template <class T> GRADUAL_HD T operator()(T x) const { return std::asinh(x); } };
struct Acosh { template <class T> GRADUAL_HD T operator()(T x) const { return std::acosh(x); } };
struct Atanh { template <class T> GRADUAL_HD T operator()(T x) const { return std::atanh(x); } };
struct Tanh { template <class T> GRADUAL_HD T operator()(T x) const { return math::tanh(x); } };
struct Sigmoid { template <class T> GRADUAL_HD T operator()(T x) const { return math::sigmoid(x); } };
struct Erf { template <class T> GRADUAL_HD T operator()(T x) const { return math::erf(x); } };
struct Erfc { template <class T> GRADUAL_HD T operator()(T x) const { return math::erfc(x); } };
struct Silu { template <class T> GRADUAL_HD T operator()(T x) const { return math::times_sigmoid(x, x); } };
struct Softplus { template <class T> GRADUAL_HD T operator()(T x) const { return math::softplus(x); } };
struct GeluExact { template <class T> GRADUAL_HD T operator()(T x) const { return math::gelu(x); } };
struct GeluTanh { template <class T> GRADUAL_HD T operator()(T x) const { return math::gelu_tanh(x); } };
struct Not { GRADUAL_HD bool operator()(bool x) const { return !x; } };

struct Add { template <class T> GRADUAL_HD T operator()(T x, T y) const { return math::add(x, y); } };
struct Sub { template <class T> GRADUAL_HD T operator()(T x, T y) const { return math::sub(x, y); } };
struct Mul { template <class T> GRADUAL_HD T operator()(T x, T y) const { return math::mul(x, y); } };
struct Div { template <class T> GRADUAL_HD T operator()(T x, T y) const { return x / y; } };
struct Pow { template <class T> GRADUAL_HD T operator()(T x, T y) const { return y == 2 ? x * x : std::pow(x, y); } };
struct Atan2 { template <class T> GRADUAL_HD T operator()(T y, T x) const { return std::atan2(y, x); } };
struct FloorDivide { template <class T> GRADUAL_HD T operator()(T x, T y) const { return math::floor_divide(x, y); } };
struct TruncDivide { template <class T> GRADUAL_HD T operator()(T x, T y) const { return math::trunc_divide(x, y); } };
struct Remainder { template <class T> GRADUAL_HD T operator()(T x, T y) const { return math::remainder(x, y); } };
struct Fmod { template <class T> GRADUAL_HD T operator()(T x, T y) const { return math::fmod(x, y); } };
struct Maximum { template <class T> GRADUAL_HD T operator()(T x, T y) const { return math::maximum(x, y); } };
struct Minimum { template <class T> GRADUAL_HD T operator()(T x, T y) const { return math::minimum(x, y); } };
struct ReluBackward { template <class T> GRADUAL_HD T operator()(T dy, T y) const { return y <= 0 ? T{0} : dy; } };
struct GeluExactBackward {
  template <class T> GRADUAL_HD T operator()(T dy, T x) const { return dy * math::gelu_slope(x); }
};
struct GeluTanhBackward {
  template <class T> GRADUAL_HD T operator()(T dy, T x) const { return dy * math::gelu_tanh_slope(x); }
};
struct Eq { template <class T> GRADUAL_HD bool operator()(T x, T y) const { return x == y; } };
struct Ne { template <class T> GRADUAL_HD bool operator()(T x, T y) const { return x != y; } };
struct Lt { template <class T> GRADUAL_HD bool operator()(T x, T y) const { return x < y; } };
struct Le { template <class T> GRADUAL_HD bool operator()(T x, T y) const { return x <= y; } };
struct Gt { template <class T> GRADUAL_HD bool operator()(T x, T y) const { return x > y; } };
struct Ge { template <class T> GRADUAL_HD bool operator()(T x, T y) const { return x >= y; } };
struct And { GRADUAL_HD bool operator()(bool x, bool y) const { return x & y; } };
struct Or { GRADUAL_HD bool operator()(bool x, bool y) const { return x | y; } };
struct Xor { GRADUAL_HD bool operator()(bool x, bool y) const { return x != y; } };
struct BitAnd { GRADUAL_HD std::int64_t operator()(std::int64_t x, std::int64_t y) const { return x & y; } };
struct BitOr { GRADUAL_HD std::int64_t operator()(std::int64_t x, std::int64_t y) const { return x | y; } };
struct BitXor { GRADUAL_HD std::int64_t operator()(std::int64_t x, std::int64_t y) const { return x ^ y; } };
struct ShiftLeft {
  GRADUAL_HD std::int64_t operator()(std::int64_t x, std::int64_t by) const { return math::shift_left(x, by); }
};
struct ShiftRight {
  GRADUAL_HD std::int64_t operator()(std::int64_t x, std::int64_t by) const { return math::shift_right(x, by); }
};
struct Where { template <class T> GRADUAL_HD T operator()(T when, T x, T y) const { return when != 0 ? x : y; } };

// Functions with a number from the call's attributes.
template <class C> struct LeakyRelu { C a; GRADUAL_HD C operator()(C x) const { return x < 0 ? x * a : x; } };
template <class C> struct Clamp { C lo, hi; GRADUAL_HD C operator()(C x) const { return math::clamp(x, lo, hi); } };
// clang-format on
// x + alpha y, rounded twice: the product is rounded to the compute type.
template <class C> struct AddScaled {
  C alpha;
  GRADUAL_HD C operator()(C x, C y) const { return math::add(x, math::mul(alpha, y)); }
};

// F of the operands as 1 or 0 of type T. Truth: F of the operands' truth values (x != 0).
template <class F> struct Flag {
  template <class T> GRADUAL_HD T operator()(T x, T y) const { return F{}(x, y) ? T{1} : T{0}; }
};
template <class F> struct Truth {
  GRADUAL_HD double operator()(double x) const { return F{}(x != 0) ? 1.0 : 0.0; }
  GRADUAL_HD double operator()(double x, double y) const { return F{}(x != 0, y != 0) ? 1.0 : 0.0; }
};

}  // namespace gradual::functors

namespace gradual {

// Registers a functor of N operands with the kernels that the op's kind and dtype rule ask for.
template <int N, OpKind kKind, DTypeRule kRule, class F, class Backend> void add_row(const Backend& b, OpId op, F f) {
  if constexpr (kRule == DTypeRule::Compare) b.comparison(op, f);
  else if constexpr (kRule == DTypeRule::Logical) b.template logical<N>(op, f);
  else if constexpr (kRule == DTypeRule::Integer) b.integers(op, f);
  else if constexpr (kRule == DTypeRule::Float || kKind == OpKind::Transcendental) b.template floats<N>(op, f);
  else if constexpr (!std::is_same_v<F, functors::None>) b.template numbers<N>(op, f);
}

template <class Backend> void unary_rows(const Backend& b) {
#define GRADUAL_UNARY_OP(name, kind, rule, F) add_row<1, OpKind::kind, DTypeRule::rule>(b, OpId::name, functors::F{});
#include "../ops.def"
  b.template with_number<functors::LeakyRelu>(OpId::leaky_relu);
}

template <class Backend> void binary_rows(const Backend& b) {
#define GRADUAL_BINARY_OP(name, kind, rule, F) add_row<2, OpKind::kind, DTypeRule::rule>(b, OpId::name, functors::F{});
#include "../ops.def"
  b.template floats<2>(OpId::relu_backward, functors::ReluBackward{});
  b.template numbers<3>(OpId::where, functors::Where{});
}

}  // namespace gradual
