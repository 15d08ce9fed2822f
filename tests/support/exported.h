// What the tests of exported models share (tests/golden/pt2/make.py writes the files).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "gradual/core/files/state_dict.h"
#include "gradual/core/ops/ops.h"
#include "support/tensors.h"

namespace gradual::testing {

// The sum over the outputs of sum(output * cotangent), as bench/import_check/reference.py has it; undefined if the
// golden file has no cotangent.
inline Tensor loss_of(const std::vector<Tensor>& outputs, const StateDict& golden) {
  Tensor loss;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string name = "cotangent." + std::to_string(i);
    if (!golden.contains(name)) continue;
    const Tensor term = sum(outputs[i] * golden.tensor(name).to(outputs[i].dtype()));
    loss = loss.defined() ? loss + term : term;
  }
  return loss;
}

// Equal bits, or both undefined, as the gradient of a parameter that is not used.
inline bool same_bits_or_none(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return same_bits(a, b);
}

}  // namespace gradual::testing
