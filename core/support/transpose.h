// Transposes f32 numbers in registers. Not a public header.
#pragma once

#include <cstdint>

namespace gradual {

// to[r * to_step + c] = from[c * from_step + r] for r < rows, c < columns. The two do not overlap. Whole cache lines
// are read and written together.
void transpose(const float* from, std::int64_t from_step, float* to, std::int64_t to_step, std::int64_t rows,
               std::int64_t columns);

}  // namespace gradual
