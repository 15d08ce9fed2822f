// The accumulator that an op adds up in.
#pragma once

#include <optional>

#include "../formats/accumulator.h"
#include "op.h"

namespace gradual {

// Whether the op obeys an AccumulatorScope, unless its numbers are f64: contractions, sum and mean.
inline bool obeys_accumulator(OpId op) {
  return op_info(op).kind == OpKind::Contraction || op == OpId::sum || op == OpId::mean;
}

// The accumulator in force for the op. Terms of sum and mean are no products: for these it is without a format of
// products. nullopt: the op adds up as usual.
inline std::optional<Accumulator> accumulator_of(OpId op) {
  std::optional<Accumulator> how = obeys_accumulator(op) ? current_accumulator() : std::nullopt;
  if (how && op_info(op).kind != OpKind::Contraction) how->product.reset();
  return how;
}

}  // namespace gradual
