// Matrix products and sums whose partial sums are rounded. They follow the definition to the bit and are slow.
#pragma once

#include "../formats/accumulator.h"
#include "../ops/op.h"
#include "gemm.h"

namespace gradual::cpu {

// c += a b by the accumulator's definition (core/formats/accumulator.h). Each element's sum starts at zero; the
// finished sum and the old c are added exactly and rounded once to f32. `narrows`: the caller rounds c to a narrower
// dtype, so c is rounded to odd, which makes both roundings equal to one (Boldo and Melquiond 2005).
// Stochastic rounding numbers the elements of c, row by row: g's first one is first_element, and g has a row of
// `across`.
void accumulate(const Accumulator& how, const Gemm<float>& g, bool narrows, std::int64_t first_element = 0,
                std::int64_t across = 0);

// True if the sums are f32 numbers rounded to nearest one product after the other: those of ordered_gemm().
bool is_ordered_f32(const Accumulator& how);

// The sum of x over the dims of the bit mask `dims`, divided by n, by the scope's accumulator: each output is the
// product of its elements, in row-major order, with ones. Returns false, with nothing written, without an accumulator
// or if x is f64 or integral.
bool sum_accumulated(const Tensor& x, std::uint32_t dims, double n, Tensor& out);

}  // namespace gradual::cpu
