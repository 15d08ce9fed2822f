// Matrix products with every partial sum rounded; counterpart of core/cpu/rounded_gemm.h, with the same bits.
#pragma once

#include "../../core/formats/accumulator.h"
#include "gemm.h"

namespace gradual::cuda {

// Enqueues the product. narrows: the final format is narrower than f32, so sums are rounded to f32 by to-odd. c may
// still be f32 and is rounded later.
void accumulate(const Accumulator& how, const Gemm& g, bool narrows);

}  // namespace gradual::cuda
