// The cast policy of functions that have no row in the op table, such as cumsum: they follow that of an op that they
// resemble. amp's regions implement it.
#pragma once

#include "op.h"

namespace gradual {

struct OperandPolicy {
  virtual ~OperandPolicy() = default;
  // The dtype in which `like` would compute x; x's own if autocast does not cast it. Error if `like` is banned.
  virtual DType operand_dtype(OpId like, const Tensor& x) const = 0;
};

}  // namespace gradual
