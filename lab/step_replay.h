// A recorded step in exact sums: every op in f64 on what the ops before it gave, its results rounded as the step rounds
// them, with bounds of how far another correct implementation may be. Internal to tolerance().
#pragma once

#include <cstddef>
#include <vector>

#include "recorded_ops.h"
#include "tolerance_bounds.h"

namespace gradual::lab {

// t rounded to a dtype, in f64.
Tensor rounded(const Tensor& t, DType dtype);
// The operands of products in TF32, in f64: 10 bits behind the point, to nearest, ties to even.
Tensor rounded_to_tf32(const Tensor& t);

class StepReplay {
 public:
  explicit StepReplay(const std::vector<ErrorModel>& models) : models_(models), errors_(models.size()) {}

  void run(const RecordedOp& op);

  Tensor value(const RecordedTensor& t) const { return values_.read(t); }
  Tensor error(const RecordedTensor& t, std::size_t model) const;  // f64, of t's sizes

 private:
  ExactOp exact_of(const RecordedOp& op) const;
  std::vector<Tensor> errors_of_inputs(const RecordedOp& op, std::size_t model) const;
  void write(const RecordedTensor& t, const Tensor& exact, const std::vector<Tensor>& errors);
  void run_update(const RecordedOp& op);

  std::vector<ErrorModel> models_;
  RecordedNumbers values_;
  std::vector<RecordedNumbers> errors_;  // by model
};

}  // namespace gradual::lab
