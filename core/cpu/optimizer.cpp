// CPU kernels of the optimizers' ops: one pass over all parameters of a call and over all that their update reads and
// writes.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "../formats/cast_counts.h"
#include "../formats/float_types.h"
#include "../kernels/loops.h"
#include "../kernels/update_rules.h"
#include "../support/multiversion.h"
#include "kernels.h"
#include "subnormal.h"

namespace gradual::cpu {
namespace {

using update_rules::kParam, update_rules::kGradient, update_rules::kMaster, update_rules::kCompensation,
    update_rules::kMoment;

// Calls f(part, begin, end) for ranges that cover the elements of all parts. Part k has as many elements as input first
// + k * each of the call. Threads take chunks of all parts together; each part begins on a cache line of its own.
template <class F> void for_parts(const OpCall& c, int first, int each, const F& f) {
  constexpr std::int64_t kLine = 64;  // elements: at least one cache line, for any dtype
  std::vector<std::int64_t> begins = {0};
  begins.reserve(static_cast<std::size_t>(c.inputs.size() / each) + 1);
  for (int i = first; i < c.inputs.size(); i += each)
    begins.push_back(begins.back() + (c[i].numel() + kLine - 1) / kLine * kLine);
  std::vector<CastCounts> counts(cast_counts() ? begins.size() - 1 : 0);
  parallel_for(begins.back(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    auto at = std::upper_bound(begins.begin(), begins.end(), begin) - 1;
    for (; *at < end; ++at) {
      const int part = static_cast<int>(at - begins.begin());
      const std::int64_t from = std::max<std::int64_t>(0, begin - *at);
      const std::int64_t to = std::min(end - *at, c[first + part * each].numel());
      const CountScope scope(counts.empty() ? nullptr : &counts[static_cast<std::size_t>(part)]);
      if (from < to) f(part, from, to);
    }
  });
  add_cast_counts(counts);
}

// Updates elements [begin, end) of one parameter, whose tensors begin at in[0]. formula(round, w, g, m, v, n) changes
// the weights w and the moments m and v (each may be null) in place; a pure update applies `round` to the result of
// each operation. The weights are stored exactly into the master and rounded into the parameter. The compensation
// stores the rounding error, and the next step adds it first, so that parameter and compensation form one wide value
// (Kahan 1965).
template <class C, class Round, class F>
void update(const Tensor* const* in, const Tensor& second_moment, const RandomKey* stochastic, std::int64_t begin,
            std::int64_t end, const F& formula, const Round& round) {
  const Dense<C> param(*in[kParam]);
  const Dense<C> gradient(*in[kGradient]);
  const Dense<C> master(*in[kMaster]);
  const Dense<C> lost(*in[kCompensation]);
  const Dense<C> first(*in[kMoment]);
  const Dense<C> second(second_moment);
  const DType dtype = in[kParam]->dtype();
  CastCounts counted;
  CastCounts* const total = counts_for(dtype_of<C>, dtype);
  CastCounts* const counts = total ? &counted : nullptr;
  alignas(64) C buffers[5][kBlock];
  for (std::int64_t i = begin; i < end; i += kBlock) {
    const std::int64_t n = std::min(end - i, kBlock);
    C* w = (master ? master : param).load(i, n, buffers[0]);
    C* rest = lost.load(i, n, buffers[1]);
    if (rest)
      vectorized([=] {
        for (std::int64_t k = 0; k < n; ++k) w[k] += rest[k];
      });
    C* m = first.load(i, n, buffers[2]);
    C* v = second.load(i, n, buffers[3]);
    const C* g = gradient.load(i, n, buffers[4]);
    vectorized([=, &formula, &round] { formula(round, w, g, m, v, n); });
    first.store(m, i, n, nullptr);
    second.store(v, i, n, nullptr);
    master.store(w, i, n, nullptr);
    if constexpr (std::is_same_v<C, float>) {
      if (stochastic) {
        store_stochastic(dtype, w, param.at(i), n, stochastic->seed, stochastic->stream, static_cast<std::uint64_t>(i),
                         counts);
        continue;
      }
    }
    param.store(w, i, n, counts);
    if (!rest) continue;
    fetch_and_cast(dtype, param.at(i), 1, rest, n);
    vectorized([=] {
      for (std::int64_t k = 0; k < n; ++k) rest[k] = w[k] - rest[k];
    });
    lost.store(rest, i, n, nullptr);
  }
  if (total) merge_counts(total, counted);
}

template <class F> void step(const OpCall& c, const UpdateAttrs& how, int moments, const F& formula) {
  const int each = kMoment + moments;
  const Tensor none;
  for_parts(c, kParam, each, [&](int part, std::int64_t begin, std::int64_t end) {
    const Tensor* const* in = c.inputs.data() + part * each;
    const Tensor& second = moments > 1 ? *in[kMoment + 1] : none;
    const DType dtype = in[kParam]->dtype();
    const RandomKey key{how.key.seed, how.key.stream + static_cast<std::uint64_t>(part)};
    const auto run = [&]<class C>(C, const auto& round) {
      update<C>(in, second, how.stochastic && size_of(dtype) == 2 ? &key : nullptr, begin, end, formula, round);
    };
    if (dtype == DType::f64) run(double{}, [](double x) { return x; });
    else if (how.pure && dtype == DType::f16) run(float{}, [](float x) { return static_cast<float>(Half(x)); });
    else if (how.pure && dtype == DType::bf16) run(float{}, [](float x) { return static_cast<float>(BFloat16(x)); });
    else run(float{}, [](float x) { return x; });
  });
  for (int i = 1; i < c.inputs.size(); ++i)  // dispatch bumps the version of input 0
    if (i % each != kGradient) bump_version(c[i]);
}

// Calls f with std::true_type or std::false_type for each flag, so that a loop in f has no branches: g++ 12 would turn
// them into masked moves through the stack.
template <class F> void with_flags(const F& f) { f(); }
template <class F, class... Rest> void with_flags(const F& f, bool flag, Rest... rest) {
  const auto with = [&](auto known) { with_flags([&](auto... others) { f(known, others...); }, rest...); };
  flag ? with(std::true_type{}) : with(std::false_type{});
}

void sgd_step(const OpCall& c, Outputs&) {
  const auto& a = c.get<SgdAttrs>();
  // If a weight gets no gradient, for example because its unit is never active, its momentum decays to a few times the
  // smallest subnormal float and stays there: 0.9 times that number rounds to itself.
  const auto is_rate = [](double x) { return x >= 0 && static_cast<float>(x) <= 1; };
  const bool careful = subnormals_are_slow() && is_rate(a.momentum) && is_rate(a.lr);
  step(c, a.update, 1,
       [&, careful]<class C>(auto r, C* __restrict w, const C* __restrict g, C* __restrict m, C*, std::int64_t n) {
         const update_rules::Sgd<C> rule(a);
         const auto loop = [=](auto decays, auto has_momentum, auto nesterov) {
           const auto run = [=](std::int64_t from, auto count, auto times) {
             for (std::int64_t i = from; i < from + count; ++i)
               rule.update(r, w[i], g[i], has_momentum ? m + i : nullptr, decays, has_momentum, nesterov, times);
           };
           std::int64_t i = 0;
           if constexpr (std::is_same_v<C, float>) {
             constexpr std::integral_constant<std::int64_t, 64> kRun;  // numbers of one check for subnormal ones
             for (; has_momentum && careful && i + kRun <= n; i += kRun)
               if (any_subnormal(m + i, kRun)) run(i, kRun, TimesSubnormal());
               else run(i, kRun, update_rules::Times());
           }
           run(i, n - i, update_rules::Times());
         };
         with_flags(loop, a.weight_decay != 0, m != nullptr, a.nesterov);
       });
}

void adam_step(const OpCall& c, Outputs&) {
  const auto& a = c.get<AdamAttrs>();
  for (int i = kMoment; i < c.inputs.size(); i += kMoment + 2)
    if (!c[i].defined() || !c[i + 1].defined()) throw_error(c, "needs two moments");
  step(c, a.update, 2,
       [&]<class C>(auto r, C* __restrict w, const C* __restrict g, C* __restrict m, C* __restrict v, std::int64_t n) {
         const update_rules::Adam<C> rule(a);
         const auto loop = [=](auto decays, auto decoupled) {
           for (std::int64_t i = 0; i < n; ++i) rule.update(r, w[i], g[i], m[i], v[i], decays, decoupled);
         };
         with_flags(loop, a.weight_decay != 0, a.decoupled);
       });
}

// The number of elements that are not finite. It has 32 bits, so that its vectors are as wide as those of floats.
template <class C> std::int64_t count_nonfinite(const C* x, std::int64_t n) {
  std::int32_t count = 0;
  for (std::int64_t k = 0; k < n; ++k) count += std::abs(x[k]) < std::numeric_limits<C>::infinity() ? 0 : 1;
  return count;
}

// Counts the products gradient * inverse of elements [begin, end) that are not finite, and writes all products to the
// target if it is defined. A product is not finite if the gradient is not, or if a scale below 1 makes it overflow.
template <class C>
std::int64_t unscale_part(const Tensor& gradient, const Tensor& target, C inverse, std::int64_t begin,
                          std::int64_t end) {
  const Dense<C> in(gradient);
  const Dense<C> out(target);
  CastCounts counted;
  CastCounts* const total = target.defined() ? counts_for(dtype_of<C>, target.dtype()) : nullptr;
  alignas(64) C buffers[2][kBlock];
  std::int64_t bad = 0;
  for (std::int64_t i = begin; i < end; i += kBlock) {
    const std::int64_t n = std::min(end - i, kBlock);
    const C* from = in.load(i, n, buffers[0]);
    C* products = out.target(i, buffers[1]);  // the buffer if there is no target
    vectorized([=] {
      for (std::int64_t k = 0; k < n; ++k) products[k] = from[k] * inverse;
    });
    out.store(products, i, n, total ? &counted : nullptr);
    out.load(i, n, buffers[1]);  // as the target rounds them
    bad += vectorized([=] { return count_nonfinite(products, n); });
  }
  if (total) merge_counts(total, counted);
  return bad;
}

void unscale(const OpCall& c, Outputs&) {
  const auto& a = c.get<UnscaleAttrs>();
  const auto inverse = static_cast<float>(a.inverse_scale);  // rounded to f32 once, for f64 gradients too
  auto* found = c[0].data<std::int64_t>();
  for_parts(c, 1, 2, [&](int part, std::int64_t begin, std::int64_t end) {
    const Tensor& gradient = c[1 + 2 * part];
    const Tensor& target = c[2 + 2 * part];
    const std::int64_t bad = gradient.dtype() == DType::f64
                                 ? unscale_part<double>(gradient, target, inverse, begin, end)
                                 : unscale_part<float>(gradient, target, inverse, begin, end);
    if (bad == 0) return;
    for (const std::int64_t slot : {std::int64_t{0}, a.slot + part})
      std::atomic_ref(found[slot]).fetch_add(bad, std::memory_order_relaxed);
  });
  for (int i = 2; i < c.inputs.size(); i += 2) bump_version(c[i]);
}

}  // namespace

void register_optimizer() {
  set_kernel(OpId::unscale_, unscale);
  set_kernel(OpId::sgd_step_, sgd_step);
  set_kernel(OpId::adam_step_, adam_step);
}

}  // namespace gradual::cpu
