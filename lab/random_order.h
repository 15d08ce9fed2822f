// Random orders of the terms of a sum.
#pragma once

#include <cstdint>
#include <random>

#include "../core/tensor/tensor.h"

namespace gradual::lab {

// The places 0 .. n - 1 in a random order (Fisher-Yates), i64 of [n], for index_select. Takes n - 1 numbers of random.
Tensor random_order(std::int64_t n, std::mt19937_64& random);

// The order that puts the terms back: index_select along both gives the tensor as it was. order: i64 of [n].
Tensor inverse_order(const Tensor& order);

}  // namespace gradual::lab
