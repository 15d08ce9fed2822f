// Sorting on the device, implemented by CUB (sort_cub.cu); the emulator has its own version.
#pragma once

#include <cstdint>

namespace gradual::cuda {

// n keys, not negative and below 2^bits, in ascending order, and the value of each. Equal keys keep their order. The
// four arrays are on this thread's device and do not overlap.
void sort_pairs(std::int64_t n, int bits, const std::int64_t* keys, std::int64_t* sorted_keys,
                const std::int64_t* values, std::int64_t* sorted_values);

}  // namespace gradual::cuda
