// The scales of blocks on the CPU, from their elements.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "quantizer_kernels.h"

namespace gradual::detail {

struct Grid : ScaleGrid {
  std::int64_t k = 1;  // of the rows that the pass sees: the tensor's, or one block if blocks fill the rows
  const Quantizer* searched = nullptr;   // not null: its rule tries several scales
  std::array<std::int64_t, 3> levels{};  // block, part and inner part; 0: none. block_cols is the last
};

// The larger of `than` and the magnitudes of n values, as f32; NaN wins.
float larger(const float* values, std::int64_t n, float than);
float larger(const double* values, std::int64_t n, float than);

// Scales of the blocks of n elements, whole rows of the grid.
template <class T> std::vector<Scale> find_scales(const T* values, std::int64_t n, const Grid& grid);

}  // namespace gradual::detail
