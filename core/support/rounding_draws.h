// Where random rounding draws its keys.
#pragma once

#include "generator.h"
#include "scoped.h"

namespace gradual {

// The generator that random rounding draws from (quantizers, drawn signs, accumulators, sums of gradients). It is the
// thread's default one, as dropout's, so that the state of a run is one generator; or that of a RoundingDraws.
Generator& rounding_generator();

// While it lives, random rounding of this thread draws from a generator of its own. Then the model draws the same, and
// dropout has the same masks, under any rounding. For comparisons of a step under several roundings.
class RoundingDraws {
 public:
  // start: what default_generator() starts from. Steps that start alike round alike.
  explicit RoundingDraws(RandomKey start);

 private:
  Generator own_;
  Scoped<Generator*> scope_;
};

}  // namespace gradual
