// Products of matrices whose every partial sum is rounded: exact and slow.
#pragma once

#include "../formats/accumulator.h"
#include "../ops/op.h"
#include "gemm.h"

namespace gradual::cpu {

// c += a b as the accumulator's definition says: each element's chain starts at zero, what c held is added to the
// finished sum exactly, and the result is rounded once to f32. Where f32 is not the last format (`narrows`), that is to
// odd: rounding once more then gives what rounding once would have given (Boldo and Melquiond 2005).
void accumulate(const Accumulator& how, const Gemm<float>& g, bool narrows);

}  // namespace gradual::cpu
