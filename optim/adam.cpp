#include "adam.h"

#include <cmath>

#include "../core/dispatch.h"

namespace gradual::optim {
namespace {

std::vector<ParamGroup> one_group(std::vector<Tensor> params) { return {{.params = std::move(params)}}; }

AdamOptions as_adam(const AdamWOptions& o) { return {o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.precision}; }

}  // namespace

Adam::Adam(std::vector<ParamGroup> groups, const AdamOptions& o, bool decoupled)
    : Optimizer(std::move(groups),
                {.lr = o.lr, .weight_decay = o.weight_decay, .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps},
                o.precision),
      decoupled_(decoupled) {}

Adam::Adam(std::vector<ParamGroup> groups, const AdamOptions& o) : Adam(std::move(groups), o, false) {}
Adam::Adam(std::vector<Tensor> params, const AdamOptions& o) : Adam(one_group(std::move(params)), o, false) {}
AdamW::AdamW(std::vector<ParamGroup> groups, const AdamWOptions& o) : Adam(std::move(groups), as_adam(o), true) {}
AdamW::AdamW(std::vector<Tensor> params, const AdamWOptions& o)
    : Adam(one_group(std::move(params)), as_adam(o), true) {}

std::span<const std::string_view> Adam::moments(const ParamGroup&) const {
  static constexpr std::string_view kNames[] = {"exp_avg", "exp_avg_sq"};
  return kNames;
}

void Adam::update(const ParamGroup& group, const ParamState& state, const Tensor& param, const Tensor& gradient,
                  const UpdateAttrs& how, SourceLocation loc) {
  const auto t = static_cast<double>(state.steps + 1);
  const Attrs attrs = AdamAttrs{.lr = group.lr,
                                .beta1 = group.beta1,
                                .beta2 = group.beta2,
                                .eps = group.eps,
                                .weight_decay = group.weight_decay,
                                .correction1 = 1 - std::pow(group.beta1, t),
                                .correction2_root = std::sqrt(1 - std::pow(group.beta2, t)),
                                .decoupled = decoupled_,
                                .update = how};
  const Tensor* inputs[] = {&param,           &gradient, &state.master, &state.compensation, &state.moments[0],
                            &state.moments[1]};
  dispatch(OpId::adam_step_, TensorRefs(inputs, 6), attrs, loc);
}

}  // namespace gradual::optim
