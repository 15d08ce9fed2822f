// The amax histories of delayed scaling in a step of several shards: each shard sees the scales of the step's start,
// and the histories then take the largest amax of all shards.
#pragma once

#include "../amp/quantization.h"
#include "communicator.h"

namespace gradual::dist {

// While it lives, no history advances.
class SharedHistories : Pinned {
 public:
  explicit SharedHistories(amp::QuantizationState* state);  // null: nothing is quantised
  ~SharedHistories();
  // All ranks agree. Error if a rank has not met a product that another one ran.
  void end_step(Communicator& ranks);

 private:
  amp::QuantizationState* state_;
};

}  // namespace gradual::dist
