// A recorded step in exact sums: every op in f64 on what the ops before it gave, its results rounded as the step rounds
// them, with bounds of how far another correct implementation may be. Quantizers round what an implementation with f32
// gives them; their scales follow from it. Internal to tolerance().
#pragma once

#include <array>
#include <cstddef>
#include <random>
#include <vector>

#include "error_rows.h"
#include "recorded_ops.h"
#include "tolerance_bounds.h"

namespace gradual::lab {

// t rounded to a dtype, in f64.
Tensor rounded(const Tensor& t, DType dtype);
// The operands of products in TF32, in f64: 10 bits behind the point, to nearest, ties to even.
Tensor rounded_to_tf32(const Tensor& t);

// Errors that always hold, and those of norms, are carried from element to element by the rules; those that always hold
// also by rows (error_rows.h), of which the smaller one counts. Probable ones are
// carried by simulation: the step runs kSimulations times, and every sum errs at random by what its roundings err by in
// the mean. For ops that add up terms, the bound of a tensor is lambda times the largest root mean square of what
// arrives; from there the rules carry it through ops of single elements.
class StepReplay {
 public:
  static constexpr int kSimulations = 16;

  explicit StepReplay(const std::vector<ErrorModel>& models);  // the first one: errors that always hold

  void run(const RecordedOp& op);
  // Of the op that ran last, a rewritten op if that has ended: the bound that always holds if its inputs have no
  // errors.
  const Tensor& local_error(std::size_t output) const { return local_[output]; }

  Tensor value(const RecordedTensor& t) const { return values_.read(t); }
  Tensor error(const RecordedTensor& t, std::size_t model) const;  // f64, of t's sizes

 private:
  using Errors = std::array<Tensor, kMaxOutputs>;

  ExactOp exact_of(const RecordedOp& op, const RecordedNumbers& values) const;
  std::vector<Tensor> errors_of_inputs(const RecordedOp& op, std::size_t model) const;
  // rows: of the errors that always hold, of the step; undefined: they follow from those of the elements
  void write(const RecordedTensor& t, const Tensor& exact, const std::vector<Tensor>& errors, const Tensor& rows = {});
  void read_rows(const RecordedOp& op, ExactOp& exact) const;
  void round_errors(const RecordedOp& op, ExactOp& exact) const;
  void run_op(const RecordedOp& op);
  void run_update(const RecordedOp& op);
  void run_quantizer_call(const RecordedOp& op);
  void find_local(const RecordedOp& op);
  Errors simulated(const ExactOp& exact, double lambda);
  void simulate_others(const RecordedOp& op);
  Tensor random_signs(const Shape& sizes);
  Tensor random_errors(const RecordedOp& op, const Tensor& size);

  std::vector<ErrorModel> models_;  // the last one: errors that always hold, of a single op
  RecordedNumbers values_;
  std::vector<RecordedNumbers> errors_;  // by model
  ErrorRows rows_;                       // of the first model
  std::vector<RecordedNumbers> simulations_;
  Errors local_;
  std::mt19937_64 random_{1};
};

}  // namespace gradual::lab
