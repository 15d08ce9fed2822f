// Estimates of what a call costs, from its shapes alone.
#pragma once

#include "op.h"

namespace gradual {

// FLOPs count a multiply-add as two and any other function of an element as one; data movement and views count none.
// Bytes are those of the inputs and outputs, each read or written once; a view moves none.
struct Cost {
  double flops = 0;
  double bytes = 0;
};
Cost cost(const OpCall& call, const Outputs& out);

}  // namespace gradual
