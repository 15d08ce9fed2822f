#include "scalar_operand.h"

#include "../support/throwf.h"

namespace gradual {

void fail_number(const OpCall& c, double value) {
  throwf(c, "the number {} is not an integer of 64 bits; cast the tensor with to(DType::f32)", value);
}

bool compares_fraction(const OpCall& c) {
  if ((c[0].defined() && c[1].defined()) || is_floating(operand_dtype<2>(c))) return false;
  const double value = c.get<ScalarAttrs>().value;
  return value != std::trunc(value) || std::fabs(value) >= 0x1p63;
}

DType in_place_dtype(const OpCall& c) {
  const DType x = c[0].dtype();
  if (!c[1].defined() || c[1].dtype() == x) return x;
  const DType y = promote(x, c[1].dtype());
  if (is_floating(y) && !is_floating(x))
    throwf(c, "a floating operand cannot be written into an integer tensor; cast it with to()");
  return y;
}

}  // namespace gradual
