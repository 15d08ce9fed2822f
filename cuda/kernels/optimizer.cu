// Kernels of the optimizer ops, counterpart of core/cpu/optimizer.cpp: one launch for all parameters of a call, one
// pass over everything that their update reads and writes, with the same bits.
#include <cmath>
#include <limits>
#include <string>

#include "../../core/formats/cast_counts.h"
#include "../../core/formats/rounding_kernels.h"
#include "../../core/kernels/update_rules.h"
#include "../../core/support/philox.h"
#include "../runtime/cast_counts.h"
#include "kernels.h"
#include "tensor_lists.h"

namespace gradual::cuda {
namespace {

using update_rules::kParam, update_rules::kGradient, update_rules::kMaster, update_rules::kCompensation,
    update_rules::kMoment;
// the second moment
constexpr int kSecond = kMoment + 1;
constexpr int kTensors = kSecond + 1;

// parts per table
constexpr int kFewParts = 40;
constexpr int kManyParts = 400;

void check_dtypes(const OpCall& c, int first) {
  for (int i = first; i < c.inputs.size(); ++i)
    if (c[i].defined() && (!c[i].is_floating() || is_f8(c[i].dtype())))
      throw_error(c, "input " + std::to_string(i) + " is " + std::string(to_string(c[i].dtype())) +
                         "; a GPU's optimizer takes f64, f32, f16 and bf16");
}

// Counts, part by part, what stores into f16 and bf16 lose. f32 and f64 lose nothing.
class HalfCounts : Pinned {
 public:
  explicit HalfCounts(int parts) : f16_(DType::f32, DType::f16, parts), bf16_(DType::f32, DType::bf16, parts) {}
  struct Counters {
    Counter f16, bf16;  // of the table's first part
    __device__ void add(int part, DType stored, double x, double y) const {
      if (stored == DType::f16) f16.of_tensor(part).add(x, y);
      if (stored == DType::bf16) bf16.of_tensor(part).add(x, y);
    }
  };
  Counters counters(int begin) const { return {f16_.counter().of_tensor(begin), bf16_.counter().of_tensor(begin)}; }

 private:
  CountingStores f16_, bf16_;
};

// --- unscale_ --------------------------------------------------------------------------------------------------------

template <int kMost> struct Unscale {
  Table<Part<2>, kMost> parts;
  float inverse;
  const float* device_inverse;
  unsigned long long* found;
  std::int64_t slot;  // in `found`, of the first part
  HalfCounts::Counters counters;

  __device__ void operator()(const Block& block) const {
    const int at = parts.find(block.index);
    const DType dtype = parts.part[at].dtype[0];
    const int bad = sum_block(block, dtype == DType::f64 ? chunk<double>(block, at) : chunk<float>(block, at));
    if (block.thread != 0 || bad == 0) return;
    atomicAdd(found, static_cast<unsigned long long>(bad));
    atomicAdd(found + slot + at, static_cast<unsigned long long>(bad));
  }

 private:
  // The number of non-finite products of this thread; as rounded by the target if there is one.
  template <class C> __device__ int chunk(const Block& block, int at) const {
    const Part<2>& p = parts.part[at];
    const std::int64_t begin = (block.index - p.first_chunk) * kPartChunk;
    const std::int64_t end = begin + kPartChunk < p.numel ? begin + kPartChunk : p.numel;
    const C factor = device_inverse ? *device_inverse : inverse;
    int bad = 0;
    for (std::int64_t i = begin + kFour * block.thread; i < end; i += kFour * block.threads) {
      const int n = end - i < kFour ? static_cast<int>(end - i) : kFour;
      C x[kFour] = {};
      C stored[kFour] = {};
      load_four(p, 0, i, n, x);
      for (int j = 0; j < kFour; ++j) {
        x[j] = x[j] * factor;
        stored[j] = x[j];
      }
      store_four(p, 1, i, n, x);
      load_four(p, 1, i, n, stored);
      for (int j = 0; j < kFour; ++j) {
        if (j >= n) break;
        if (p.data[1]) counters.add(at, p.dtype[1], x[j], stored[j]);
        bad += std::abs(stored[j]) < std::numeric_limits<C>::infinity() ? 0 : 1;
      }
    }
    return bad;
  }
};

void unscale(const OpCall& c, Outputs&) {
  const auto& a = c.get<UnscaleAttrs>();
  check_dtypes(c, 1);
  const int parts = (c.inputs.size() - 1) / 2;
  const HalfCounts counts(parts);
  const auto make = [&](int part) {
    const Tensor* const pair[] = {&c[1 + 2 * part], &c[2 + 2 * part]};
    return Part<2>(pair);
  };
  in_tables<kFewParts, kManyParts>(parts, make, [&]<int kMost>(const Table<Part<2>, kMost>& table, int begin) {
    for_blocks(table.chunks,
               Unscale<kMost>{table, static_cast<float>(a.inverse_scale), a.device_inverse,
                              static_cast<unsigned long long*>(c[0].raw()), a.slot + begin, counts.counters(begin)});
  });
  for (int i = 2; i < c.inputs.size(); i += 2) bump_version(c[i]);
}

// --- steps -----------------------------------------------------------------------------------------------------------

// The formulas over four elements, their flags read from the rule.
template <class C> struct SgdRule : update_rules::Sgd<C> {
  using Attrs = SgdAttrs;
  using update_rules::Sgd<C>::Sgd;
  template <class R>
  __device__ void four(R r, bool has_momentum, C (&w)[kFour], const C (&g)[kFour], C (&m)[kFour], C (&)[kFour]) const {
    for (int j = 0; j < kFour; ++j) this->update(r, w[j], g[j], &m[j], this->decay != 0, has_momentum, this->nesterov);
  }
};
template <class C> struct AdamRule : update_rules::Adam<C> {
  using Attrs = AdamAttrs;
  using update_rules::Adam<C>::Adam;
  template <class R>
  __device__ void four(R r, bool, C (&w)[kFour], const C (&g)[kFour], C (&m)[kFour], C (&v)[kFour]) const {
    for (int j = 0; j < kFour; ++j) this->update(r, w[j], g[j], m[j], v[j], this->decay != 0, this->decoupled);
  }
};

// The terms of one parameter's update, apart from its tensors.
template <template <class> class UpdateRule> struct Terms {
  UpdateRule<float> narrow;
  UpdateRule<double> wide;
  std::uint64_t stream;  // of stochastic rounding
  template <class C> GRADUAL_HD const UpdateRule<C>& of() const {
    if constexpr (std::is_same_v<C, double>) return wide;
    else return narrow;
  }
};
template <template <class> class UpdateRule, class A>
GRADUAL_HD Terms<UpdateRule> terms_of(const A& a, std::uint64_t stream) {
  return {UpdateRule<float>(a), UpdateRule<double>(a), stream};
}

// Computes each parameter's terms from rates, step counts and loss scale in GPU memory, and increments the counts.
template <template <class> class UpdateRule> struct Prepare {
  using A = typename UpdateRule<float>::Attrs;
  A attrs;
  Terms<UpdateRule>* terms;
  __device__ void operator()(std::int64_t part) const {
    A a = attrs;
    const DeviceStep& d = attrs.update.device;
    std::uint64_t stream = a.update.key.stream + static_cast<std::uint64_t>(part);
    if (d.rates) static_cast<Rates&>(a) = *d.rates;
    if (d.inverse_scale) a.update.inverse_scale = *d.inverse_scale;
    if (d.steps) {
      const std::int64_t steps = d.steps[part];
      update_rules::count_steps(a, steps);
      stream += static_cast<std::uint64_t>(steps) << 24;
      if (!d.found || *d.found == 0) d.steps[part] = steps + 1;
    }
    terms[part] = terms_of<UpdateRule>(a, stream);
  }
};

struct Exact {
  template <class C> __device__ C operator()(C x) const { return x; }
};
template <class T> struct RoundTo {
  __device__ float operator()(float x) const { return static_cast<float>(T(x)); }
};

using detail::RoundingSpec;
RoundingSpec<std::uint32_t> by_chance(DType dtype) {
  return detail::rounding_spec<std::uint32_t>(
      {format_of(dtype), {.mode = RoundingMode::stochastic}, Overflow::ieee, {}}, true);
}

template <template <class> class UpdateRule, int kMost> struct Step {
  Table<Part<kTensors>, kMost> parts;
  Terms<UpdateRule> all;          // the terms of all parts, with the stream of the first
  const Terms<UpdateRule>* each;  // not null: the terms by part, instead of `all`
  const std::int64_t* found;      // not 0: nothing happens
  bool pure, stochastic;
  std::uint64_t seed;
  RoundingSpec<std::uint32_t> f16, bf16;
  HalfCounts::Counters counters;

  __device__ void operator()(const Block& block) const {
    if (found && *found != 0) return;
    const int at = parts.find(block.index);
    const Part<kTensors>& p = parts.part[at];
    const DType dtype = p.dtype[kParam];
    if (dtype == DType::f64) chunk<double>(block, at, Exact{});
    else if (pure && dtype == DType::f16) chunk<float>(block, at, RoundTo<Half>{});
    else if (pure && dtype == DType::bf16) chunk<float>(block, at, RoundTo<BFloat16>{});
    else chunk<float>(block, at, Exact{});
  }

 private:
  template <class C, class R> __device__ void chunk(const Block& block, int at, R round) const {
    const Part<kTensors>& p = parts.part[at];
    const UpdateRule<C> rule = (each ? each[at] : all).template of<C>();
    const std::uint64_t stream = each ? each[at].stream : all.stream + static_cast<std::uint64_t>(at);
    const std::int64_t begin = (block.index - p.first_chunk) * kPartChunk;
    const std::int64_t end = begin + kPartChunk < p.numel ? begin + kPartChunk : p.numel;
    for (std::int64_t i = begin + kFour * block.thread; i < end; i += kFour * block.threads)
      update<C>(at, rule, stream, i, end - i < kFour ? static_cast<int>(end - i) : kFour, round);
  }

  // As in core/cpu/optimizer.cpp: stores the exact weight into the master, the rounded one into the parameter, the
  // rounding error into the compensation.
  template <class C, class R>
  __device__ void update(int at, const UpdateRule<C>& rule, std::uint64_t stream, std::int64_t i, int n,
                         R round) const {
    const Part<kTensors>& p = parts.part[at];
    C w[kFour] = {};
    C g[kFour] = {};
    C m[kFour] = {};
    C v[kFour] = {};
    C rest[kFour] = {};
    load_four(p, kGradient, i, n, g);
    load_four(p, p.data[kMaster] ? kMaster : kParam, i, n, w);
    load_four(p, kCompensation, i, n, rest);
    load_four(p, kMoment, i, n, m);
    load_four(p, kSecond, i, n, v);
    if (p.data[kCompensation])
      for (int j = 0; j < kFour; ++j) w[j] += rest[j];
    rule.four(round, p.data[kMoment] != nullptr, w, g, m, v);
    store_four(p, kMoment, i, n, m);
    store_four(p, kSecond, i, n, v);
    store_four(p, kMaster, i, n, w);
    const DType dtype = p.dtype[kParam];
    C stored[kFour] = {};
    if constexpr (std::is_same_v<C, float>) {
      if (stochastic && size_of(dtype) == 2) {
        store_by_chance(p, w, stream, i, n);
        if (counters.f16.counts || counters.bf16.counts) count(at, i, n, w, stored);
        return;
      }
    }
    store_four(p, kParam, i, n, w);
    if (counters.f16.counts || counters.bf16.counts) count(at, i, n, w, stored);
    if (!p.data[kCompensation]) return;
    load_four(p, kParam, i, n, stored);
    for (int j = 0; j < kFour; ++j) rest[j] = w[j] - stored[j];
    store_four(p, kCompensation, i, n, rest);
  }

  // Element i takes word i of the stream: one block of Philox for the four.
  __device__ void store_by_chance(const Part<kTensors>& p, const float (&w)[kFour], std::uint64_t stream,
                                  std::int64_t i, int n) const {
    const auto words = philox_block(seed, stream, static_cast<std::uint64_t>(i) / kFour);
    const RoundingSpec<std::uint32_t>& spec = p.dtype[kParam] == DType::f16 ? f16 : bf16;
    auto* to = static_cast<std::uint16_t*>(p.data[kParam]) + i;
    detail::LoopCounts unused;
    for (int j = 0; j < kFour; ++j) {
      if (j >= n) break;
      to[j] =
          static_cast<std::uint16_t>(detail::round_bits<static_cast<int>(RoundingMode::stochastic), true, false, false>(
              std::bit_cast<std::uint32_t>(w[j]), words[static_cast<std::size_t>(j)], spec, unused));
    }
  }

  template <class C>
  __device__ void count(int at, std::int64_t i, int n, const C (&w)[kFour], C (&stored)[kFour]) const {
    const Part<kTensors>& p = parts.part[at];
    load_four(p, kParam, i, n, stored);
    for (int j = 0; j < kFour; ++j)
      if (j < n) counters.add(at, p.dtype[kParam], w[j], stored[j]);
  }
};

template <template <class> class UpdateRule> void step(const OpCall& c, int moments) {
  const auto& a = c.get<typename UpdateRule<float>::Attrs>();
  const UpdateAttrs& how = a.update;
  check_dtypes(c, 0);
  const int given = kMoment + moments;
  const int parts = c.inputs.size() / given;
  const Tensor none;
  const DeviceStep& d = how.device;
  std::optional<Workspace> each;
  if (d.inverse_scale || d.steps || d.rates) {
    each.emplace(static_cast<std::size_t>(parts) * sizeof(Terms<UpdateRule>));
    for_each(parts, Prepare<UpdateRule>{a, each->as<Terms<UpdateRule>>()});
  }
  const HalfCounts counts(parts);
  const auto make = [&](int part) {
    const Tensor* const* in = c.inputs.data() + part * given;
    const Tensor* const tensors[] = {in[0], in[1], in[2], in[3], in[kMoment], moments > 1 ? in[kSecond] : &none};
    return Part<kTensors>(tensors);
  };
  in_tables<kFewParts, kManyParts>(parts, make, [&]<int kMost>(const Table<Part<kTensors>, kMost>& table, int begin) {
    for_blocks(table.chunks,
               Step<UpdateRule, kMost>{
                   table, terms_of<UpdateRule>(a, how.key.stream + static_cast<std::uint64_t>(begin)),
                   each ? each->as<Terms<UpdateRule>>() + begin : nullptr, d.found, how.pure, how.stochastic,
                   how.key.seed, by_chance(DType::f16), by_chance(DType::bf16), counts.counters(begin)});
  });
  for (int i = 1; i < c.inputs.size(); ++i)  // dispatch bumps the version of input 0
    if (i % given != kGradient) bump_version(c[i]);
}

void sgd_step(const OpCall& c, Outputs&) { step<SgdRule>(c, 1); }

void adam_step(const OpCall& c, Outputs&) {
  for (int i = kMoment; i < c.inputs.size(); i += kMoment + 2)
    if (!c[i].defined() || !c[i + 1].defined()) throw_error(c, "needs two moments");
  step<AdamRule>(c, 2);
}

}  // namespace

void register_optimizer() {
  set_kernel(OpId::unscale_, unscale);
  set_kernel(OpId::sgd_step_, sgd_step);
  set_kernel(OpId::adam_step_, adam_step);
}

}  // namespace gradual::cuda
