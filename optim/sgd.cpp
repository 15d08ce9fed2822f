#include "sgd.h"

#include "../core/dispatch.h"

namespace gradual::optim {

SGD::SGD(std::vector<Tensor> params, const SGDOptions& options)
    : SGD(std::vector<ParamGroup>{{.params = std::move(params)}}, options) {}

SGD::SGD(std::vector<ParamGroup> groups, const SGDOptions& o)
    : Optimizer(std::move(groups),
                {.lr = o.lr, .weight_decay = o.weight_decay, .momentum = o.momentum, .dampening = o.dampening},
                o.precision),
      nesterov_(o.nesterov) {
  if (o.nesterov && (o.momentum <= 0 || o.dampening != 0))
    fail("SGD: nesterov needs a momentum above 0 and a dampening of 0");
}

std::span<const std::string_view> SGD::moments(const ParamGroup& group) const {
  static constexpr std::string_view kNames[] = {"momentum"};
  return {kNames, group.momentum == 0 ? std::size_t{0} : 1};
}

void SGD::update(const ParamGroup& group, const ParamState& state, const Tensor& param, const Tensor& gradient,
                 const UpdateAttrs& how, SourceLocation loc) {
  // The first momentum is the gradient itself: the buffer holds zeros and nothing is dampened.
  const double dampening = state.steps == 0 ? 0 : group.dampening;
  const Attrs attrs = SgdAttrs{.lr = group.lr,
                               .weight_decay = group.weight_decay,
                               .momentum = group.momentum,
                               .dampening = dampening,
                               .nesterov = nesterov_,
                               .update = how};
  static const Tensor none;
  const Tensor* momentum = group.momentum == 0 ? &none : &state.moments[0];
  const Tensor* inputs[] = {&param, &gradient, &state.master, &state.compensation, momentum};
  dispatch(OpId::sgd_step_, TensorRefs(inputs, 5), attrs, loc);
}

}  // namespace gradual::optim
