// How a reduction goes through its operands: what every backend's kernels start from.
#pragma once

#include <span>

#include "loops.h"

namespace gradual::cpu {

// Dims split in two, each merged: `kept` runs over outputs in row-major order, `reduced` over what one output takes in, in
// the order of the first operand's memory.
struct Plan {
  Loop kept, reduced;
  DType dtype{};         // of the first operand
  bool columns = false;  // neighbours in memory belong to different outputs, or outputs take in few elements each
  std::int64_t outputs() const { return kept.numel; }
  std::int64_t count() const { return reduced.numel; }
  // The elements of one output, in a plan for one operand.
  Loop row_of(std::int64_t output) const {
    Loop row = reduced;
    row.view[0].data += offset_of(kept, 0, output) * static_cast<std::int64_t>(size_of(dtype));
    return row;
  }
};
inline constexpr std::int64_t kMinColumns = 8;  // fewer are gathered and summed one by one

// Of operands of one size, which is reduced in the dims of the bit mask.
Plan make_plan(std::span<const Tensor* const> operands, std::uint32_t dims);
inline Plan make_plan(const Tensor& x, std::uint32_t dims) {
  const Tensor* operand = &x;
  return make_plan({&operand, 1}, dims);
}

// x with the dims of the bit mask last: what each output takes in, in row-major order.
Tensor reduced_last(const Tensor& x, std::uint32_t dims);

}  // namespace gradual::cpu
