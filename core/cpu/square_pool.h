// Max pools by windows of 2 x 2 pixels that lie side by side, without padding, as most networks have them: with AVX-512 16
// windows at a time, of f32 and bf16 numbers as they are.
#pragma once

#include <cstdint>

namespace gradual::cpu {

// Of a plane: windows in a column and in a row, and pixels.
struct SquarePool {
  std::int64_t rows, cols, height, width;
  // Fewer than 2^31 pixels, and this processor has the instructions.
  bool suits() const;
};

// A plane's maxima and where in the plane they are. E: float, or BFloat16, in which a NaN becomes quiet.
template <class E> void max_of_squares(const SquarePool& p, const E* x, E* y, std::int64_t* index);
// dx[index] = 0 + dy, and 0 everywhere else. False where an index lies outside its own window: dx is then left half-written.
template <class E> bool spread_to_squares(const SquarePool& p, const E* dy, const std::int64_t* index, E* dx);

}  // namespace gradual::cpu
