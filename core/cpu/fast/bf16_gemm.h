// Products of matrices in bf16 by Intel's AMX, whose tiles multiply 16 x 32 by 32 x 16 numbers at once: faster than the
// libraries' (bench/results/compare_amx.md). Without it by AVX512-BF16, whose vectors add two products to each of 16
// sums.
#pragma once

#include <cstdint>

#include "../../formats/float_types.h"
#include "../gemm.h"

namespace gradual::cpu {

// Sizes are above 0. Out: float, or BFloat16, to which each sum is rounded once.
template <class Out> using Bf16Product = FastProduct<BFloat16, Out>;

// Whether bf16_product can be called: cpu_isa() is amx, or avx512 on a processor with AVX512-BF16.
bool has_bf16_product();
// On the calling thread. Each sum goes from the bias on in the order of k, rounded to nearest even at each step, where
// subnormal numbers, read or made, count as zeros (Intel 64 and IA-32 Architectures Software Developer's Manual,
// TDPBF16PS, VDPBF16PS). By AMX 32 products at a time: those of even and of odd places are summed apart by fused
// multiply-adds; the two sums are added to each other, and the result to the earlier sum. By AVX512-BF16 two at a time,
// by a fused multiply-add each: the odd place's, then the even one's. Zeros fill up the last 32 or two places. So no
// cut of m or n changes a bit.
template <class Tc> void bf16_product(const Bf16Product<Tc>& p);

}  // namespace gradual::cpu
