// A recorded step in exact sums: every op in f64 on what the ops before it gave, its results rounded as the step rounds
// them, with bounds of how far another correct implementation may be. Quantizers round what an implementation with f32
// gives them; their scales follow from it. Internal to tolerance().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "error_rows.h"
#include "recorded_ops.h"
#include "tolerance_bounds.h"

namespace gradual::lab {

// t rounded to a dtype, in f64.
Tensor rounded(const Tensor& t, DType dtype);
// Whether the op is a product whose first two inputs TF32 rounds.
bool rounds_to_tf32(const RecordedOp& op);
// Rounded so, in f64: 10 bits behind the point, to nearest, ties to even.
Tensor rounded_to_tf32(const Tensor& t);

// Errors that always hold, and those of norms, are carried from element to element by the rules; those that always hold
// also by rows (error_rows.h), of which the smaller one counts. Likely ones are simulated by Monte Carlo arithmetic
// (Parker 1997): the step runs kSimulations times in f64. In each run the result of every op has an error of its own,
// with a random sign: kRoundingsOfOthers times what the op loses in f32, or in its accumulator, if the terms of its
// sums come in a random order and are added one by one; of sums that ordered_kernels.h leaves out (attention in one op,
// scatter_add, pools ..) what Gradual's own kernels lose, which may be less. So errors pass on with all that cancels.
// What is likely of a tensor is `factor` times the largest root mean square of an element's error.
class StepReplay {
 public:
  static constexpr int kSimulations = 32;
  static constexpr std::uint64_t kSeed = 0;  // of no sampled order (seed_of_order)
  // Another implementation may round more often.
  static constexpr double kRoundingsOfOthers = 2;

  // kinds: the first one always.
  StepReplay(const std::vector<ErrorKind>& kinds, double factor);

  void run(const RecordedOp& op);
  // Of the op that ran last, a rewritten op if that has ended: the bound that always holds if its inputs have no
  // errors.
  const Tensor& local_error(std::size_t output) const { return local_[output]; }

  Tensor value(const RecordedTensor& t) const { return values_.read(t); }
  // f64, of t's sizes. `kind` is one of the constructor's.
  Tensor error(const RecordedTensor& t, ErrorKind kind) const;

 private:
  using Errors = std::array<Tensor, kMaxOutputs>;

  Tensor error_at(const RecordedTensor& t, std::size_t kind) const;  // a place in kinds_
  ExactOp exact_of(const RecordedOp& op, const RecordedNumbers& values) const;
  std::vector<Tensor> errors_of_inputs(const RecordedOp& op, std::size_t kind) const;
  // rows: of the errors that always hold, of the step; undefined: they follow from those of the elements
  void write(const RecordedTensor& t, const Tensor& exact, const std::vector<Tensor>& errors, const Tensor& rows = {});
  void read_rows(const RecordedOp& op, ExactOp& exact) const;
  void round_errors(const RecordedOp& op, ExactOp& exact) const;
  void run_op(const RecordedOp& op);
  void run_update(const RecordedOp& op);
  void run_quantizer_call(const RecordedOp& op);
  void find_local(const RecordedOp& op);
  std::array<Tensor, kMaxOutputs> losses(const ExactOp& here, const gradual::Outputs& y);
  Errors simulated(const ExactOp& exact);
  Errors likely_of(const ExactOp& exact);
  std::vector<Tensor> simulated_in_place(const RecordedOp& op, const std::vector<Tensor>& exact_after);
  Tensor likely(const Tensor& squares) const;
  double random_sign() { return (random_() & 1) != 0 ? 1 : -1; }

  std::vector<ErrorKind> kinds_;  // the last one: errors that always hold, of a single op
  double factor_;
  RecordedNumbers values_;
  std::vector<RecordedNumbers> errors_;  // by kind
  ErrorRows rows_;                       // of the first kind
  std::vector<RecordedNumbers> simulations_;
  Errors local_;
  std::mt19937_64 random_{kSeed};
};

}  // namespace gradual::lab
