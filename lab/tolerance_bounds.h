// How far two correct implementations of an op may lie apart, for every op of a training step. Internal to tolerance().
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "judge_units.h"
#include "recorded_ops.h"

namespace gradual::lab {

// always: a bound for every order and grouping of every sum (Higham 2002, chapter 3), with a factor for what is of
// higher order in the units of rounding. of_norms: the bound of theory that knows only norms of the operands, ||error||
// <= n u ||x|| ||W|| with the largest element and the largest sum of a row. likely: simulated (step_replay.h), without
// a rule.
enum class ErrorKind : std::uint8_t { always, likely, of_norms };

// An op in exact arithmetic, before its results are rounded to their dtypes. Tensors are f64.
struct ExactOp {
  const RecordedOp& op;
  std::vector<Tensor> x = {};      // inputs; undefined ones, too
  std::vector<Tensor> error = {};  // of the inputs; undefined: none
  // Norms of their errors (error_rows.h), [.., 1] and [.., 1, n]; undefined: those of the elements' errors.
  std::vector<Tensor> rows = {};
  std::vector<Tensor> columns = {};
  std::array<Tensor, kMaxOutputs> y = {};  // results; of an op in place what it wrote
  Units units = {};                        // sum: of the accumulator; store: of rounding inside of an op to the dtype
  double roundings_per_addition = 1;       // of a sum; matrix units also cut off what they add
  // Of a product until a sum has it: it is rounded, or the sum that begins with it; by some accumulators both.
  double roundings_per_product = 1;
};

// By how much each element of the results may differ before they are rounded. Undefined: they may not. Of integers 1
// where another one is possible. Error for an op without a bound.
std::array<Tensor, kMaxOutputs> error_of(const ExactOp& exact, ErrorKind kind);
// By how much the rows of the first result may differ before it is rounded, whatever the elements' errors are together.
// Their norm is at most `rows`, [.., 1], and an element's error at most `elements`; both include the op's own rounding.
// None for ops without a rule, whose rows are as their elements.
struct RowErrors {
  Tensor rows, elements;
};
std::optional<RowErrors> row_errors_of(const ExactOp& exact);
// The op on other inputs, in f64. Ops in place write them.
gradual::Outputs run_in_f64(const RecordedOp& op, const std::vector<Tensor>& inputs);

// The number of additions in an op's sums of products, all together; 0 for other ops.
double roundings_of(const RecordedOp& op);

}  // namespace gradual::lab
