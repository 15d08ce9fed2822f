#include "exact.h"

#include "../core/formats/accumulator.h"
#include "../core/ops/ops.h"
#include "../core/ops/parameter_inputs.h"
#include "numbers.h"

namespace gradual::inspect {
namespace {

// Runs an optimizer's call in f64. The weight starts from the master, or from the sum of parameter and Kahan
// compensation; the result is written to parameter and master.
void run_optimizer(const OpCall& call, const std::vector<Tensor>& inputs) {
  Attrs attrs = *call.attrs;
  const auto exact = [&]<class A>(A a) {
    a.update.pure = a.update.stochastic = false;
    attrs = a;
  };
  if (call.op == OpId::adam_step_) exact(call.get<AdamAttrs>());
  else exact(call.get<SgdAttrs>());
  const ParameterInputs p = parameter_inputs(call);
  for (int k = 0; k < p.count; ++k) {
    enum { weight, gradient, master, compensation };
    const auto first = inputs.begin() + p.first + static_cast<std::ptrdiff_t>(k) * p.each;
    std::vector<Tensor> one(first, first + p.each);
    const Tensor parameter = one[weight];
    if (one[master].defined()) one[weight] = one[master];
    if (one[compensation].defined()) {
      parameter.add_(one[compensation]);
      one[compensation].fill_(0);
    }
    one[master] = one[compensation] = Tensor();
    const std::vector<const Tensor*> refs = pointers_to(one);
    dispatch(call.op, TensorRefs(refs.data(), p.each), attrs, call.where);
    if (!one[weight].is_same(parameter)) parameter.copy_(one[weight]);
  }
}

// Inputs: counts of non-finite elements, then pairs of a gradient and its target.
void run_unscale(const OpCall& call, const std::vector<Tensor>& inputs) {
  for (std::size_t i = 1; i + 1 < inputs.size(); i += 2) {
    const Tensor& to = inputs[i + 1];
    if (!to.defined()) continue;  // only a check: the update divides
    if (!to.is_same(inputs[i])) to.copy_(inputs[i]);
    to.mul_(call.get<UnscaleAttrs>().inverse_scale);
  }
}

}  // namespace

Outputs run_exactly(const OpCall& call, const std::vector<Tensor>& inputs) {
  const Unseen unseen;
  const AccumulatorScope exact(std::nullopt);
  Outputs out;
  switch (call.op) {
    case OpId::cast:
      if (is_floating(call.get<DType>())) return out[0] = inputs[0].to(DType::f64), out;
      break;
    case OpId::to_device: return out[0] = inputs[0], out;
    case OpId::adam_step_:
    case OpId::sgd_step_: return run_optimizer(call, inputs), out[0] = inputs[0], out;
    case OpId::unscale_: return run_unscale(call, inputs), out[0] = inputs[0], out;
    case OpId::conv2d_backward_weight: {  // a sum over the images; the kernel's memory grows with their number
      constexpr std::int64_t kImages = 4;
      const std::int64_t n = inputs[0].size(0);
      for (std::int64_t from = 0; n > kImages && from < n; from += kImages) {
        const auto some = [&](const Tensor& t) { return t.narrow(0, from, std::min(kImages, n - from)); };
        const Tensor part = run_exactly(call, {some(inputs[0]), some(inputs[1])})[0];
        out[0] = from ? out[0].add_(part) : part;
      }
      if (n > kImages) return out;
      break;
    }
    default: break;
  }
  const std::vector<const Tensor*> refs = pointers_to(inputs);
  Attrs attrs = *call.attrs;
  if (call.op == OpId::cross_entropy || call.op == OpId::cross_entropy_backward) {
    auto a = call.get<CrossEntropyAttrs>();
    a.narrow = DType::f32;
    attrs = a;
  }
  return dispatch(call.op, TensorRefs(refs.data(), call.inputs.size()), attrs, call.where);
}

}  // namespace gradual::inspect
