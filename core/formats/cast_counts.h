// Counting what rounding does: while a CountScope lives, every narrowing store of this thread's kernels adds to it.
#pragma once

#include <span>
#include <vector>

#include "../support/scoped.h"
#include "convert.h"

namespace gradual {

// The counts that kernels called from this thread add to, or null (the usual case).
CastCounts*& cast_counts();

struct CountScope : Scoped<CastCounts*> {
  explicit CountScope(CastCounts* counts) : Scoped(cast_counts(), counts) {}
};

// A call that serves many tensors, an optimizer's step, also counts for each tensor. Null: the sum is enough.
std::vector<CastCounts>*& cast_counts_by_tensor();

// Adds the counts of such a call, one for each tensor, to both.
void add_cast_counts(std::span<const CastCounts> each);

}  // namespace gradual
