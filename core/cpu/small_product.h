// Products of matrices so small that a library's call and preparations weigh as much as the sums.
#pragma once

#include <cstdint>

#include "gemm.h"

namespace gradual::cpu {

// c [m, n] (rows `across` apart) = a [m, k] b [k, n] + bias [n], which may be null.
struct SmallProduct {
  std::int64_t m, n, k;
  MatrixRef<float> a, b;  // of b either stride is 1
  const float* bias;
  float* c;
  std::int64_t across;
};

// On the calling thread, each sum from the bias on in the order of k, by fused multiply-adds. False where others are faster:
// with large or narrow matrices, and without AVX2.
bool small_product(const SmallProduct& p);

}  // namespace gradual::cpu
