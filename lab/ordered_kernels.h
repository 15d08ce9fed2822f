// Ops that add up terms, as another correct implementation computes them: in f32, every sum in a tree of additions that
// is drawn at random. Internal to tolerance().
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "ordered_sum.h"
#include "recorded_ops.h"

namespace gradual::lab {

// Draws the trees of an op's sums.
struct SumDraws {
  std::mt19937_64& random;
  OrderedSumOptions options = {};

  OrderedSum order_of(std::int64_t terms) const { return {terms, options, random}; }
  Tensor product(const Tensor& a, const Tensor& b) const;  // [m, n], [n, k] -> [m, k]
  Tensor of_rows(const Tensor& x) const;                   // [m, n] -> [m, 1]
  Tensor of_columns(const Tensor& x) const;                // [n, m] -> [1, m]
};

// The results before they are rounded to their dtypes: f32, and i64 as they are. inputs: floating ones in f32. None for
// ops without sums, and for those that are not written here: attention in one op, scatter_add, pools, norms of another
// order than 2, normalizations with running statistics or a fused ReLU, softmax along another dim than the last, cross
// entropy with smoothed labels.
std::optional<gradual::Outputs> run_in_order(const RecordedOp& op, const std::vector<Tensor>& inputs,
                                             const SumDraws& draws);

}  // namespace gradual::lab
