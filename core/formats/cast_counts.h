// Counts of roundings. While a CountScope lives, every narrowing store of this thread's kernels adds to its counts.
#pragma once

#include <span>
#include <vector>

#include "../support/scoped.h"
#include "convert.h"

namespace gradual {

// The counts to which kernels that this thread calls add. Null, the usual case: nothing is counted.
inline CastCounts*& cast_counts() {
  thread_local CastCounts* current = nullptr;
  return current;
}

using CountScope = ScopeOf<CastCounts*, cast_counts>;

// Counts for each tensor of a call that serves many tensors, such as an optimizer's step. Null: the sum alone is
// counted.
inline std::vector<CastCounts>*& cast_counts_by_tensor() {
  thread_local std::vector<CastCounts>* current = nullptr;
  return current;
}

// Adds the counts of such a call, one element per tensor, to both of the above.
void add_cast_counts(std::span<const CastCounts> each);

}  // namespace gradual
