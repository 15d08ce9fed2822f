// An op as another correct implementation runs it: in its dtypes, with its sums in another order and in parts. Internal
// to tolerance().
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "ordered_kernels.h"
#include "recorded_ops.h"

namespace gradual::lab {

// The results of an op before they are rounded to its dtypes, in f64, on inputs in f64. Sums in f32 are added up in
// drawn trees (ordered_sum.h); sums in an accumulator or in f64, and those that ordered_kernels.h leaves out, have
// their terms in random orders, and the first ones' results are rounded. None for an op that rounds nothing else. No op
// in place.
std::optional<gradual::Outputs> run_unrounded(const RecordedOp& op, const std::vector<Tensor>& inputs,
                                              const SumDraws& draws);
// The inputs after an op in place, which runs in its dtypes; f64.
std::vector<Tensor> run_in_place(const RecordedOp& op, const std::vector<Tensor>& inputs);

// Of sampled order 0, 1 ..: never that of simulations (StepReplay::kSeed).
constexpr std::uint64_t seed_of_order(int order) { return static_cast<std::uint64_t>(order) + 1; }

// Runs a step's ops in their dtypes with sums in drawn orders.
class OrderedStep {
 public:
  explicit OrderedStep(std::uint64_t seed, const OrderedSumOptions& options = {}) : random_(seed), options_(options) {}

  void run(const RecordedOp& op);
  Tensor value(const RecordedTensor& t) const { return values_.read(t); }

 private:
  gradual::Outputs run_op(const RecordedOp& op, const std::vector<Tensor>& inputs);

  std::mt19937_64 random_;
  OrderedSumOptions options_;
  RecordedNumbers values_;
};

}  // namespace gradual::lab
