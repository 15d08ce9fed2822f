// Adam and AdamW.
#pragma once

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
  explicit Adam(std::vector<Tensor> params, const AdamOptions& options = {});
  explicit Adam(std::vector<ParamGroup> groups, const AdamOptions& options = {});

 protected:
  Adam(std::vector<ParamGroup> groups, const AdamOptions& options, bool decoupled);

 private:
  std::string_view kind() const override { return decoupled_ ? "adamw" : "adam"; }
  std::span<const std::string_view> moments(const ParamGroup& group) const override;
  void update(const ParamGroup& group, const ParamState& state, const Tensor& param, const Tensor& gradient,
              const UpdateAttrs& how, SourceLocation loc) override;

  bool decoupled_ = false;
};

// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
class AdamW final : public Adam {
 public:
  explicit AdamW(std::vector<Tensor> params, const AdamWOptions& options = {});
  explicit AdamW(std::vector<ParamGroup> groups, const AdamWOptions& options = {});
};

}  // namespace gradual::optim
