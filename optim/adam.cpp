#include "adam.h"

#include <cmath>

namespace gradual::optim {

Adam::Adam(std::vector<ParamGroup> groups, const AdamOptions& o, bool decoupled)
    : Optimizer({decoupled ? "adamw" : "adam", OpId::adam_step_, {"exp_avg", "exp_avg_sq"}}, std::move(groups),
                {.lr = o.lr, .weight_decay = o.weight_decay, .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps},
                o.precision),
      decoupled_(decoupled) {}

AdamW::AdamW(std::vector<ParamGroup> groups, const AdamWOptions& o)
    : Adam(std::move(groups), {o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.precision}, true) {}

Attrs Adam::attrs(const ParamGroup& group, std::int64_t steps, const UpdateAttrs& how) const {
  const auto t = static_cast<double>(steps + 1);
  return AdamAttrs{.lr = group.lr,
                   .beta1 = group.beta1,
                   .beta2 = group.beta2,
                   .eps = group.eps,
                   .weight_decay = group.weight_decay,
                   .correction1 = 1 - std::pow(group.beta1, t),
                   .correction2_root = std::sqrt(1 - std::pow(group.beta2, t)),
                   .decoupled = decoupled_,
                   .update = how};
}

}  // namespace gradual::optim
