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
  explicit SGD(std::vector<Tensor> params, const SGDOptions& options = {});
  explicit SGD(std::vector<ParamGroup> groups, const SGDOptions& options = {});

 private:
  std::string_view kind() const override { return "sgd"; }
  std::span<const std::string_view> moments(const ParamGroup& group) const override;
  void update(const ParamGroup& group, const ParamState& state, const Tensor& param, const Tensor& gradient,
              const UpdateAttrs& how, SourceLocation loc) override;

  bool nesterov_;
};

}  // namespace gradual::optim
