// Three user-defined optimizers, each an update written with ops. optim::Optimizer provides masters, Kahan and
// stochastic updates, the loss scaler, clipping, state dicts and recipes.
#pragma once

#include <gradual/gradual.h>

#include <algorithm>
#include <cmath>

namespace example {

using namespace gradual;
using optim::Optimizer, optim::ParamGroup, optim::UpdateOptions;

// v = alpha v + (1 - alpha) g^2;  w -= lr g / (sqrt(v) + eps), with L2 weight decay (Tieleman and Hinton 2012).
struct RMSProp : Optimizer {
  RMSProp(std::vector<ParamGroup> groups, const ParamGroup& rates, const UpdateOptions& precision = {},
          double alpha = 0.99)
      : Optimizer("rmsprop", {"square_avg"}, std::move(groups), rates, precision), alpha_(alpha) {}
  Tensor update(const Update& u) override {
    const Tensor g = u.gradient + u.group.weight_decay.value_or(0) * u.weight;
    Tensor& v = u.state[0];
    v = alpha_ * v + (1 - alpha_) * square(g);
    return u.weight - u.group.lr.value() * g / (sqrt(v) + u.group.eps.value_or(1e-8));
  }
  double alpha_;
};

// w -= lr (sign(beta1 m + (1 - beta1) g) + decay w);  m = beta2 m + (1 - beta2) g (Chen et al. 2023, arXiv 2302.06675).
struct Lion : Optimizer {
  Lion(std::vector<ParamGroup> groups, const ParamGroup& rates, const UpdateOptions& precision = {})
      : Optimizer("lion", {"exp_avg"}, std::move(groups), rates, precision) {}
  Tensor update(const Update& u) override {
    const double beta1 = u.group.beta1.value_or(0.9);
    const double beta2 = u.group.beta2.value_or(0.99);
    Tensor& m = u.state[0];
    const Tensor direction = sign(beta1 * m + (1 - beta1) * u.gradient);
    m = beta2 * m + (1 - beta2) * u.gradient;
    return u.weight - u.group.lr.value() * (direction + u.group.weight_decay.value_or(0) * u.weight);
  }
};

// The nearest orthogonal matrix to x [m, n], roughly, by five Newton-Schulz steps (Jordan 2024).
inline Tensor orthogonal(Tensor x) {
  const bool tall = x.size(0) > x.size(1);
  if (tall) x = x.t();
  x = x / maximum(norm(x), 1e-7);
  for (int i = 0; i < 5; ++i) {
    const Tensor gram = matmul(x, x.t());
    x = 3.4445 * x + matmul(-4.7750 * gram + 2.0315 * matmul(gram, gram), x);
  }
  return tall ? x.t() : x;
}

// Muon: momentum with Nesterov's look-ahead, made orthogonal (Jordan 2024). Matrices only; give other parameters to
// AdamW.
struct Muon : Optimizer {
  Muon(std::vector<ParamGroup> groups, const ParamGroup& rates, const UpdateOptions& precision = {})
      : Optimizer("muon", {"momentum"}, std::move(groups), rates, precision) {}
  Tensor update(const Update& u) override {
    if (u.weight.dim() != 2) throw Error("Muon: updates matrices, given " + to_string(u.weight.sizes()));
    const double mu = u.group.momentum.value_or(0.95);
    Tensor& m = u.state[0];
    m = mu * m + (1 - mu) * u.gradient;
    const double rows = static_cast<double>(u.weight.size(0));
    const double columns = static_cast<double>(u.weight.size(1));
    const double rate = u.group.lr.value() * std::sqrt(std::max(1.0, rows / columns));
    const Tensor kept = u.weight * (1 - u.group.lr.value() * u.group.weight_decay.value_or(0));
    return kept - rate * orthogonal(mu * m + (1 - mu) * u.gradient);
  }
};

}  // namespace example
