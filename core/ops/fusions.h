// The table of fusions. A fused op computes second(first(..)) in one kernel, with the bits of the two ops. Autocast's
// policy and splitting, costs, inference, the layers of nn and inspect read this table. Only the columns (kernels,
// backward rules), the functions of ops.h and this table name a fused op; a test checks it.
#pragma once

#include <span>

#include "../tensor/modes.h"
#include "op.h"

namespace gradual {

struct Fusion {
  OpId whole, first, second;
  // The inputs of `whole` are those of `first`, then the other inputs of `second`. Its output 0 is that of `second`;
  // its further outputs are those of `first`.
  int slot = 0;     // the input of `second` that takes output 0 of `first`
  int middle = -1;  // the output of `whole` that holds output 0 of `first`; -1: none
  // The parts' attributes, from those of `whole`.
  Attrs (*first_attrs)(const Attrs& whole);
  Attrs (*second_attrs)(const Attrs& whole);
  // The attributes of `whole`, from those of the parts.
  Attrs (*whole_attrs)(const Attrs& first, const Attrs& second);

  bool is_row() const { return whole != first; }  // false: `first` with a flag in its attributes
  int others() const { return op_info(second).inputs - 1; }
};

std::span<const Fusion> fusions();
// The fusion that this call is an instance of; null if none.
const Fusion* fusion_of(const OpCall& call);
// The fusion whose `whole` is this op, if it is an op of its own (is_row); null if none.
const Fusion* fusion_of(OpId whole);
// The fusion that computes second(first(..)); null if there is none.
const Fusion* find_fusion(OpId first, OpId second);

// Runs the parts of a call one after the other by `run` (OpCall -> Outputs). Returns the outputs of `whole`.
template <class Run> Outputs run_parts(const Fusion& f, const OpCall& whole, const Run& run) {
  const int n = op_info(f.first).inputs;
  const Attrs first_attrs = f.first_attrs(*whole.attrs);
  const Attrs second_attrs = f.second_attrs(*whole.attrs);
  Outputs out = run(OpCall{f.first, TensorRefs(whole.inputs.data(), n), &first_attrs, whole.where});
  const Tensor middle = out[0];
  const Tensor* refs[3] = {};
  for (int i = 0, other = n; i <= f.others(); ++i) refs[i] = i == f.slot ? &middle : &whole[other++];
  out[0] = run(OpCall{f.second, TensorRefs(refs, f.others() + 1), &second_attrs, whole.where})[0];
  if (f.middle > 0) out[f.middle] = middle;
  return out;
}

// Whether layers use fused ops. True unless a scope of this thread sets it to false.
inline bool& fused_rows() { return modes().fused_rows; }

// While it lives, layers and backward rules run the parts of fused ops, and an optimizer updates one parameter per
// call. Observers then see the tensors between the parts. On the CPU the bits are the same.
struct UnfusedScope : Scoped<bool> {
  UnfusedScope() : Scoped(fused_rows(), false) {}
};

}  // namespace gradual
