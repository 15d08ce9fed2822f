// The offers of the fast kernels: products and convolutions by instructions of particular processors. This column is
// optional (CMake: GRADUAL_FAST); without it, the reference kernels of core/cpu and oneDNN compute the same ops.
#pragma once

#include "../../ops/dispatch.h"

namespace gradual::fast {

inline void set_offer(OpId op, OfferFn fn) { columns().fast[static_cast<int>(op)] = fn; }

void register_contractions();
void register_convolutions();

}  // namespace gradual::fast
