// The table of fusions. A fusion is a row that computes second(first(..)) in one kernel, with the bits of the two. Autocast's
// policy and splitting, costs, inference and the layers of nn read this table; none of them names a fused row.
#pragma once

#include <span>

#include "op.h"

namespace gradual {

struct Fusion {
  OpId whole, first, second;
  // The whole's inputs are those of `first`, then the other inputs of `second`. Its output 0 is that of `second`; its further
  // outputs are those of `first`.
  int slot = 0;     // the input of `second` that takes output 0 of `first`
  int middle = -1;  // the output of the whole that keeps output 0 of `first`; -1: none does
  // The parts' attributes, from those of the whole.
  Attrs (*first_attrs)(const Attrs& whole);
  Attrs (*second_attrs)(const Attrs& whole);
  // The whole's attributes, from those of the parts.
  Attrs (*whole_attrs)(const Attrs& first, const Attrs& second);

  bool is_row() const { return whole != first; }  // false: `first` with a flag in its attributes
  int others() const { return info(second).inputs - 1; }
};

std::span<const Fusion> fusions();
// The fusion that this call is; null where it is none.
const Fusion* fusion_of(const OpCall& call);
// The fusion with a row of its own, by that row; null where the row is no fusion.
const Fusion* fusion_of(OpId whole);
// How second(first(..)) runs as one row; null where there is none.
const Fusion* find_fusion(OpId first, OpId second);

// The parts of a call, one after the other, each run by `run` (OpCall -> Outputs). Gives the whole's outputs.
template <class Run> Outputs run_parts(const Fusion& f, const OpCall& whole, const Run& run) {
  const int n = info(f.first).inputs;
  const Attrs first_attrs = f.first_attrs(*whole.attrs), second_attrs = f.second_attrs(*whole.attrs);
  Outputs out = run(OpCall{f.first, TensorRefs(whole.inputs.data(), n), &first_attrs, whole.where});
  const Tensor middle = out[0];
  const Tensor* refs[3] = {};
  for (int i = 0, other = n; i <= f.others(); ++i) refs[i] = i == f.slot ? &middle : &whole[other++];
  out[0] = run(OpCall{f.second, TensorRefs(refs, f.others() + 1), &second_attrs, whole.where})[0];
  if (f.middle > 0) out[f.middle] = middle;
  return out;
}

// Whether layers use fused rows. True unless a scope of this thread says otherwise.
inline bool& fused_rows() {
  thread_local bool on = true;
  return on;
}

// While it lives, layers and backward rules run the parts of fused rows, and an optimizer updates one parameter a call: to see
// what passes between the parts. On the CPU the bits are the same.
struct UnfusedScope : Scoped<bool> {
  UnfusedScope() : Scoped(fused_rows(), false) {}
};

}  // namespace gradual
