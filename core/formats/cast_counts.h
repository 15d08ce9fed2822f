// Counts of roundings. While a CountScope lives, every narrowing store of this thread's kernels adds to its counts.
#pragma once

#include <span>
#include <vector>

#include "../support/scoped.h"
#include "convert.h"

namespace gradual {

// The counts to which kernels that this thread calls add. Null, the usual case: nothing is counted.
inline constexpr auto cast_counts = per_thread<CastCounts*, struct OfAll>;

using CountScope = ScopeOf<CastCounts*, cast_counts>;

// Counts for each tensor of a call that serves many tensors, such as an optimizer's step. Null: the sum alone is
// counted.
inline constexpr auto cast_counts_by_tensor = per_thread<std::vector<CastCounts>*, struct OfEach>;

// Adds the counts of such a call, one element per tensor, to both of the above.
inline void add_cast_counts(std::span<const CastCounts> each) {
  if (CastCounts* const all = cast_counts())
    for (const CastCounts& counts : each) *all += counts;
  std::vector<CastCounts>* const by_tensor = cast_counts_by_tensor();
  if (!by_tensor) return;
  by_tensor->resize(each.size());
  for (std::size_t i = 0; i < each.size(); ++i) (*by_tensor)[i] += each[i];
}

}  // namespace gradual
