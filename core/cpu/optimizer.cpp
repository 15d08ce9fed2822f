// CPU kernels of the optimizer rows: one pass over a parameter and everything that its update reads and writes.
#include <atomic>
#include <cmath>
#include <limits>

#include "../float_types.h"
#include "kernels.h"
#include "loops.h"

namespace gradual::cpu {
namespace {

// What a step's row holds; adam_step_ has a second moment.
enum Input { kParam, kGradient, kMaster, kCompensation, kMoment };

void bump_version(const Tensor& t) {
  if (t.defined()) t.unsafe_impl()->storage->version.fetch_add(1, std::memory_order_relaxed);
}

// formula(round, w, g, m, v, n) changes the weights w and the moments m and v (or null) in place; round goes on each
// result of an operation where the update is pure. The weights are stored exactly into the master and rounded into the
// parameter; what that took off goes into the compensation, and comes back first in the next step: the pair is one wide
// value (Kahan 1965).
template <class C, class Round, class F>
void run(const OpCall& c, const UpdateAttrs& how, const F& formula, const Round& round) {
  const Tensor& p = c[kParam];
  parallel_counted(p.numel(), kGrain, dtype_of<C>, p.dtype(), [&](auto begin, auto end, CastCounts* counts) {
    const Dense<C> param(p), gradient(c[kGradient]), master(c[kMaster]), lost(c[kCompensation]), first(c[kMoment]);
    const Dense<C> second(c.inputs.size() > kMoment + 1 ? c[kMoment + 1] : Tensor());
    alignas(64) C buffers[5][kBlock];
    for (std::int64_t i = begin; i < end; i += kBlock) {
      const std::int64_t n = std::min(end - i, kBlock);
      C* w = (master ? master : param).load(i, n, buffers[0]);
      C* rest = lost.load(i, n, buffers[1]);
      for (std::int64_t k = 0; rest && k < n; ++k) w[k] += rest[k];
      C* m = first.load(i, n, buffers[2]);
      C* v = second.load(i, n, buffers[3]);
      formula(round, w, static_cast<const C*>(gradient.load(i, n, buffers[4])), m, v, n);
      first.store(m, i, n, nullptr);
      second.store(v, i, n, nullptr);
      master.store(w, i, n, nullptr);
      if constexpr (std::is_same_v<C, float>) {
        if (how.stochastic) {
          store_stochastic(p.dtype(), w, param.at(i), n, how.key.seed, how.key.stream, static_cast<std::uint64_t>(i),
                           counts);
          continue;
        }
      }
      param.store(w, i, n, counts);
      if (!rest) continue;
      load(p.dtype(), param.at(i), 1, rest, n);
      for (std::int64_t k = 0; k < n; ++k) rest[k] = w[k] - rest[k];
      lost.store(rest, i, n, nullptr);
    }
  });
  for (int i = kMaster; i < c.inputs.size(); ++i) bump_version(c[i]);
}

template <class F> void step(const OpCall& c, const UpdateAttrs& how, const F& formula) {
  const DType dtype = c[kParam].dtype();
  if (dtype == DType::f64) return run<double>(c, how, formula, [](double x) { return x; });
  if (how.pure && dtype == DType::f16)
    return run<float>(c, how, formula, [](float x) { return static_cast<float>(Half(x)); });
  if (how.pure && dtype == DType::bf16)
    return run<float>(c, how, formula, [](float x) { return static_cast<float>(BFloat16(x)); });
  run<float>(c, how, formula, [](float x) { return x; });
}

// Stochastic gradient descent with momentum, dampening, Nesterov's look-ahead (Sutskever et al. 2013) and L2 decay.
void sgd_step(const OpCall& c, Outputs&) {
  const auto& a = c.get<SgdAttrs>();
  step(c, a.update, [&]<class C>(auto r, C* __restrict w, const C* __restrict g, C* __restrict m, C*, std::int64_t n) {
    const auto lr = static_cast<C>(a.lr), decay = static_cast<C>(a.weight_decay), mu = static_cast<C>(a.momentum);
    const auto fresh = static_cast<C>(1 - a.dampening), scale = static_cast<C>(a.update.inverse_scale);
    const bool decays = decay != 0, nesterov = a.nesterov, has_momentum = m != nullptr;
    for (std::int64_t i = 0; i < n; ++i) {
      C d = r(g[i] * scale);
      if (decays) d = r(d + decay * w[i]);
      if (has_momentum) {
        m[i] = r(r(mu * m[i]) + fresh * d);
        d = nesterov ? r(d + mu * m[i]) : m[i];
      }
      w[i] = r(w[i] - lr * d);
    }
  });
}

// Adam (Kingma and Ba 2015); decoupled: AdamW (Loshchilov and Hutter 2019).
void adam_step(const OpCall& c, Outputs&) {
  const auto& a = c.get<AdamAttrs>();
  if (!c[kMoment].defined() || !c[kMoment + 1].defined()) fail(c, "needs two moments");
  const bool coupled = !a.decoupled && a.weight_decay != 0, decoupled = a.decoupled && a.weight_decay != 0;
  step(c, a.update,
       [&, coupled, decoupled]<class C>(auto r, C* __restrict w, const C* __restrict g, C* __restrict m,
                                        C* __restrict v, std::int64_t n) {
         const auto scale = static_cast<C>(a.update.inverse_scale), eps = static_cast<C>(a.eps);
         const auto decay = static_cast<C>(a.weight_decay), keep = static_cast<C>(1 - a.lr * a.weight_decay);
         const auto new1 = static_cast<C>(1 - a.beta1), old2 = static_cast<C>(a.beta2),
                    new2 = static_cast<C>(1 - a.beta2);
         const auto rate = static_cast<C>(a.lr / a.correction1), root2 = static_cast<C>(a.correction2_root);
         for (std::int64_t i = 0; i < n; ++i) {
           C d = r(g[i] * scale);
           if (coupled) d = r(d + decay * w[i]);
           const C x = decoupled ? r(w[i] * keep) : w[i];
           m[i] = r(m[i] + new1 * (d - m[i]));
           v[i] = r(r(old2 * v[i]) + new2 * d * d);
           w[i] = r(x - rate * m[i] / r(r(r(std::sqrt(v[i])) / root2) + eps));
         }
       });
}

// Counts (and, with a target, writes) the products: one is not finite where the gradient is not, and also where a
// scale below 1 makes it overflow.
template <class C> std::int64_t unscale_as(const OpCall& c, C inverse) {
  const DType to = c[2].defined() ? c[2].dtype() : dtype_of<C>;
  std::atomic<std::int64_t> total{0};
  parallel_counted(c[1].numel(), kGrain, dtype_of<C>, to, [&](auto begin, auto end, CastCounts* counts) {
    const Dense<C> in(c[1]), out(c[2]);
    alignas(64) C buffers[2][kBlock];
    std::int64_t bad = 0;
    for (std::int64_t i = begin; i < end; i += kBlock) {
      const std::int64_t n = std::min(end - i, kBlock);
      const C* from = in.load(i, n, buffers[0]);
      C* products = out.target(i, buffers[1]);
      for (std::int64_t k = 0; k < n; ++k) products[k] = from[k] * inverse;
      out.store(products, i, n, counts);
      out.load(i, n, buffers[1]);  // as the target has them
      for (std::int64_t k = 0; k < n; ++k) bad += std::abs(products[k]) < std::numeric_limits<C>::infinity() ? 0 : 1;
    }
    total.fetch_add(bad, std::memory_order_relaxed);
  });
  return total.load();
}

void unscale(const OpCall& c, Outputs&) {
  const auto& a = c.get<UnscaleAttrs>();
  const auto inverse = static_cast<float>(a.inverse_scale);  // rounded once, for every dtype alike
  const std::int64_t bad = c[1].dtype() == DType::f64 ? unscale_as<double>(c, inverse) : unscale_as<float>(c, inverse);
  auto* found = c[0].data<std::int64_t>();
  found[0] += bad;
  found[a.slot] += bad;
  bump_version(c[2]);
}

}  // namespace

void register_optimizer() {
  set_kernel(OpId::unscale_, unscale);
  set_kernel(OpId::sgd_step_, sgd_step);
  set_kernel(OpId::adam_step_, adam_step);
}

}  // namespace gradual::cpu
