// The number that a call's attributes carry, as its kernel computes with it.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "../ops/dispatch.h"

namespace gradual {

// Error: the number is no integer of 64 bits, where the tensor holds integers.
[[noreturn]] void fail_number(const OpCall& c, double value);

// Integers take integers only: a fraction would be cut in silence.
template <class C> C number(const OpCall& c) {
  const double value = c.get<ScalarAttrs>().value;
  if constexpr (std::is_same_v<C, std::int64_t>)
    if (value != std::trunc(value) || std::fabs(value) >= 0x1p63) fail_number(c, value);
  return static_cast<C>(value);
}
// That in place of an undefined operand, if there is one among the first N.
template <class C, int N> C scalar_of(const OpCall& c) {
  bool absent = false;
  for (int i = 0; i < N; ++i) absent = absent || !c[i].defined();
  return absent ? number<C>(c) : C{};
}

// The first defined operand says what the numbers are: promotion has made all alike, but not the condition of where.
template <int N> DType operand_dtype(const OpCall& c) {
  constexpr int kFirst = N == 3 ? 1 : 0;
  return c[kFirst].defined() ? c[kFirst].dtype() : c[kFirst + 1].dtype();
}
// Whether integers are compared with a fraction, for which both become doubles.
bool compares_fraction(const OpCall& c);

// A bound of clamp: integers x with a <= x are those with ceil(a) <= x.
template <class C> C bound(double rounded, double exact) {
  if constexpr (std::is_floating_point_v<C>) return static_cast<C>(exact);
  else if (rounded >= 0x1p63) return std::numeric_limits<C>::max();
  else if (rounded < -0x1p63) return std::numeric_limits<C>::min();
  else return static_cast<C>(rounded);
}

// How an in-place op computes: as x's dtype says, but a wider operand must not be cut before it is used. Error where a
// floating operand would go into integers.
DType in_place_dtype(const OpCall& c);

}  // namespace gradual
