// The memory that a quantizer's numbers take, per number.
#pragma once

#include "quantizer.h"

namespace gradual {

// The bits of a number in a long tensor: those of its code, and its share of the scales of its block: both levels of
// nvfp4 and of shared microexponents (one bit per part), and zero points. Scales of whole tensors and rows count as 0,
// since their share depends on the tensor's sizes. A smaller last block has a larger share, which does not count.
// mxfp8: 8 + 8/32 = 8.25. nvfp4: 4 + 8/16 = 4.5.
double bits_per_number(const Quantizer& quantizer);

}  // namespace gradual
