// The optimizers' formulas for one element; all backends share them. core/cpu/optimizer.cpp and
// cuda/kernels/optimizer.cu loop over the tensors. C is the compute type. `r` is applied to the result of each
// operation; in a pure update it rounds. Flags are bools, or std::true_type and std::false_type, which compile to no
// branch.
#pragma once

#include <cmath>
#include <cstdint>

#include "../ops/attrs.h"
#include "../support/host_device.h"

namespace gradual::update_rules {

// The inputs of a step for each parameter. adam_step_ has a second moment after them.
enum Input { kParam, kGradient, kMaster, kCompensation, kMoment };

// base^n for n >= 0 by squaring. Every machine gives the same bits, which std::pow does not guarantee. For a base below
// 1 the error is below n eps base^n.
GRADUAL_HD inline double whole_power(double base, std::int64_t n) {
  double result = 1;
  for (; n > 0; n /= 2) {
    if (n % 2 == 1) result *= base;
    base *= base;
  }
  return result;
}

// Adapts the attributes to parameters that had `steps` updates before.
GRADUAL_HD inline void count_steps(SgdAttrs& a, std::int64_t steps) {
  if (steps == 0) a.dampening = 0;  // the first momentum is the gradient itself
}
GRADUAL_HD inline void count_steps(AdamAttrs& a, std::int64_t steps) {
  a.correction1 = 1 - whole_power(a.beta1, steps + 1);
  a.correction2_root = std::sqrt(1 - whole_power(a.beta2, steps + 1));
}

// The product of a rate and a number. A kernel may use another function with the same bits.
struct Times {
  template <class C> GRADUAL_HD C operator()(C rate, C x) const { return rate * x; }
};

// Stochastic gradient descent with momentum, dampening, Nesterov's look-ahead (Sutskever et al. 2013) and L2 decay.
template <class C> struct Sgd {
  C lr, decay, mu, fresh, scale;
  bool nesterov;

  Sgd() = default;
  GRADUAL_HD explicit Sgd(const SgdAttrs& a)
      : lr(static_cast<C>(a.lr)),
        decay(static_cast<C>(a.weight_decay)),
        mu(static_cast<C>(a.momentum)),
        fresh(static_cast<C>(1 - a.dampening)),
        scale(static_cast<C>(a.update.inverse_scale)),
        nesterov(a.nesterov) {}

  // Updates the weight w and, if has_momentum, the momentum *m by the gradient g.
  template <class R, class Decays, class HasMomentum, class Nesterov, class By = Times>
  GRADUAL_HD void update(R r, C& w, C g, C* m, Decays decays, HasMomentum has_momentum, Nesterov looks_ahead,
                         By times = {}) const {
    C d = r(g * scale);
    if (decays) d = r(d + decay * w);
    if (has_momentum) {
      *m = r(r(times(mu, *m)) + fresh * d);
      d = looks_ahead ? r(d + times(mu, *m)) : *m;
    }
    w = r(w - times(lr, d));
  }
};

// Adam (Kingma and Ba 2015); decoupled: AdamW (Loshchilov and Hutter 2019).
template <class C> struct Adam {
  C scale, eps, decay, keep, new1, old2, new2, rate, root2;
  bool decoupled;

  Adam() = default;
  GRADUAL_HD explicit Adam(const AdamAttrs& a)
      : scale(static_cast<C>(a.update.inverse_scale)),
        eps(static_cast<C>(a.eps)),
        decay(static_cast<C>(a.weight_decay)),
        keep(static_cast<C>(1 - a.lr * a.weight_decay)),
        new1(static_cast<C>(1 - a.beta1)),
        old2(static_cast<C>(a.beta2)),
        new2(static_cast<C>(1 - a.beta2)),
        rate(static_cast<C>(a.lr / a.correction1)),
        root2(static_cast<C>(a.correction2_root)),
        decoupled(a.decoupled) {}

  template <class R, class Decays, class Decoupled>
  GRADUAL_HD void update(R r, C& w, C g, C& m, C& v, Decays decays, Decoupled apart) const {
    C d = r(g * scale);
    if (decays && !apart) d = r(d + decay * w);
    const C x = decays && apart ? r(w * keep) : w;
    m = r(m + new1 * (d - m));
    v = r(r(old2 * v) + new2 * d * d);
    w = r(x - rate * m / r(r(r(std::sqrt(v)) / root2) + eps));
  }
};

}  // namespace gradual::update_rules
