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
  explicit SGD(std::vector<Tensor> params, const SGDOptions& options = {}) : SGD(one_group(params), options) {}
  explicit SGD(std::vector<ParamGroup> groups, const SGDOptions& options = {});

 private:
  bool has_moments(const ParamGroup& group) const override { return group.momentum != 0; }
  Attrs attrs(const ParamGroup& group, std::int64_t steps, const UpdateAttrs& how) const override;

  bool nesterov_;
};

}  // namespace gradual::optim
