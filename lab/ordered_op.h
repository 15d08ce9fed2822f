// An op as another correct implementation runs it: in its dtypes, with its sums in another order and in parts. Internal
// to tolerance().
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "recorded_ops.h"

namespace gradual::lab {

// Runs a step's ops in its dtypes, their sums in random orders. The terms of products are also split into 1, 2, 4 or 8
// parts, each a sum of its own, which are added in order, as ranks and blocked kernels do. Sums in an accumulator are
// not split.
class OrderedStep {
 public:
  // parts: of every product; 0: at random.
  explicit OrderedStep(std::uint64_t seed, int parts = 0) : random_(seed), parts_(parts) {}

  void run(const RecordedOp& op);
  Tensor value(const RecordedTensor& t) const { return values_.read(t); }

 private:
  gradual::Outputs run_products(const RecordedOp& op, std::vector<Tensor> inputs);
  gradual::Outputs run_exchanged(const RecordedOp& op, std::vector<Tensor> inputs);

  std::mt19937_64 random_;
  int parts_;
  RecordedNumbers values_;
};

}  // namespace gradual::lab
