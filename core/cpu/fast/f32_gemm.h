// f32 matrix products where libraries are slower: small ones, for which a call and its preparations cost as much as the
// sums, and all of them on processors with AVX2 but not AVX-512.
#pragma once

#include <cstdint>

#include "../../formats/float_types.h"
#include "../gemm.h"

namespace gradual::cpu {

using F32Product = FastProduct<float, float>;

// True if f32_product suits a product of these sizes. It does not for fewer than 8 rows or columns, nor without AVX2.
bool suits_f32_product(std::int64_t m, std::int64_t n, std::int64_t k);
// Runs on the calling thread. Each sum starts from the bias and adds products in the order of k by fused multiply-adds,
// however the product is cut.
void f32_product(const F32Product& p);

// True if f32_product_of() reads operands of that dtype: bf16 and f16, on processors with AVX2 alone.
bool reads_for_f32_product(DType dtype);
// f32_product of bf16 or f16 operands (In: BFloat16 or Half), which become f32 as they are packed: the same bits as of
// operands that were converted before, without the memory and the time for copies of them.
template <class In> void f32_product_of(const FastProduct<In, float>& p);
// c = a b in the same order, of any size and strides (core/cpu/ordered_gemm.h). False, with nothing written, without
// AVX2.
bool f32_in_order(const Gemm<float>& g);

}  // namespace gradual::cpu
