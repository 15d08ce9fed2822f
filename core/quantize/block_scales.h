// The scales of blocks on the CPU, from their elements.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <vector>

#include "quantizer_kernels.h"

namespace gradual::detail {

struct Grid : ScaleGrid {
  std::int64_t k = 1;  // of the rows that the pass sees: the tensor's, or one block if blocks fill the rows
  const Quantizer* searched = nullptr;   // not null: its rule tries several scales
  std::array<std::int64_t, 3> levels{};  // block, part and inner part; 0: none. block_cols is the last
};

// The larger of `than` and the magnitudes of n values, as f32; NaN wins. Inlined, for vectorized().
inline float largest(const float* values, std::int64_t n, float than) {
  auto most = std::bit_cast<std::uint32_t>(than);
#pragma omp simd reduction(max : most)
  for (std::int64_t i = 0; i < n; ++i) most = std::max(most, std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffu);
  return std::bit_cast<float>(most);
}
inline float largest(const double* values, std::int64_t n, float than) {
  for (std::int64_t i = 0; i < n; ++i) than = larger_magnitude(static_cast<float>(values[i]), than);
  return than;
}

// Scales of the blocks of n elements, whole rows of the grid.
template <class T> std::vector<Scale> find_scales(const T* values, std::int64_t n, const Grid& grid);

}  // namespace gradual::detail
