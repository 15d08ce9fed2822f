#include "sgd.h"

namespace gradual::optim {

SGD::SGD(std::vector<ParamGroup> groups, const SGDOptions& o)
    : Optimizer({"sgd", OpId::sgd_step_, {"momentum"}}, std::move(groups),
                {.lr = o.lr, .weight_decay = o.weight_decay, .momentum = o.momentum, .dampening = o.dampening},
                o.precision),
      nesterov_(o.nesterov) {
  if (o.nesterov && (o.momentum <= 0 || o.dampening != 0))
    fail("SGD: nesterov needs a momentum above 0 and a dampening of 0");
}

Attrs SGD::attrs(const ParamGroup& group, std::int64_t steps, const UpdateAttrs& how) const {
  return SgdAttrs{.lr = group.lr,
                  .weight_decay = group.weight_decay,
                  .momentum = group.momentum,
                  .dampening = steps == 0 ? 0 : group.dampening,  // the first momentum is the gradient itself
                  .nesterov = nesterov_,
                  .update = how};
}

}  // namespace gradual::optim
