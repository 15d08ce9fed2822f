#include "cast_counts.h"

namespace gradual {

void add_cast_counts(std::span<const CastCounts> each) {
  if (CastCounts* const all = cast_counts())
    for (const CastCounts& counts : each) *all += counts;
  std::vector<CastCounts>* const by_tensor = cast_counts_by_tensor();
  if (!by_tensor) return;
  by_tensor->resize(each.size());
  for (std::size_t i = 0; i < each.size(); ++i) (*by_tensor)[i] += each[i];
}

}  // namespace gradual
