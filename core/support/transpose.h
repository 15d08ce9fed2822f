// Transposes numbers of 32 bits in registers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace gradual {

// to[r * to_step + c] = from[c * from_step + r] for r < rows, c < columns. The two do not overlap. Whole cache lines of
// `from` are read once.
inline void transpose(const float* from, std::int64_t from_step, float* to, std::int64_t to_step, std::int64_t rows,
                      std::int64_t columns) {
  using Four [[gnu::vector_size(16)]] = float;
  constexpr std::int64_t kSide = 4;
  constexpr std::int64_t kLines = 64;  // four cache lines, so that processors read ahead
  const std::int64_t whole_rows = rows - rows % kSide;
  const std::int64_t whole_columns = columns - columns % kSide;
  const auto square = [=](std::int64_t r, std::int64_t c) {
    Four in[kSide];
    for (std::int64_t i = 0; i < kSide; ++i) std::memcpy(&in[i], from + (c + i) * from_step + r, sizeof(Four));
    const Four low = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
    const Four high = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
    const Four next_low = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
    const Four next_high = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
    const Four out[kSide] = {
        __builtin_shufflevector(low, next_low, 0, 1, 4, 5), __builtin_shufflevector(low, next_low, 2, 3, 6, 7),
        __builtin_shufflevector(high, next_high, 0, 1, 4, 5), __builtin_shufflevector(high, next_high, 2, 3, 6, 7)};
    for (std::int64_t i = 0; i < kSide; ++i) std::memcpy(to + (r + i) * to_step + c, &out[i], sizeof(Four));
  };
  for (std::int64_t lines = 0; lines < whole_rows; lines += kLines)
    for (std::int64_t c = 0; c < whole_columns; c += kSide)
      for (std::int64_t r = lines; r < std::min(lines + kLines, whole_rows); r += kSide) square(r, c);
  for (std::int64_t c = whole_columns; c < columns; ++c)
    for (std::int64_t r = 0; r < whole_rows; ++r) to[r * to_step + c] = from[c * from_step + r];
  for (std::int64_t r = whole_rows; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c) to[r * to_step + c] = from[c * from_step + r];
}

}  // namespace gradual
