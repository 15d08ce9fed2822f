// Sums over the parts of a split, which exchange numbers in a format. Internal to split.h.
#pragma once

#include <vector>

#include "../amp/exchange.h"
#include "../core/tensor/tensor.h"

namespace gradual::lab {

// Error for what a split's exchange cannot have: signs, error feedback, random rounding, and one scale for a tensor.
void check_exchange(const amp::Exchange& exchange);
// The sum of tensors of one shape. gather: each is rounded once, and the sum is in f32, or f64 of f64. ring: a partial
// sum is rounded before the next part is added. tree: the second of a pair is rounded before it is added. The sum is
// rounded too, unless the exchange says otherwise. Parts in half are added in f32, and the result is rounded to their
// dtype. One part alone exchanges nothing.
Tensor exchanged_sum(const std::vector<Tensor>& parts, const amp::Exchange& exchange);

// The same as an op on the tape. The gradient of each part is that of the sum (an all-reduce in forward).
Tensor summed(const std::vector<Tensor>& parts, const amp::Exchange& exchange);
// A tensor that each of n parts reads. Its gradient is the exchanged sum of theirs (an all-reduce in backward).
std::vector<Tensor> copies_of(const Tensor& t, int n, const amp::Exchange& exchange);

}  // namespace gradual::lab
