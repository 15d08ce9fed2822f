// Products of matrices in f32 where libraries are slower: of small ones, for whose call and preparations
// weigh as much as the sums, and of all on processors with AVX2 alone.
#pragma once

#include <cstdint>

#include "../gemm.h"

namespace gradual::cpu {

using F32Product = FastProduct<float, float>;

// Whether f32_product is the way for a product of these sizes: not for narrow ones, nor without AVX2.
bool suits_f32_product(std::int64_t m, std::int64_t n, std::int64_t k);
// On the calling thread. Each sum goes from the bias on in the order of k, by fused multiply-adds, however the product
// is cut.
void f32_product(const F32Product& p);

}  // namespace gradual::cpu
