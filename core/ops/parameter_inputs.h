// One call of an optimizer's op (sgd_step_, adam_step_, unscale_) updates many parameters. This describes its inputs.
#pragma once

#include "op.h"

namespace gradual {

struct ParameterInputs {
  int count = 0;    // parameters of the call; 0 for every other op
  int first = 0;    // index of the first parameter's first tensor
  int each = 0;     // tensors per parameter
  int written = 0;  // index of the result among them
};

inline ParameterInputs parameter_inputs(const OpCall& call) {
  ParameterInputs p;
  if (call.op == OpId::sgd_step_) p.each = 5;
  else if (call.op == OpId::adam_step_) p.each = 6;
  else if (call.op == OpId::unscale_) p = {.first = 1, .each = 2, .written = 1};
  else return p;
  p.count = (call.inputs.size() - p.first) / p.each;
  return p;
}

// The call restricted to its k-th parameter.
inline OpCall call_of_parameter(const OpCall& call, const ParameterInputs& p, int k) {
  OpCall one = call;
  one.inputs = TensorRefs(call.inputs.data() + p.first + k * p.each, p.each);
  return one;
}

}  // namespace gradual
