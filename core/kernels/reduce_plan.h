// The loops of a reduction over its operands; all backends share them.
#pragma once

#include <span>

#include "loops.h"

namespace gradual::cpu {

// Two loops with merged dims: `kept` over the outputs in row-major order, `reduced` over the elements of one output in
// the order of the first operand's memory.
struct Plan {
  Loop kept, reduced;
  DType dtype{};         // the dtype of the first operand
  bool columns = false;  // adjacent elements belong to different outputs, or each output has few elements
  std::int64_t outputs() const { return kept.numel; }
  std::int64_t count() const { return reduced.numel; }
  // A loop over the elements of one output, in a plan for one operand.
  Loop row_of(std::int64_t output) const {
    Loop row = reduced;
    row.view[0].data += offset_of(kept, 0, output) * static_cast<std::int64_t>(size_of(dtype));
    return row;
  }
};
inline constexpr std::int64_t kMinColumns = 8;  // fewer columns are gathered and summed one by one

// The plan for operands of the same sizes. Bit i of `dims` is set: dim i is reduced.
Plan make_plan(std::span<const Tensor* const> operands, std::uint32_t dims);
inline Plan make_plan(const Tensor& x, std::uint32_t dims) {
  const Tensor* operand = &x;
  return make_plan({&operand, 1}, dims);
}

// A view of x with the dims of the bit mask `dims` last, so that each output's elements are in row-major order.
Tensor reduced_last(const Tensor& x, std::uint32_t dims);

}  // namespace gradual::cpu
