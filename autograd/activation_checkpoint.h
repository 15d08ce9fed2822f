// Activation checkpointing: memory for time (Chen et al. 2016).
#pragma once

#include <functional>
#include <vector>

#include "../core/tensor/tensor.h"

namespace gradual {

using SegmentFn = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

// fn(inputs), of one to three outputs, without keeping what its ops save for backward: backward runs fn once more,
// with the same random numbers, autocast state, module, TF32 mode and accumulator, and differentiates that. The gradients
// are those without checkpointing, to the bit, of `inputs` as of every tensor that fn captured (parameters). Those
// of a tensor that fn hands through as it came are so but for the order of their sums. Second derivatives are those of a
// program where fn stands twice, once forward and once in backward: what reaches its inside by the two ways is not added up
// there but goes back apart, and is rounded apart where products are quantised.
// fn must compute the same thing again: it must not read what has changed in between, and should write nothing.
std::vector<Tensor> checkpoint(SegmentFn fn, const std::vector<Tensor>& inputs,
                               SourceLocation loc = SourceLocation::current());
// The same for one tensor.
Tensor checkpoint(std::function<Tensor(const Tensor&)> fn, const Tensor& input,
                  SourceLocation loc = SourceLocation::current());

// Whether this thread is running such a segment again: what keeps a state of its own (batch norm's running
// statistics, amax histories) must not advance it now.
bool recomputing();
// Whether it is in such a segment, the first time (where grad mode is off) or again.
bool in_checkpoint();

}  // namespace gradual
