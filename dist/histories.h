// The amax histories of delayed scaling in a step of several shards: each shard sees the scales of the step's start
// (QuantizationState::Purpose::part_of_step), and the histories then take the largest amax of all shards. Sizes of
// channels (Quantization::outliers) add up.
#pragma once

#include "../amp/quantization.h"
#include "communicator.h"

namespace gradual::dist {

// All ranks agree. Error if a rank has not met a product that another one ran.
void advance_histories(amp::QuantizationState& state, Communicator& ranks);

}  // namespace gradual::dist
