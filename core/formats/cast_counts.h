// Counts of roundings. While a CountScope lives, every narrowing store of this thread's kernels adds to its counts.
#pragma once

#include <span>
#include <vector>

#include "../support/scoped.h"
#include "convert.h"

namespace gradual {

// The counts to which kernels that this thread calls add. Null, the usual case: nothing is counted.
CastCounts*& cast_counts();

struct CountScope : Scoped<CastCounts*> {
  explicit CountScope(CastCounts* counts) : Scoped(cast_counts(), counts) {}
};

// Counts for each tensor of a call that serves many tensors, such as an optimizer's step. Null: the sum alone is
// counted.
std::vector<CastCounts>*& cast_counts_by_tensor();

// Adds the counts of such a call, one element per tensor, to both of the above.
void add_cast_counts(std::span<const CastCounts> each);

}  // namespace gradual
