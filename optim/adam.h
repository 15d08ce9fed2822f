// Adam and AdamW.
#pragma once

#include <cmath>

#include "optimizer.h"

namespace gradual::optim {

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  // L2: added to the gradient
  UpdateOptions precision = {};
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;  // decoupled: w *= 1 - lr * weight_decay
  UpdateOptions precision = {};
};

// m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
// w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps), t counted for each parameter.
class Adam : public Optimizer {
 public:
  explicit Adam(std::vector<Tensor> params, const AdamOptions& options = {}) : Adam(one_group(params), options) {}
  explicit Adam(std::vector<ParamGroup> groups, const AdamOptions& options = {})
      : Adam(std::move(groups), options, false) {}

 protected:
  Adam(std::vector<ParamGroup> groups, const AdamOptions& o, bool decoupled)
      : Optimizer({decoupled ? "adamw" : "adam", OpId::adam_step_, {"exp_avg", "exp_avg_sq"}}, std::move(groups),
                  {.lr = o.lr, .weight_decay = o.weight_decay, .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps},
                  o.precision),
        decoupled_(decoupled) {}

 private:
  Attrs attrs(const ParamGroup& group, std::int64_t steps, const UpdateAttrs& how) const override {
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

  bool decoupled_;
};

// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
class AdamW final : public Adam {
 public:
  explicit AdamW(std::vector<Tensor> params, const AdamWOptions& options = {}) : AdamW(one_group(params), options) {}
  explicit AdamW(std::vector<ParamGroup> groups, const AdamWOptions& o = {})
      : Adam(std::move(groups), {o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.precision}, true) {}
};

}  // namespace gradual::optim
