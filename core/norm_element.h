// What the norms of every backend share.
#pragma once

#include "dtype.h"

namespace gradual {

// The largest number that a store as `to` rounds to 0. Up to it relu sees a zero, which keeps its sign, since it comes
// after rounding. T is the type that is computed in.
template <class T> T rounds_to_zero(DType to) {
  return to == dtype_of<T> ? T{0} : static_cast<T>(float_info(to).min_subnormal / 2);
}

}  // namespace gradual
