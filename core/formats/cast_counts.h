// Counting what rounding does: while a CountScope lives, every narrowing store of this thread's kernels adds to it.
#pragma once

#include "../support/scoped.h"
#include "convert.h"

namespace gradual {

// The counts that kernels called from this thread add to, or null (the usual case).
CastCounts*& cast_counts();

struct CountScope : Scoped<CastCounts*> {
  explicit CountScope(CastCounts* counts) : Scoped(cast_counts(), counts) {}
};

}  // namespace gradual
