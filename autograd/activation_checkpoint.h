// Activation checkpointing: memory for time (Chen et al. 2016).
#pragma once

#include <functional>
#include <vector>

#include "../core/support/scoped.h"
#include "../core/tensor/modes.h"
#include "../core/tensor/tensor.h"

namespace gradual {

using SegmentFn = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

// Computes fn(inputs), of one to three outputs, and saves only the inputs. Backward runs fn again, with the same random
// numbers, autocast state, module, TF32 mode and accumulator, and differentiates that run. The gradients of `inputs`
// and of every tensor that fn captured (parameters) have the same bits as without checkpointing. Exception: if fn
// returns an input unchanged, the order of the sums of its gradient may differ. Second derivatives are those of a
// program that calls fn twice, once in forward and once in backward: gradients from the two calls propagate separately,
// and are rounded separately if products are quantised. fn must be repeatable: it must not read data that changes
// before backward, and should write nothing.
std::vector<Tensor> checkpoint(SegmentFn fn, const std::vector<Tensor>& inputs,
                               SourceLocation loc = SourceLocation::current());
// The same for one tensor.
Tensor checkpoint(std::function<Tensor(const Tensor&)> fn, const Tensor& input,
                  SourceLocation loc = SourceLocation::current());

// True while this thread recomputes a segment. State such as batch norm's running statistics and amax histories must
// not advance then.
inline bool recomputing() { return modes().segment == Segment::again; }
// True while this thread runs a segment, the first time (with grad mode off) or again.
inline bool in_checkpoint() { return modes().segment != Segment::none; }

}  // namespace gradual
