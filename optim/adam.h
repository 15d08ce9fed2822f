// Adam and AdamW.
#pragma once

#include "optimizer.h"

namespace gradual::optim {

template <bool kDecoupled> struct AdamOptionsOf {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = kDecoupled ? 0.01 : 0;  // Adam: L2, added to the gradient; AdamW: w *= 1 - lr * weight_decay
  UpdateOptions precision = {};
};

// m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
// w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps), with t counted per parameter.
template <bool kDecoupled> class AdamOf final : public Optimizer {
 public:
  using Options = AdamOptionsOf<kDecoupled>;
  explicit AdamOf(const std::vector<Tensor>& params, const Options& options = {})
      : AdamOf(one_group(params), options) {}
  explicit AdamOf(std::vector<ParamGroup> groups, const Options& o = {})
      : Optimizer({kDecoupled ? "adamw" : "adam",
                   OpId::adam_step_,
                   {"exp_avg", "exp_avg_sq"},
                   attrs_of<AdamAttrs>(kDecoupled)},
                  std::move(groups),
                  {.lr = o.lr, .weight_decay = o.weight_decay, .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps},
                  o.precision) {}
};

using AdamOptions = AdamOptionsOf<false>;
using Adam = AdamOf<false>;
// With decoupled weight decay (Loshchilov and Hutter 2019).
using AdamWOptions = AdamOptionsOf<true>;
using AdamW = AdamOf<true>;

}  // namespace gradual::optim
