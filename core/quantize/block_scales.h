// The scales of blocks on the CPU, from their elements.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "quantizer_kernels.h"

namespace gradual::detail {

struct Grid : ScaleGrid {
  std::int64_t k = 1;  // of the rows that the pass sees: the tensor's, or one block if blocks fill the rows
  const Quantizer* quantizer = nullptr;                      // of a search
  ScaleSearch search = nullptr;                              // not null: tries several scales
  RoundingMode scale_rounding = RoundingMode::nearest_even;  // of coded scales
  Format scale_format = {};                                  // of coded scales
  RandomKey scale_key = {};
  std::int64_t group = 0;                // MS-EDEN: the elements of a row whose scales are corrected together; 0: none
  std::int64_t outer = 0;                // double blocks: the elements of a row under one f32 scale; 0: none
  std::array<std::int64_t, 3> levels{};  // block, part and inner part; 0: none. block_cols is the last
};

// Calls f(block, begin, end) for the runs of n elements, whole rows of the grid, that have one scale.
template <class F> [[gnu::always_inline]] inline void for_runs(std::int64_t n, const Grid& g, const F& f) {
  if (g.fixed) return f(std::int64_t{0}, std::int64_t{0}, n);
  const std::int64_t cols = (g.k + g.block_cols - 1) / g.block_cols;
  for (std::int64_t r = 0; r < n / g.k; ++r)
    for (std::int64_t b = 0; b < cols; ++b)
      f(r / g.block_rows * cols + b, r * g.k + b * g.block_cols,
        std::min(r * g.k + (b + 1) * g.block_cols, (r + 1) * g.k));
}

// The larger of `than` and the magnitudes of n values; NaN wins. Inlined, for vectorized().
template <class T> [[gnu::always_inline]] inline T largest(const T* values, std::int64_t n, T than) {
  if (n == 2)  // shared microexponents; a vector of two is slow
    return larger_magnitude(values[0], larger_magnitude(values[1], than));
  using U = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  auto most = std::bit_cast<U>(than);
#pragma omp simd reduction(max : most)
  for (std::int64_t i = 0; i < n; ++i) most = std::max(most, std::bit_cast<U>(values[i]) & ~SourceBits<U>::kSign);
  return std::bit_cast<T>(most);
}

// The elements' range, with 0; NaN does not count.
struct Range {
  double low = 0;
  double high = 0;

  template <class T> void add(const T* values, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      low = std::min(low, static_cast<double>(values[i]));
      high = std::max(high, static_cast<double>(values[i]));
    }
  }
  void add(const Range& other) {
    low = std::min(low, other.low);
    high = std::max(high, other.high);
  }
  // With its zero point. Ends that are numbers of f32 are subtracted in f32, as PyTorch does.
  Scale scale(const ScaleSpec& spec) const;
};

template <class T> struct BlockScales {
  std::vector<Scale> scales;
  std::vector<T> most;  // the largest magnitude of each block; empty: not looked for
};
// Scales of the blocks of n elements, whole rows of the grid, of which the first is the tensor's element `first`.
template <class T> BlockScales<T> find_scales(const T* values, std::int64_t n, std::int64_t first, const Grid& grid);
// Whether it multiplies by a power of two and back, exactly.
bool is_power(const Scale& scale);

}  // namespace gradual::detail
