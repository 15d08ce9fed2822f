// The number in a call's attributes, in the type that the kernel computes with.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "../ops/dispatch.h"

namespace gradual {

// Throws Error: the tensor holds integers, and the number is no 64-bit integer.
[[noreturn]] void fail_number(const OpCall& c, double value);

// The call's number as C. Error for a fraction if C is an integer, because the conversion would truncate it silently.
template <class C> C number(const OpCall& c) {
  const double value = c.get<ScalarAttrs>().value;
  if constexpr (std::is_same_v<C, std::int64_t>)
    if (value != std::trunc(value) || std::fabs(value) >= 0x1p63) fail_number(c, value);
  return static_cast<C>(value);
}
// The call's number if one of the first N operands is undefined, else 0.
template <class C, int N> C scalar_of(const OpCall& c) {
  bool absent = false;
  for (int i = 0; i < N; ++i) absent = absent || !c[i].defined();
  return absent ? number<C>(c) : C{};
}

// The dtype of the first defined operand. Promotion has made the operands' dtypes equal, except where's condition.
template <int N> DType operand_dtype(const OpCall& c) {
  constexpr int kFirst = N == 3 ? 1 : 0;
  return c[kFirst].defined() ? c[kFirst].dtype() : c[kFirst + 1].dtype();
}
// True if the call compares integers with a fraction; both are then compared as doubles.
bool compares_fraction(const OpCall& c);

// A bound of clamp. For integers x, a <= x means ceil(a) <= x.
template <class C> C bound(double rounded, double exact) {
  if constexpr (std::is_floating_point_v<C>) return static_cast<C>(exact);
  else if (rounded >= 0x1p63) return std::numeric_limits<C>::max();
  else if (rounded < -0x1p63) return std::numeric_limits<C>::min();
  else return static_cast<C>(rounded);
}

// The dtype in which an in-place op computes: x's, or that of a wider operand, which must not be rounded before its
// use. Error if x holds integers and the operand is floating.
DType in_place_dtype(const OpCall& c);

}  // namespace gradual
