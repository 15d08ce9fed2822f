// Reductions. The order of additions follows from the geometry alone: a run of up to kBlock elements is summed in
// lanes, the runs and the segments of a long range are joined pairwise (error grows as the logarithm of the length;
// Higham 1993), and threads take whole segments. So the bits do not depend on the number of threads.
#include <cmath>
#include <limits>
#include <optional>

#include "../counts.h"
#include "../dispatch.h"
#include "../functors.h"
#include "../memory.h"
#include "../parallel.h"
#include "kernels.h"
#include "loops.h"

namespace gradual::cpu {
namespace {

constexpr std::int64_t kSegment = 32768;    // elements of one output that one thread sums at a time
constexpr std::int64_t kTile = 256;         // columns summed side by side
constexpr std::int64_t kRows = 32;          // rows added one after another, then joined pairwise
constexpr std::int64_t kRowSegment = 1024;  // rows that one thread sums at a time
constexpr std::int64_t kMinColumns = 16;    // fewer are gathered and summed one by one

// How one reduction treats elements: map, then combine. Both are compiled in, once for a compute type.
template <class C> struct Reducer {
  C identity;
  C (*fold)(const C* x, std::int64_t n, C param);
  void (*accumulate)(C* acc, const C* x, const C* params, std::int64_t n);
  C (*combine)(C a, C b);
};

// Dims split in two, each merged: `kept` runs over outputs in order, `reduced` over what one output takes in.
struct Plan {
  Loop kept, reduced;
  DType dtype{};
  bool columns = false;  // neighbours in memory belong to different outputs
  std::int64_t outputs() const { return kept.numel; }
  std::int64_t count() const { return reduced.numel; }
};

Plan make_plan(const Tensor& x, std::uint32_t dims) {
  Plan p;
  p.dtype = x.dtype();
  for (Loop* loop : {&p.kept, &p.reduced}) {
    loop->operands = 1;
    loop->view[0].data = static_cast<char*>(x.raw());
    loop->view[0].dtype = x.dtype();
    for (int d = 0; d < x.ndim(); ++d) {
      if ((dims >> d & 1) != (loop == &p.reduced)) continue;
      loop->sizes[loop->ndim] = x.sizes()[d];
      loop->view[0].strides[loop->ndim++] = x.strides()[d];
      loop->numel *= x.sizes()[d];
    }
    simplify(*loop, loop == &p.reduced);
  }
  const int last = p.kept.ndim - 1;
  const bool adjacent = p.kept.sizes[last] >= kMinColumns && p.kept.view[0].strides[last] == 1;
  p.columns = adjacent && p.count() > 1;
  return p;
}

// Joins values as they come, pairwise: the k-th level holds the join of 2^k of them. Each value is `width` numbers.
template <class C, std::int64_t kWidth, int kLevels> class Pairwise {
 public:
  Pairwise(const Reducer<C>& reducer, std::int64_t width) : reducer_(reducer), width_(width) {}
  void push(const C* values) {
    int k = 0;
    C carry[kWidth];
    std::copy_n(values, width_, carry);
    for (; pushed_ >> k & 1; ++k) join(levels_[k], carry, carry);
    std::copy_n(carry, width_, levels_[k]);
    ++pushed_;
  }
  void total(C* out) const {
    std::fill_n(out, width_, reducer_.identity);
    bool first = true;
    for (int k = 0; k < kLevels; ++k) {
      if (!(pushed_ >> k & 1)) continue;
      if (first) std::copy_n(levels_[k], width_, out);
      else join(levels_[k], out, out);
      first = false;
    }
  }

 private:
  void join(const C* a, const C* b, C* out) const {
    for (std::int64_t j = 0; j < width_; ++j) out[j] = reducer_.combine(a[j], b[j]);
  }
  const Reducer<C>& reducer_;
  std::int64_t width_;
  std::uint64_t pushed_ = 0;
  C levels_[kLevels][kWidth];
};

// One output's elements [begin, end).
template <class C> C reduce_row(const Loop& row, const Reducer<C>& r, C param, std::int64_t begin, std::int64_t end) {
  alignas(64) C buffer[kBlock];
  alignas(64) std::uint64_t scratch[kBlock];
  std::int64_t n = row.block(begin, end);
  if (n == end - begin) return r.fold(fetch(row, row.view[0], begin, n, buffer, scratch), n, param);
  Pairwise<C, 1, 20> sum(r, 1);
  for (std::int64_t at = begin; at < end; at += n) {
    n = row.block(at, end);
    const C part = r.fold(fetch(row, row.view[0], at, n, buffer, scratch), n, param);
    sum.push(&part);
  }
  C total;
  sum.total(&total);
  return total;
}

template <class C>
void reduce_rows(const Plan& p, const Reducer<C>& r, const C* params, C* partials, std::int64_t segments) {
  const std::int64_t each = std::min(p.count(), kSegment);
  const auto width = static_cast<std::int64_t>(size_of(p.dtype));
  char* data = p.kept.view[0].data;
  const std::int64_t step = p.kept.view[0].strides[p.kept.ndim - 1];
  if (segments == 1) {
    parallel_for(p.outputs(), std::max<std::int64_t>(1, kGrain / each), [&](std::int64_t begin, std::int64_t end) {
      Loop row = p.reduced;
      for_pieces(p.kept, p.kept.view[0].strides, begin, end - begin,
                 [&](std::int64_t offset, std::int64_t length, std::int64_t done) {
                   for (std::int64_t i = 0, o = begin + done; i < length; ++i, ++o) {
                     row.view[0].data = data + (offset + i * step) * width;
                     partials[o] = reduce_row(row, r, params ? params[o] : C{}, 0, p.count());
                   }
                 });
    });
    return;
  }
  parallel_for(
      p.outputs() * segments, std::max<std::int64_t>(1, kGrain / each), [&](std::int64_t begin, std::int64_t end) {
        Loop row = p.reduced;
        for (std::int64_t task = begin; task < end; ++task) {
          const std::int64_t o = task / segments;
          const std::int64_t first = task % segments * kSegment;
          row.view[0].data = data + offset_of(p.kept, p.kept.view[0].strides, o) * width;
          partials[task] = reduce_row(row, r, params ? params[o] : C{}, first, std::min(p.count(), first + kSegment));
        }
      });
}

// `width` columns at `data`, rows [begin, end).
template <class C>
void reduce_tile(const Plan& p, const Reducer<C>& r, const char* data, const C* params, std::int64_t width,
                 std::int64_t begin, std::int64_t end, C* out, std::int64_t out_stride) {
  alignas(64) C acc[kTile];
  alignas(64) C buffer[kTile];
  const auto bytes = static_cast<std::int64_t>(size_of(p.dtype));
  const std::int64_t step = p.reduced.view[0].strides[p.reduced.ndim - 1];
  Pairwise<C, kTile, 7> sum(r, width);
  std::int64_t rows = 0;
  std::fill_n(acc, width, r.identity);
  for_pieces(p.reduced, p.reduced.view[0].strides, begin, end - begin,
             [&](std::int64_t offset, std::int64_t length, std::int64_t) {
               for (std::int64_t i = 0; i < length; ++i) {
                 const char* from = data + (offset + i * step) * bytes;
                 const C* x = reinterpret_cast<const C*>(from);
                 if (p.dtype != dtype_of<C>) load(p.dtype, from, 1, buffer, width), x = buffer;
                 r.accumulate(acc, x, params, width);
                 if (++rows % kRows != 0) continue;
                 sum.push(acc);
                 std::fill_n(acc, width, r.identity);
               }
             });
  if (rows % kRows != 0) sum.push(acc);
  sum.total(acc);
  for (std::int64_t j = 0; j < width; ++j) out[j * out_stride] = acc[j];
}

template <class C>
void reduce_columns(const Plan& p, const Reducer<C>& r, const C* params, C* partials, std::int64_t segments) {
  const std::int64_t m = p.kept.sizes[p.kept.ndim - 1];
  const std::int64_t tiles = (m + kTile - 1) / kTile;
  const std::int64_t each = std::min(p.count(), kRowSegment) * std::min(m, kTile);
  const auto bytes = static_cast<std::int64_t>(size_of(p.dtype));
  parallel_for(p.outputs() / m * tiles * segments, std::max<std::int64_t>(1, kGrain / each),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t task = begin; task < end; ++task) {
                   const std::int64_t first = task % segments * kRowSegment;
                   const std::int64_t column = task / segments % tiles * kTile;
                   const std::int64_t o = task / segments / tiles * m + column;
                   reduce_tile(p, r, p.kept.view[0].data + offset_of(p.kept, p.kept.view[0].strides, o) * bytes,
                               params ? params + o : nullptr, std::min(kTile, m - column), first,
                               std::min(p.count(), first + kRowSegment), partials + o * segments + task % segments,
                               segments);
                 }
               });
}

// values[o] for every output. params: one number an output, or null where the map takes none.
template <class C> void reduce(const Plan& p, const Reducer<C>& r, const C* params, C* values) {
  if (p.count() == 0) {
    std::fill_n(values, p.outputs(), r.identity);
    return;
  }
  if (p.outputs() == 0) return;
  const std::int64_t length = p.columns ? kRowSegment : kSegment;
  const std::int64_t segments = (p.count() + length - 1) / length;
  const auto run = p.columns ? reduce_columns<C> : reduce_rows<C>;
  if (segments == 1) return run(p, r, params, values, 1);
  const Scratch partials(static_cast<std::size_t>(p.outputs() * segments) * sizeof(C));
  run(p, r, params, partials.as<C>(), segments);
  for (std::int64_t o = 0; o < p.outputs(); ++o) {
    Pairwise<C, 1, 48> sum(r, 1);
    for (std::int64_t s = 0; s < segments; ++s) sum.push(partials.as<C>() + o * segments + s);
    sum.total(values + o);
  }
}

// --- maps -----------------------------------------------------------------------------------------------------------

template <class C> struct Plain {
  static constexpr bool kParam = false;
  C operator()(C x, C) const { return x; }
};
template <class C> struct Magnitude {
  static constexpr bool kParam = false;
  C operator()(C x, C) const { return std::fabs(x); }
};
template <class C> struct Squared {
  static constexpr bool kParam = false;
  C operator()(C x, C) const { return x * x; }
};
template <class C> struct NotZero {
  static constexpr bool kParam = false;
  C operator()(C x, C) const { return x != 0 ? C{1} : C{0}; }
};
template <class C> struct Power {
  static constexpr bool kParam = true;
  C operator()(C x, C p) const { return std::pow(std::fabs(x), p); }
};
template <class C> struct CenteredSquare {
  static constexpr bool kParam = true;
  C operator()(C x, C mean) const { return (x - mean) * (x - mean); }
};
template <class C> struct ShiftedExp {
  static constexpr bool kParam = true;
  C operator()(C x, C shift) const { return math::exp(x - shift); }
};

template <class C, class Map, class Combine> C fold_run(const C* x, std::int64_t n, C param, C identity) {
  constexpr std::int64_t kLanes = 128 / sizeof(C);
  const Map map{};
  const Combine combine{};
  if (n < kLanes / 2) {
    C total = identity;
    for (std::int64_t i = 0; i < n; ++i) total = combine(total, map(x[i], param));
    return total;
  }
  C lanes[kLanes];
  std::fill_n(lanes, kLanes, identity);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] = combine(lanes[l], map(x[i + l], param));
  for (std::int64_t l = 0; l < n - i; ++l) lanes[l] = combine(lanes[l], map(x[i + l], param));
  for (std::int64_t w = kLanes / 2; w > 0; w /= 2)
    for (std::int64_t l = 0; l < w; ++l) lanes[l] = combine(lanes[l], lanes[l + w]);
  return lanes[0];
}

// What combines with anything and leaves it as it is.
template <class C, class Combine> constexpr C identity_of() {
  using Limits = std::numeric_limits<C>;
  if constexpr (std::is_same_v<Combine, functors::Maximum<C>>)
    return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  else if constexpr (std::is_same_v<Combine, functors::Minimum<C>>)
    return Limits::has_infinity ? Limits::infinity() : Limits::max();
  else return C{0};
}

template <class C, template <class> class Map, template <class> class Combine> Reducer<C> reducer() {
  constexpr C kIdentity = identity_of<C, Combine<C>>();
  return {kIdentity,
          [](const C* x, std::int64_t n, C param) { return fold_run<C, Map<C>, Combine<C>>(x, n, param, kIdentity); },
          [](C* acc, const C* x, const C* params, std::int64_t n) {
            const Map<C> map{};
            const Combine<C> combine{};
            if constexpr (Map<C>::kParam) {
#pragma omp simd
              for (std::int64_t j = 0; j < n; ++j) acc[j] = combine(acc[j], map(x[j], params[j]));
            } else {
#pragma omp simd
              for (std::int64_t j = 0; j < n; ++j) acc[j] = combine(acc[j], map(x[j], C{}));
            }
          },
          [](C a, C b) { return Combine<C>{}(a, b); }};
}

// --- rows -----------------------------------------------------------------------------------------------------------

// A number for each output in the compute type, to be worked on and rounded once into the output.
template <class C> class Values {
 public:
  explicit Values(const Plan& p) : n_(p.outputs()), data_(small_) {
    if (n_ <= kSmall) return;
    heap_.emplace(static_cast<std::size_t>(n_) * sizeof(C));
    data_ = heap_->template as<C>();
  }
  C* data() { return data_; }
  template <class F> void map(const F& f) {
    for (std::int64_t i = 0; i < n_; ++i) data_[i] = f(data_[i], i);
  }
  void write(const Tensor& out) {
    CastCounts* const counts = is_floating(out.dtype()) ? counts_for(dtype_of<C>, out.dtype()) : nullptr;
    store(out.dtype(), data_, out.raw(), 1, n_, counts);
  }

 private:
  static constexpr std::int64_t kSmall = 64;
  std::int64_t n_;
  C* data_;
  std::optional<Scratch> heap_;
  C small_[kSmall];
};

template <class C> C quotient(C sum, double n) { return sum / static_cast<C>(n); }

void sum(const OpCall& c, Outputs& out) {
  const Plan p = make_plan(c[0], c.get<ReduceAttrs>().dims);
  visit_compute(c[0].dtype(), [&]<class C>(C) {
    Values<C> v(p);
    reduce<C>(p, reducer<C, Plain, functors::Add>(), nullptr, v.data());
    v.write(out[0]);
  });
}

void mean(const OpCall& c, Outputs& out) {
  const Plan p = make_plan(c[0], c.get<ReduceAttrs>().dims);
  visit_floating(c[0].dtype(), [&]<class C>(C) {
    Values<C> v(p);
    reduce<C>(p, reducer<C, Plain, functors::Add>(), nullptr, v.data());
    v.map([&](C s, std::int64_t) { return quotient(s, static_cast<double>(p.count())); });
    v.write(out[0]);
  });
}

// Two passes: the mean, then the squares about it.
void var(const OpCall& c, Outputs& out) {
  const auto& a = c.get<ReduceAttrs>();
  const Plan p = make_plan(c[0], a.dims);
  const auto n = static_cast<double>(p.count());
  visit_floating(c[0].dtype(), [&]<class C>(C) {
    Values<C> means(p);
    Values<C> v(p);
    reduce<C>(p, reducer<C, Plain, functors::Add>(), nullptr, means.data());
    means.map([&](C s, std::int64_t) { return quotient(s, n); });
    reduce<C>(p, reducer<C, CenteredSquare, functors::Add>(), means.data(), v.data());
    v.map([&](C s, std::int64_t) { return quotient(s, std::max(0.0, n - a.value)); });
    v.write(out[0]);
  });
}

template <template <class> class Combine> void extreme(const OpCall& c, Outputs& out) {
  const Plan p = make_plan(c[0], c.get<ReduceAttrs>().dims);
  visit_compute(c[0].dtype(), [&]<class C>(C) {
    Values<C> v(p);
    reduce<C>(p, reducer<C, Plain, Combine>(), nullptr, v.data());
    v.write(out[0]);
  });
}

// max + log(sum of exp(x - max)); an infinite maximum shifts nothing, so that Inf - Inf never arises.
void logsumexp(const OpCall& c, Outputs& out) {
  const Plan p = make_plan(c[0], c.get<ReduceAttrs>().dims);
  visit_floating(c[0].dtype(), [&]<class C>(C) {
    Values<C> shift(p);
    Values<C> v(p);
    reduce<C>(p, reducer<C, Plain, functors::Maximum>(), nullptr, shift.data());
    shift.map([](C m, std::int64_t) { return std::isfinite(m) ? m : C{0}; });
    reduce<C>(p, reducer<C, ShiftedExp, functors::Add>(), shift.data(), v.data());
    v.map([&](C s, std::int64_t i) { return math::log(s) + shift.data()[i]; });
    v.write(out[0]);
  });
}

template <class C> void norm_of(const Plan& p, double order, Values<C>& v) {
  const auto power = static_cast<C>(order);
  if (order == std::numeric_limits<double>::infinity())
    return reduce<C>(p, reducer<C, Magnitude, functors::Maximum>(), nullptr, v.data());
  if (order == -std::numeric_limits<double>::infinity())
    return reduce<C>(p, reducer<C, Magnitude, functors::Minimum>(), nullptr, v.data());
  if (order == 0) return reduce<C>(p, reducer<C, NotZero, functors::Add>(), nullptr, v.data());
  if (order == 1) return reduce<C>(p, reducer<C, Magnitude, functors::Add>(), nullptr, v.data());
  if (order == 2) {
    reduce<C>(p, reducer<C, Squared, functors::Add>(), nullptr, v.data());
    return v.map([](C s, std::int64_t) { return std::sqrt(s); });
  }
  Values<C> powers(p);
  powers.map([&](C, std::int64_t) { return power; });
  reduce<C>(p, reducer<C, Power, functors::Add>(), powers.data(), v.data());
  v.map([&](C s, std::int64_t) { return std::pow(s, 1 / power); });
}

// In doubles, so that squares of floats neither overflow nor vanish.
void norm(const OpCall& c, Outputs& out) {
  const auto& a = c.get<ReduceAttrs>();
  const Plan p = make_plan(c[0], a.dims);
  if (p.count() == 0 && a.value == std::numeric_limits<double>::infinity()) {
    Values<double> v(p);
    v.map([](double, std::int64_t) { return 0.0; });
    return v.write(out[0]);
  }
  Values<double> v(p);
  norm_of(p, a.value, v);
  v.write(out[0]);
}

// The first of equals; NaN counts as the extreme. `better(a, b)`: a beats b.
template <class C, class Better> void arg_extreme(const Plan& p, std::int64_t* out, const Better& better) {
  const auto width = static_cast<std::int64_t>(size_of(p.dtype));
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, p.count()));
  parallel_for(p.outputs(), grain, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) C buffer[kBlock];
    alignas(64) std::uint64_t scratch[kBlock];
    Loop row = p.reduced;
    for (std::int64_t o = begin; o < end; ++o) {
      row.view[0].data = p.kept.view[0].data + offset_of(p.kept, p.kept.view[0].strides, o) * width;
      std::int64_t best = 0;
      C value{};
      for (std::int64_t at = 0, n = 0; at < p.count(); at += n) {
        n = row.block(at, p.count());
        const C* x = fetch(row, row.view[0], at, n, buffer, scratch);
        if (at == 0) value = x[0];
        for (std::int64_t i = 0; i < n; ++i)
          if (better(x[i], value) || (x[i] != x[i] && value == value)) value = x[i], best = at + i;
      }
      out[o] = best;
    }
  });
}

template <bool kMax> void arg(const OpCall& c, Outputs& out) {
  const Plan p = make_plan(c[0], c[0].ndim() > 0 ? 1u << c.get<DimAttrs>().dim : 0u);
  visit_compute(c[0].dtype(), [&]<class C>(C) {
    arg_extreme<C>(p, out[0].data<std::int64_t>(), [](C a, C b) { return kMax ? a > b : a < b; });
  });
}

}  // namespace

void register_reductions() {
  const auto set = [](OpId op, KernelFn fn) { columns().cpu[static_cast<int>(op)] = fn; };
  set(OpId::sum, sum);
  set(OpId::mean, mean);
  set(OpId::var, var);
  set(OpId::max, extreme<functors::Maximum>);
  set(OpId::min, extreme<functors::Minimum>);
  set(OpId::logsumexp, logsumexp);
  set(OpId::norm, norm);
  set(OpId::argmax, arg<true>);
  set(OpId::argmin, arg<false>);
}

}  // namespace gradual::cpu
