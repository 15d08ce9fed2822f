// Products of matrices whose every partial sum is rounded; twin of core/cpu/rounded_gemm.h, with the same bits.
#pragma once

#include "../../core/formats/accumulator.h"
#include "gemm.h"

namespace gradual::cuda {

// Enqueues the product. `narrows` says that f32 is not the last format: sums are then rounded to it to odd. c may be f32 all
// the same, and is rounded on later.
void accumulate(const Accumulator& how, const Gemm& g, bool narrows);

}  // namespace gradual::cuda
