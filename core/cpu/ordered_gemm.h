// f32 products whose sums have one order on every machine.
#pragma once

#include "gemm.h"

namespace gradual::cpu {

// c [m, n] (rows ldc elements apart) = a [m, k] b [k, n]. Each sum starts at +0, adds the products in the order of k by
// fused multiply-adds, and is +0 if it ends as -0: the bits of an f32 accumulator that rounds to nearest
// (core/formats/accumulator.h), however the product is cut. Operands may have any strides. Runs on the calling thread.
void ordered_gemm(const Gemm<float>& g);

// A kernel for particular processors, which ordered_gemm() asks first. It may end a sum as -0. False, with nothing
// written, if this processor cannot run it.
using OrderedKernel = bool (*)(const Gemm<float>& g);
void set_ordered_kernel(OrderedKernel kernel);

}  // namespace gradual::cpu
