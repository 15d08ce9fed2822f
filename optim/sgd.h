// Stochastic gradient descent.
#pragma once

#include "optimizer.h"

namespace gradual::optim {

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;  // the first step takes the gradient whole
  double weight_decay = 0;
  bool nesterov = false;  // needs momentum and no dampening
  UpdateOptions precision = {};
};

// d = g + weight_decay * w;  m = momentum * m + (1 - dampening) * d;  w -= lr * (nesterov ? d + momentum * m : m).
class SGD final : public Optimizer {
 public:
  explicit SGD(const std::vector<Tensor>& params, const SGDOptions& options = {}) : SGD(one_group(params), options) {}
  explicit SGD(std::vector<ParamGroup> groups, const SGDOptions& o = {})
      : Optimizer({"sgd", OpId::sgd_step_, {"momentum"}, attrs_of<SgdAttrs>(o.nesterov)}, std::move(groups),
                  {.lr = o.lr, .weight_decay = o.weight_decay, .momentum = o.momentum, .dampening = o.dampening},
                  o.precision),
        nesterov_(o.nesterov) {
    if (o.nesterov && (o.momentum <= 0 || o.dampening != 0))
      throw_error("SGD: nesterov needs a momentum above 0 and a dampening of 0");
  }
  Choices choices() const override { return {{"nesterov", nesterov_ ? "true" : "false"}}; }

 private:
  bool has_moments(const ParamGroup& group) const override { return group.momentum.value_or(0) != 0; }

  bool nesterov_;
};

}  // namespace gradual::optim
