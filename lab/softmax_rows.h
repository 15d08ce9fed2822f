// What the softmax of a recorded op is taken of. Internal to tolerance().
#pragma once

#include <limits>

#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "recorded_ops.h"

namespace gradual::lab {

// Of softmax, log_softmax and their gradients.
inline bool is_along_last(const RecordedOp& op) {
  return op.attrs.get<DimAttrs>().dim == op.inputs[0].sizes.size() - 1;
}

// Scores [.., L, S] with -Inf where row i takes no column j > i.
inline Tensor causally_masked(const Tensor& scores) {
  const Tensor taken = tril(ones({scores.size(-2), scores.size(-1)}), 0);
  return masked_fill(scores, eq(taken, 0), -std::numeric_limits<double>::infinity());
}

}  // namespace gradual::lab
