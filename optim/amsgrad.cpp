#include "amsgrad.h"

#include <cmath>

#include "../core/ops/ops.h"

namespace gradual::optim {

AmsGrad::AmsGrad(std::vector<ParamGroup> groups, const AmsGradOptions& o)
    : Optimizer("amsgrad", {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, std::move(groups),
                {.lr = o.lr, .weight_decay = o.weight_decay, .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps},
                o.precision),
      decoupled_(o.decoupled) {}

Tensor AmsGrad::update(const Update& u) {
  const double lr = u.group.lr.value();
  const double beta1 = u.group.beta1.value();
  const double beta2 = u.group.beta2.value();
  const double decay = u.group.weight_decay.value();
  Tensor weight = u.weight;
  Tensor gradient = u.gradient;
  if (decay != 0 && decoupled_) weight = weight * (1 - lr * decay);
  if (decay != 0 && !decoupled_) gradient = gradient + decay * weight;
  Tensor& first = u.state[0];
  Tensor& second = u.state[1];
  Tensor& largest = u.state[2];
  first = beta1 * first + (1 - beta1) * gradient;
  second = beta2 * second + (1 - beta2) * square(gradient);
  largest = maximum(largest, second);
  const auto step = static_cast<double>(u.step);
  const double root = std::sqrt(1 - std::pow(beta2, step));
  const double rate = lr / (1 - std::pow(beta1, step));
  return weight - rate * first / (sqrt(largest) / root + u.group.eps.value());
}

}  // namespace gradual::optim
