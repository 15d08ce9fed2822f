// What the rules of tolerance_bounds.h share. Internal to tolerance().
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "norm_bounds.h"
#include "tolerance_bounds.h"

namespace gradual::lab {

// An op's inputs and their errors, as the rules read them.
struct Operands {
  const ExactOp& exact;

  // Output i of the op on other inputs, in f64.
  Tensor of(std::size_t i, const std::vector<Tensor>& values) const;
  static gradual::Outputs run(const RecordedOp& op, const std::vector<Tensor>& inputs);
  Tensor error(std::size_t i) const;    // 0 where there is none
  Tensor rows(std::size_t i) const;     // the norms of the errors along the last dim, [.., 1]
  Tensor columns(std::size_t i) const;  // and along the dim before it, [.., 1, n]
  Tensor value(std::size_t i) const;    // of a number that stands for an input, a tensor of one element
  double element_unit() const;          // of operations on single elements: f32, or f64 for f64
  double element_least() const;         // the same dtype's smallest number
  // What `units` roundings of an operation err by, relative to `size`, with underflow. 0 where the size and what was
  // carried are 0, and where the size is infinite: such results are exact.
  Tensor rounding(const Tensor& size, const Tensor& carried, double units) const;
};

struct ToleranceRule {
  OpId op;
  std::array<Tensor, kMaxOutputs> (*errors)(const ExactOp& exact, ErrorKind kind, const Operands& in);
};
// Of an op's sums alone: its results are rounded later.
inline Units units_of_sums(const ExactOp& exact) { return {.sum = exact.units.sum}; }
// The own rounding of an output's sums of products whose terms' magnitudes are `sizes` and may be `passed` more.
Tensor rounding_of_products(const ExactOp& exact, const Tensor& sizes, const Tensor& passed, const Tensor& y,
                            std::size_t output);
// Of the first `count` inputs, operands that an accumulator with a `lowest` takes for others. more: what sums of the
// terms' magnitudes grow by if operands below 2^lowest have this size, with which terms are aligned and cut. dropped:
// what they lose if these operands are zero, as pairwise sums have them. By output; undefined: nothing.
struct SmallOperands {
  std::array<Tensor, kMaxOutputs> more = {};
  std::array<Tensor, kMaxOutputs> dropped = {};
};
SmallOperands small_operands(const ExactOp& exact, std::size_t count);
// The numbers of a layer norm, an RMS norm, a batch norm, or their gradients, with the norms of the errors of rows
// where these are what is normalised.
NormNumbers norm_of(const ExactOp& exact, const Operands& in);
// Of softmax, norms, attention, losses, pools and optimizers.
std::span<const ToleranceRule> layer_rules();

}  // namespace gradual::lab
