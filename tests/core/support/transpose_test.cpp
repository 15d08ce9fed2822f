// Transposition of f32 numbers: every size of edge, steps larger than a row, each instruction set.
#include <doctest/doctest.h>
#include <gradual/core/support/transpose.h>

#include <cstdint>
#include <vector>

#include "support/cpu_isas.h"

using namespace gradual;

namespace {

// How many numbers are wrong, those between the rows of the result included.
int wrong(std::int64_t rows, std::int64_t columns, std::int64_t gap) {
  const std::int64_t from_step = rows + gap;
  const std::int64_t to_step = columns + 2 * gap;
  std::vector<float> from(static_cast<std::size_t>(columns * from_step));
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
  std::vector<float> to(static_cast<std::size_t>(rows * to_step), -1);
  transpose(from.data(), from_step, to.data(), to_step, rows, columns);
  int count = 0;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < to_step; ++c) {
      const float right = c < columns ? static_cast<float>(c * from_step + r) : -1;
      count += to[static_cast<std::size_t>(r * to_step + c)] != right;
    }
  return count;
}

}  // namespace

TEST_CASE("a transposed matrix has each number once, and nothing between its rows is written") {
  reference::for_each_isa([](CpuIsa isa) {
    CAPTURE(to_string(isa));
    for (const std::int64_t rows : {1, 3, 4, 7, 8, 15, 16, 17, 40})
      for (const std::int64_t columns : {1, 2, 4, 5, 8, 16, 19, 33})
        for (const std::int64_t gap : {0, 5}) {
          CAPTURE(rows);
          CAPTURE(columns);
          CHECK(wrong(rows, columns, gap) == 0);
        }
  });
}
