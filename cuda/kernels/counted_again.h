// Library kernels do not count what rounding loses. If counts are wanted, a kernel of Gradual that counts runs in
// addition, into memory that is discarded. The bits do not change. The counts are those of the same formula in
// Gradual's arithmetic, whose sums may differ from the library's in the last bits.
#pragma once

#include "../../core/formats/cast_counts.h"
#include "../../core/tensor/memory.h"
#include "kernels.h"

namespace gradual::cuda {

// Calls count(temporary outputs like `out`) if this thread counts.
template <class F> void count_again(const Outputs& out, const F& count) {
  if (!cast_counts()) return;
  const CategoryScope scope(Category::workspace);
  Outputs dropped;
  for (int i = 0; i < kMaxOutputs; ++i) {
    if (!out[i].defined()) continue;
    dropped[i] = empty(out[i].sizes(), {.dtype = out[i].dtype(), .device = out[i].device()});
    dropped[i].unsafe_impl()->strides = out[i].strides();
    dropped[i].unsafe_impl()->contiguous = out[i].is_contiguous();
  }
  count(dropped);
}

}  // namespace gradual::cuda
