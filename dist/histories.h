// The amax histories of delayed scaling in a step of several shards: each shard sees the scales of the step's start,
// and the histories then take the largest amax of all shards.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "../amp/quantization.h"
#include "communicator.h"

namespace gradual::dist {

class SharedHistories {
 public:
  explicit SharedHistories(amp::QuantizationState* state) : state_(state) {}  // null: nothing is quantised
  void begin_shard();
  void end_shard();
  // All ranks agree. Error if a rank has not met a product that another one ran.
  void end_step(Communicator& ranks);

 private:
  std::map<std::string, AmaxHistory> before_;  // by site and operand
  std::map<std::string, float> amax_;          // of this rank's shards
  amp::QuantizationState* state_;
};

}  // namespace gradual::dist
