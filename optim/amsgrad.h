// AMSGrad (Reddi et al. 2018): Adam whose second moment never falls. Written with ops: slower than Adam's fused step.
#pragma once

#include "adam.h"

namespace gradual::optim {

// As Adam or, with `decoupled`, AdamW (PyTorch's amsgrad = true), with u = max(u, v) in place of v:
// w -= lr / (1 - beta1^t) * m / (sqrt(u) / sqrt(1 - beta2^t) + eps).
struct AmsGradOptions : AdamOptions {
  bool decoupled = false;  // weight decay multiplies w by 1 - lr * weight_decay instead of adding to the gradient
};

class AmsGrad final : public Optimizer {
 public:
  explicit AmsGrad(const std::vector<Tensor>& params, const AmsGradOptions& options = {})
      : AmsGrad(one_group(params), options) {}
  explicit AmsGrad(std::vector<ParamGroup> groups, const AmsGradOptions& options = {});
  Choices choices() const override { return {{"decoupled", decoupled_ ? "true" : "false"}}; }

 protected:
  Tensor update(const Update& u) override;

 private:
  bool decoupled_;
};

}  // namespace gradual::optim
