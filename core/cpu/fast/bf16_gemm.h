// bf16 matrix products by Intel's AMX, which multiplies tiles of 16 x 32 and 32 x 16 numbers and is faster than the
// libraries (bench/results/compare.md). Without AMX, by AVX512-BF16, whose instructions add two products to each of
// 16 sums.
#pragma once

#include <cstdint>

#include "../../formats/float_types.h"
#include "../gemm.h"

namespace gradual::cpu {

// Sizes are above 0. Out is float or BFloat16, to which each sum is rounded once.
template <class Out> using Bf16Product = FastProduct<BFloat16, Out>;

// True if bf16_product can be called: cpu_isa() is amx, or avx512 on a processor with AVX512-BF16.
bool has_bf16_product();
// Runs on the calling thread. Each sum starts from the bias and adds products in the order of k. Each step rounds to
// nearest even, and subnormal numbers, read or made, count as 0 (Intel 64 and IA-32 Architectures Software Developer's
// Manual, TDPBF16PS, VDPBF16PS). AMX adds 32 products per step: it sums those of even k and those of odd k separately
// by fused multiply-adds, adds the two sums, and adds the result to the earlier sum. AVX512-BF16 adds two products per
// step, each by a fused multiply-add: that of the odd k, then that of the even k. Zeros pad the last step. So no cut of
// m or n changes a bit.
template <class Tc> void bf16_product(const Bf16Product<Tc>& p);

}  // namespace gradual::cpu
