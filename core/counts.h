// Counting what rounding does: while a CountScope lives, every narrowing store of this thread's kernels adds to it.
#pragma once

#include "convert.h"

namespace gradual {

// The counts that kernels called from this thread add to, or null (the usual case).
CastCounts*& cast_counts();

class CountScope {
 public:
  explicit CountScope(CastCounts* counts) : saved_(cast_counts()) { cast_counts() = counts; }
  ~CountScope() { cast_counts() = saved_; }
  CountScope(const CountScope&) = delete;
  CountScope& operator=(const CountScope&) = delete;

 private:
  CastCounts* saved_;
};

}  // namespace gradual
