// Rounding to the values of a table (format_table.h): CPU only.
#pragma once

#include "rounding_kernels.h"

namespace gradual::detail {

// Rounds n sources, at most kRoundingBlock, as round_block does.
template <class T>
void round_to_table(const Rounder& rounder, const T* in, const std::uint32_t* random, T* values, void* codes,
                    std::int64_t n, LoopCounts* counts);

}  // namespace gradual::detail
