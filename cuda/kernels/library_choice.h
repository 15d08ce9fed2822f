// Rows that cuDNN offers to compute before our kernels do. Each computes the outputs, or declines (false) and has written
// nothing: other dtypes, strides or sizes than the library's, counts of what rounding loses, options that it does not have.
#pragma once

#include "../../core/formats/cast_counts.h"
#include "../cuda.h"
#include "kernels.h"

namespace gradual::cuda {

bool library_batch_norm(const OpCall& call, Outputs& out);  // with the batch's statistics
bool library_batch_norm_backward(const OpCall& call, Outputs& out);
bool library_avg_pool2d(const OpCall& call, Outputs& out);
bool library_avg_pool2d_backward(const OpCall& call, Outputs& out);
bool library_softmax(const OpCall& call, Outputs& out);  // and log_softmax
bool library_softmax_backward(const OpCall& call, Outputs& out);

// The library where it is chosen and takes the call, else our kernel.
template <OfferFn library, KernelFn ours> void library_or_ours(const OpCall& call, Outputs& out) {
  if (library_kernels() && !cast_counts() && library(call, out)) return;
  ours(call, out);
}

}  // namespace gradual::cuda
