// CPU kernels of the optimizer rows: one pass over a parameter and everything that its update reads and writes.
#include <atomic>
#include <cmath>
#include <limits>
#include <type_traits>

#include "../convert.h"
#include "../counts.h"
#include "../dispatch.h"
#include "../parallel.h"
#include "kernels.h"

namespace gradual::cpu {
namespace {

constexpr std::int64_t kBlock = 1024;         // elements in a buffer on the stack
constexpr std::int64_t kGrain = 16 * kBlock;  // elements a thread takes at a time

// One tensor as values of the compute type C (double for f64, else float), a block at a time: its own memory where
// the dtype is C's, otherwise a buffer. An undefined tensor gives null.
template <class C> class Lane {
 public:
  explicit Lane(const Tensor& t) {
    if (!t.defined()) return;
    dtype_ = t.dtype();
    base_ = static_cast<char*>(t.raw());
  }
  explicit operator bool() const { return base_ != nullptr; }
  void* at(std::int64_t i) const { return base_ + i * static_cast<std::int64_t>(size_of(dtype_)); }
  DType dtype() const { return dtype_; }
  bool direct() const { return dtype_ == dtype_of<C>; }

  C* load(std::int64_t i, std::int64_t n) {
    if (!base_) return nullptr;
    if (direct()) return static_cast<C*>(at(i));
    if constexpr (std::is_same_v<C, float>) {
      load_to_float(dtype_, at(i), 1, buffer_, n);
    } else {
      load_to_double(dtype_, at(i), 1, buffer_, n);
    }
    return buffer_;
  }
  // Rounds `values` into the tensor; nothing to do where they are the tensor's own memory.
  void store(const C* values, std::int64_t i, std::int64_t n, CastCounts* counts) const {
    if (!base_ || values == at(i)) return;
    if constexpr (std::is_same_v<C, float>) {
      store_from_float(dtype_, values, at(i), 1, n, counts);
    } else {
      store_from_double(dtype_, values, at(i), 1, n, counts);
    }
  }

 private:
  DType dtype_ = dtype_of<C>;
  char* base_ = nullptr;
  C buffer_[kBlock];
};

// Calls f(begin, end) on chunks; on this thread alone while somebody counts, for counts belong to a thread.
template <class F> void for_chunks(std::int64_t n, const F& f) {
  if (n > 0) parallel_for(n, cast_counts() ? n : kGrain, f);
}

// What a step's row holds; adam_step_ has a second moment.
enum Input { kParam, kGradient, kMaster, kCompensation, kMoment };

template <class C> struct Lanes {
  explicit Lanes(const OpCall& c)
      : param(c[kParam]),
        gradient(c[kGradient]),
        master(c[kMaster]),
        compensation(c[kCompensation]),
        first(c[kMoment]),
        second(c.inputs.size() > kMoment + 1 ? c[kMoment + 1] : Tensor()) {}
  Lane<C> param, gradient, master, compensation, first, second;
};

// Stores the updated weights w: exactly into the master, rounded into the parameter, what the rounding took off into
// the compensation.
template <class C>
void store_weights(const Lanes<C>& l, C* w, std::int64_t i, std::int64_t n, const UpdateAttrs& how,
                   CastCounts* counts) {
  l.master.store(w, i, n, nullptr);
  if constexpr (std::is_same_v<C, float>) {
    if (how.stochastic) {
      store_stochastic(l.param.dtype(), w, l.param.at(i), n, how.key.seed, how.key.stream,
                       static_cast<std::uint64_t>(i), counts);
      return;
    }
    l.param.store(w, i, n, counts);
    if (!l.compensation) return;
    float rounded[kBlock];
    load_to_float(l.param.dtype(), l.param.at(i), 1, rounded, n);
    for (std::int64_t k = 0; k < n; ++k) w[k] -= rounded[k];
    l.compensation.store(w, i, n, nullptr);
  } else {
    l.param.store(w, i, n, counts);
  }
}

// update(w, g, m, v, n) changes the weights w and the moments m and v (or null) in place.
template <class C, class F> void run(const OpCall& c, const UpdateAttrs& how, const F& update) {
  for_chunks(c[kParam].numel(), [&](std::int64_t begin, std::int64_t end) {
    Lanes<C> l(c);
    for (std::int64_t i = begin; i < end; i += kBlock) {
      const std::int64_t n = end - i < kBlock ? end - i : kBlock;
      C* w = (l.master ? l.master : l.param).load(i, n);
      // What earlier roundings took off comes back first: the pair is one wide value (Kahan 1965).
      if (const C* lost = l.compensation.load(i, n))
        for (std::int64_t k = 0; k < n; ++k) w[k] += lost[k];
      C* m = l.first.load(i, n);
      C* v = l.second.load(i, n);
      update(w, l.gradient.load(i, n), m, v, n);
      l.first.store(m, i, n, nullptr);
      l.second.store(v, i, n, nullptr);
      store_weights(l, w, i, n, how, cast_counts());
    }
  });
  for (int i = kMaster; i < c.inputs.size(); ++i)
    if (c[i].defined()) c[i].unsafe_impl()->storage->version.fetch_add(1, std::memory_order_relaxed);
}

// Stochastic gradient descent with momentum, dampening, Nesterov's look-ahead (Sutskever et al. 2013) and L2 decay.
template <class C>
void sgd(const SgdAttrs& a, C* __restrict w, const C* __restrict g, C* __restrict m, std::int64_t n) {
  const auto lr = static_cast<C>(a.lr), decay = static_cast<C>(a.weight_decay), mu = static_cast<C>(a.momentum);
  const auto fresh = static_cast<C>(1 - a.dampening), scale = static_cast<C>(a.update.inverse_scale);
  const bool nesterov = a.nesterov;
  if (!m) {
    for (std::int64_t i = 0; i < n; ++i) {
      C d = g[i] * scale;
      if (decay != 0) d += decay * w[i];
      w[i] -= lr * d;
    }
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    C d = g[i] * scale;
    if (decay != 0) d += decay * w[i];
    m[i] = mu * m[i] + fresh * d;
    d = nesterov ? d + mu * m[i] : m[i];
    w[i] -= lr * d;
  }
}

// The numbers of an Adam step, rounded to the compute type.
template <class C> struct AdamNumbers {
  explicit AdamNumbers(const AdamAttrs& a)
      : scale(static_cast<C>(a.update.inverse_scale)),
        decay(static_cast<C>(a.weight_decay)),
        keep(static_cast<C>(1 - a.lr * a.weight_decay)),
        eps(static_cast<C>(a.eps)),
        new1(static_cast<C>(1 - a.beta1)),
        old2(static_cast<C>(a.beta2)),
        new2(static_cast<C>(1 - a.beta2)),
        step(static_cast<C>(a.lr / a.correction1)),
        root2(static_cast<C>(a.correction2_root)),
        coupled(!a.decoupled && a.weight_decay != 0),
        decoupled(a.decoupled && a.weight_decay != 0) {}
  C scale, decay, keep, eps, new1, old2, new2, step, root2;
  bool coupled, decoupled;
};

// Adam (Kingma and Ba 2015); decoupled: AdamW (Loshchilov and Hutter 2019).
template <class C>
void adam(const AdamAttrs& a, C* __restrict w, const C* __restrict g, C* __restrict m, C* __restrict v,
          std::int64_t n) {
  const AdamNumbers<C> k(a);
  for (std::int64_t i = 0; i < n; ++i) {
    C d = g[i] * k.scale;
    if (k.coupled) d += k.decay * w[i];
    C x = w[i];
    if (k.decoupled) x *= k.keep;
    m[i] += k.new1 * (d - m[i]);
    v[i] = k.old2 * v[i] + k.new2 * d * d;
    w[i] = x - k.step * m[i] / (std::sqrt(v[i]) / k.root2 + k.eps);
  }
}

// The same in the parameter's own dtype: each line is an op whose result is rounded, as if the update were composed.
class Rounded {
 public:
  explicit Rounded(DType dtype) : dtype_(dtype) {}
  template <class F> void operator()(float* x, std::int64_t n, const F& f) {
    for (std::int64_t i = 0; i < n; ++i) x[i] = f(i);
    store_from_float(dtype_, x, narrow_, 1, n);
    load_to_float(dtype_, narrow_, 1, x, n);
  }

 private:
  DType dtype_;
  std::uint16_t narrow_[kBlock];
};

void sgd_pure(const SgdAttrs& a, DType dtype, float* w, const float* g, float* m, std::int64_t n) {
  const auto lr = static_cast<float>(a.lr), decay = static_cast<float>(a.weight_decay);
  const auto mu = static_cast<float>(a.momentum), fresh = static_cast<float>(1 - a.dampening);
  const auto scale = static_cast<float>(a.update.inverse_scale);
  Rounded op(dtype);
  float d[kBlock];
  op(d, n, [&](std::int64_t i) { return g[i] * scale; });
  if (decay != 0) op(d, n, [&](std::int64_t i) { return d[i] + decay * w[i]; });
  if (m) {
    op(m, n, [&](std::int64_t i) { return mu * m[i]; });
    op(m, n, [&](std::int64_t i) { return m[i] + fresh * d[i]; });
    op(d, n, [&](std::int64_t i) { return a.nesterov ? d[i] + mu * m[i] : m[i]; });
  }
  op(w, n, [&](std::int64_t i) { return w[i] - lr * d[i]; });
}

void adam_pure(const AdamAttrs& a, DType dtype, float* w, const float* g, float* m, float* v, std::int64_t n) {
  const AdamNumbers<float> k(a);
  Rounded op(dtype);
  float d[kBlock];
  op(d, n, [&](std::int64_t i) { return g[i] * k.scale; });
  if (k.coupled) op(d, n, [&](std::int64_t i) { return d[i] + k.decay * w[i]; });
  if (k.decoupled) op(w, n, [&](std::int64_t i) { return w[i] * k.keep; });
  op(m, n, [&](std::int64_t i) { return m[i] + k.new1 * (d[i] - m[i]); });
  op(v, n, [&](std::int64_t i) { return k.old2 * v[i]; });
  op(v, n, [&](std::int64_t i) { return v[i] + k.new2 * d[i] * d[i]; });
  op(d, n, [&](std::int64_t i) { return std::sqrt(v[i]); });
  op(d, n, [&](std::int64_t i) { return d[i] / k.root2; });
  op(d, n, [&](std::int64_t i) { return d[i] + k.eps; });
  op(w, n, [&](std::int64_t i) { return w[i] - k.step * m[i] / d[i]; });
}

void sgd_step(const OpCall& c, Outputs&) {
  const auto& a = c.get<SgdAttrs>();
  const DType dtype = c[kParam].dtype();
  if (dtype == DType::f64) {
    run<double>(c, a.update,
                [&](double* w, const double* g, double* m, double*, std::int64_t n) { sgd(a, w, g, m, n); });
  } else {
    run<float>(c, a.update, [&](float* w, const float* g, float* m, float*, std::int64_t n) {
      a.update.pure ? sgd_pure(a, dtype, w, g, m, n) : sgd(a, w, g, m, n);
    });
  }
}

void adam_step(const OpCall& c, Outputs&) {
  const auto& a = c.get<AdamAttrs>();
  const DType dtype = c[kParam].dtype();
  if (!c[kMoment].defined() || !c[kMoment + 1].defined()) fail(describe(c) + ": needs two moments");
  if (dtype == DType::f64) {
    run<double>(c, a.update,
                [&](double* w, const double* g, double* m, double* v, std::int64_t n) { adam(a, w, g, m, v, n); });
  } else {
    run<float>(c, a.update, [&](float* w, const float* g, float* m, float* v, std::int64_t n) {
      a.update.pure ? adam_pure(a, dtype, w, g, m, v, n) : adam(a, w, g, m, v, n);
    });
  }
}

// The magnitude from which a value is not finite any more once it stands in `dtype`.
double finite_limit(DType dtype) {
  if (dtype == DType::f64 || dtype == DType::f32) return std::numeric_limits<double>::infinity();
  const FloatInfo f = float_info(dtype);
  return f.max + std::ldexp(f.epsilon, std::ilogb(f.max) - 1);
}

// Counts (and, with a target, writes) the products: one is not finite where the gradient is not, and also where a
// scale below 1 makes it overflow.
template <class C> std::int64_t unscale_as(const OpCall& c, C inverse) {
  const Tensor& gradient = c[1];
  const Tensor& target = c[2];
  const auto limit = static_cast<C>(finite_limit(target.defined() ? target.dtype() : dtype_of<C>));
  std::atomic<std::int64_t> total{0};
  for_chunks(gradient.numel(), [&](std::int64_t begin, std::int64_t end) {
    Lane<C> in(gradient);
    const Lane<C> out(target);
    C buffer[kBlock];
    std::int64_t bad = 0;
    for (std::int64_t i = begin; i < end; i += kBlock) {
      const std::int64_t n = end - i < kBlock ? end - i : kBlock;
      const C* from = in.load(i, n);
      C* to = out && out.direct() ? static_cast<C*>(out.at(i)) : buffer;
      for (std::int64_t k = 0; k < n; ++k) to[k] = from[k] * inverse;
      for (std::int64_t k = 0; k < n; ++k) bad += std::abs(to[k]) < limit ? 0 : 1;
      out.store(to, i, n, cast_counts());
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
  if (c[2].defined()) c[2].unsafe_impl()->storage->version.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

void register_optimizer() {
  KernelFn* cpu = columns().cpu;
  cpu[static_cast<int>(OpId::unscale_)] = unscale;
  cpu[static_cast<int>(OpId::sgd_step_)] = sgd_step;
  cpu[static_cast<int>(OpId::adam_step_)] = adam_step;
}

}  // namespace gradual::cpu
