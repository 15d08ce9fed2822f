// Reductions. The order of additions depends on the geometry alone, so the number of threads changes no bit. A long
// range is cut into segments, and threads take whole segments. A segment is summed in lanes (the columns of a matrix,
// or interleaved parts of one row), kRows rows at a time. Segments and lanes are combined pairwise, so that the error
// grows with the logarithm of the length (Higham 1993).
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "../formats/accumulator.h"
#include "../kernels/contraction_operand.h"
#include "../kernels/formulas.h"
#include "../kernels/norm_element.h"
#include "../kernels/reduce_plan.h"
#include "../ops/ops.h"
#include "../support/multiversion.h"
#include "../tensor/memory.h"
#include "kernels.h"
#include "rounded_gemm.h"
#include "row_sum.h"

namespace gradual::cpu {

namespace {

constexpr std::int64_t kLanes = kMostLanes;  // independent sums
constexpr std::int64_t kRows = kLaneRows;    // rows of lanes added in sequence before they join the segment's sum
constexpr std::int64_t kSegment = 32768;     // elements of one output that one thread sums at a time
constexpr std::int64_t kRowSegment = 1024;   // the same if each column has its own sum

// A reduction: maps each element, then combines. Both functions are inlined and compiled once per compute type.
template <class C> struct Reducer {
  using Fn = void (*)(C* acc, const C* x, const C* params, std::int64_t n, std::int64_t rows, std::int64_t step);
  C identity;
  Fn accumulate;  // acc[j] = combine(acc[j], map(x[j])) for n lanes of each row, or map(x[j], params[j])
  Fn join;        // the same without the map
};

constexpr auto kPlain = [](auto x) { return x; };
constexpr auto kAdd = [](auto a, auto b) { return math::add(a, b); };
constexpr auto kMaximum = [](auto a, auto b) { return math::maximum(a, b); };
constexpr auto kMinimum = [](auto a, auto b) { return math::minimum(a, b); };

template <class C, class Map, class Combine>
void accumulate(C* acc, const C* all, const C* params, std::int64_t n, std::int64_t rows, std::int64_t step) {
  vectorized([=] {
    const auto mapped = [=](C x, std::int64_t j) {
      if constexpr (std::is_invocable_v<Map, C>) return Map{}(x);
      else return Map{}(x, params[j]);
    };
    const auto add = [=]<int... R>(const C* x, std::integer_sequence<int, R...>) {  // adds rows in sequence
#pragma omp simd
      for (std::int64_t j = 0; j < n; ++j) {
        C sum = acc[j];
        ((sum = Combine{}(sum, mapped(x[R * step + j], j))), ...);
        acc[j] = sum;
      }
    };
    std::int64_t row = 0;
    for (; row + 8 <= rows; row += 8) add(all + row * step, std::make_integer_sequence<int, 8>());
    for (; row < rows; ++row) add(all + row * step, std::make_integer_sequence<int, 1>());
  });
}

// Combining a value with the identity does not change the value.
template <class C, class Map, class Combine> Reducer<C> reducer(Map, Combine, C identity) {
  return {identity, accumulate<C, Map, Combine>, accumulate<C, decltype(kPlain), Combine>};
}
template <class C, class Map> Reducer<C> sum_of(Map map) { return reducer<C>(map, kAdd, C{0}); }
template <class C> Reducer<C> extreme_of(bool largest) {
  using Limits = std::numeric_limits<C>;
  constexpr C kTop = Limits::has_infinity ? Limits::infinity() : Limits::max();
  if (!largest) return reducer<C>(kPlain, kMinimum, kTop);
  return reducer<C>(kPlain, kMaximum, Limits::has_infinity ? -kTop : Limits::lowest());
}

// Reduces elements [begin, end) of one output, or of `width` adjacent columns from it on, into out[0], out[stride], ..
template <class C>
void reduce_segment(const Plan& p, const Reducer<C>& r, std::int64_t output, std::int64_t width, const C* params,
                    std::int64_t begin, std::int64_t end, C* out, std::int64_t stride) {
  alignas(64) C total[kLanes], part[kLanes], spread[kLanes], buffer[kBlock];
  const std::int64_t lanes = p.columns ? width : sum_lanes(end - begin);
  if (params && !p.columns) {
    std::fill_n(spread, lanes, *params);
    params = spread;
  }
  std::fill_n(total, lanes, r.identity);
  std::fill_n(part, lanes, r.identity);
  std::int64_t rows = 0;
  const auto take = [&](const C* x, std::int64_t n, std::int64_t many, std::int64_t step) {
    r.accumulate(part, x, params, n, many, step);
    rows += many;
    if (rows % kRows != 0) return;
    r.join(total, part, nullptr, lanes, 1, lanes);
    std::fill_n(part, lanes, r.identity);
  };
  const Loop row = p.row_of(output);
  if (p.columns) {
    const std::int64_t step = row.view[0].strides[row.ndim - 1];
    const std::int64_t across = p.kept.view[0].strides[p.kept.ndim - 1];
    const bool in_place = p.dtype == dtype_of<C> && across == 1;
    const std::int64_t most = in_place ? kRows : across == 1 && step == width ? kBlock / width : 1;  // rows at a time
    for_rows(row, begin, end - begin, [&](const std::int64_t* offset, std::int64_t length) {
      for (std::int64_t i = 0, many; i < length; i += many) {
        many = std::min({length - i, kRows - rows % kRows, most});
        const void* x = row.view[0].data + (*offset + i * step) * static_cast<std::int64_t>(size_of(p.dtype));
        if (!in_place) fetch_and_cast(p.dtype, x, across, buffer, many * width);
        take(in_place ? static_cast<const C*>(x) : buffer, width, many, in_place ? step : width);
      }
    });
  } else {
    for (std::int64_t at = begin, n = 0; at < end; at += n) {
      n = row.block(at, end);
      const C* x = fetch(row, 0, at, n, buffer);
      for (std::int64_t j = 0; j < n; j += lanes) take(x + j, std::min(lanes, n - j), 1, lanes);
    }
  }
  r.join(total, part, nullptr, lanes, 1, lanes);
  for (std::int64_t w = lanes / 2; w > 0 && !p.columns; w /= 2) r.join(total, total + w, nullptr, w, 1, w);
  for (std::int64_t j = 0; j < width; ++j) out[j * stride] = total[j];
}

// Computes values[o] for every output. params has one number per output, or is null if the map takes none.
template <class C> void reduce(const Plan& p, const Reducer<C>& r, const C* params, C* values) {
  if (p.outputs() == 0) return;
  const std::int64_t each = std::clamp<std::int64_t>(p.count(), 1, p.columns ? kRowSegment : kSegment);
  const std::int64_t segments = std::max<std::int64_t>(1, (p.count() + each - 1) / each);
  const std::int64_t m = p.columns ? p.kept.sizes[p.kept.ndim - 1] : 1;
  const std::int64_t tiles = (m + kLanes - 1) / kLanes;
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / (each * std::min(m, kLanes)));
  std::optional<Scratch> scratch;
  if (segments > 1) scratch.emplace(static_cast<std::size_t>(p.outputs() * segments) * sizeof(C));
  C* const partials = scratch ? scratch->as<C>() : values;
  parallel_for(p.outputs() / m * tiles * segments, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t segment = task % segments;
      const std::int64_t column = task / segments % tiles * kLanes;
      const std::int64_t o = task / segments / tiles * m + column;
      reduce_segment(p, r, o, std::min(kLanes, m - column), params ? params + o : nullptr, segment * each,
                     std::min(p.count(), segment * each + each), partials + o * segments + segment, segments);
    }
  });
  for (std::int64_t o = 0; o < p.outputs() && segments > 1; ++o) {
    C* const part = partials + o * segments;
    for (std::int64_t w = 1; w < segments; w *= 2)
      for (std::int64_t s = 0; s + w < segments; s += 2 * w) r.join(part + s, part + s + w, nullptr, 1, 1, 1);
    values[o] = *part;
  }
}

// --- kernels --------------------------------------------------------------------------------------------------------

// Writes finish(reduced value, index) for every output, rounded once into `out`.
constexpr auto kAsItIs = [](auto x, std::int64_t) { return x; };
template <class C, class Finish = decltype(kAsItIs)>
void reduce_to(Tensor& out, const Plan& p, const Reducer<C>& r, const std::type_identity_t<C>* params = nullptr,
               const Finish& finish = {}) {
  const Result<C> values(out);
  reduce(p, r, params, values.data());
  for (std::int64_t i = 0; i < p.outputs(); ++i) values.data()[i] = finish(values.data()[i], i);
  values.store();
}

template <class C> C quotient(C sum, double n) { return sum / static_cast<C>(n); }

template <bool kMean> void sum(const OpCall& c, Outputs& out) {
  const Plan p = make_plan(c[0], c.get<ReduceAttrs>().dims);
  const double n = kMean ? static_cast<double>(p.count()) : 1;
  if (sum_accumulated(c[0], c.get<ReduceAttrs>().dims, n, out[0])) return;
  visit_compute(c[0].dtype(), [&]<class C>(C) {
    reduce_to(out[0], p, sum_of<C>(kPlain), nullptr, [&](C s, std::int64_t) { return quotient(s, n); });
  });
}

template <bool kMax> void extreme(const OpCall& c, Outputs& out) {
  const Plan p = make_plan(c[0], c.get<ReduceAttrs>().dims);
  visit_compute(c[0].dtype(), [&]<class C>(C) { reduce_to(out[0], p, extreme_of<C>(kMax)); });
}

// Two passes: the mean, then the squared deviations from it.
void var(const OpCall& c, Outputs& out) {
  const auto& a = c.get<ReduceAttrs>();
  const Plan p = make_plan(c[0], a.dims);
  const auto n = static_cast<double>(p.count());
  visit_floating(c[0].dtype(), [&]<class C>(C) {
    const Scratch scratch(static_cast<std::size_t>(p.outputs()) * sizeof(C));
    C* const means = scratch.as<C>();
    reduce<C>(p, sum_of<C>(kPlain), nullptr, means);
    for (std::int64_t i = 0; i < p.outputs(); ++i) means[i] = quotient(means[i], n);
    const auto squares = sum_of<C>([](C x, C mean) { return (x - mean) * (x - mean); });
    reduce_to(out[0], p, squares, means, [&](C s, std::int64_t) { return quotient(s, std::max(0.0, n - a.value)); });
  });
}

// max + log(sum of exp(x - max)). A maximum that is not finite counts as 0, so that Inf - Inf never arises.
void logsumexp(const OpCall& c, Outputs& out) {
  const Plan p = make_plan(c[0], c.get<ReduceAttrs>().dims);
  visit_floating(c[0].dtype(), [&]<class C>(C) {
    const Scratch scratch(static_cast<std::size_t>(p.outputs()) * sizeof(C));
    C* const shift = scratch.as<C>();
    reduce<C>(p, extreme_of<C>(true), nullptr, shift);
    for (std::int64_t i = 0; i < p.outputs(); ++i) shift[i] = std::isfinite(shift[i]) ? shift[i] : C{0};
    const auto exps = sum_of<C>([](C x, C largest) { return math::exp(x - largest); });
    reduce_to(out[0], p, exps, shift, [&](C s, std::int64_t i) { return math::log(s) + shift[i]; });
  });
}

// The norm of one output's numbers, relative to the largest: for sums of powers that leave the range of double.
double scaled_norm(const Plan& p, std::int64_t output, double order) {
  const Loop row = p.row_of(output);
  const auto for_each = [&](const auto& f) {
    alignas(64) double buffer[kBlock];
    for (std::int64_t at = 0, n = 0; at < p.count(); at += n) {
      n = row.block(at, p.count());
      const double* x = fetch(row, 0, at, n, buffer);
      for (std::int64_t i = 0; i < n; ++i) f(std::fabs(x[i]));
    }
  };
  double largest = 0;
  for_each([&](double x) { largest = std::max(largest, x); });
  if (largest == 0 || !std::isfinite(largest)) return largest;
  const int exponent = std::ilogb(largest);
  double sum = 0;
  for_each([&](double x) { sum += std::pow(std::ldexp(x, -exponent), order); });
  return std::ldexp(std::pow(sum, 1 / order), exponent);
}

// Computed in double, so that squares of floats neither overflow nor underflow.
void norm(const OpCall& c, Outputs& out) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr auto kMagnitude = [](double x) { return std::fabs(x); };
  const double order = c.get<ReduceAttrs>().value;
  const Plan p = make_plan(c[0], c.get<ReduceAttrs>().dims);
  if (order == kInf) return reduce_to(out[0], p, reducer<double>(kMagnitude, kMaximum, 0.0));
  if (order == -kInf) return reduce_to(out[0], p, reducer<double>(kMagnitude, kMinimum, kInf));
  if (order == 0) return reduce_to(out[0], p, sum_of<double>([](double x) { return x != 0 ? 1.0 : 0.0; }));
  if (order == 1) return reduce_to(out[0], p, sum_of<double>(kMagnitude));
  const bool leaves = order > 0 && powers_leave_double(c[0].dtype(), order);
  const auto root = [&](double sum, std::int64_t output) {
    const bool lost = sum > std::numeric_limits<double>::max() || sum < std::numeric_limits<double>::min();
    if (leaves && lost) return scaled_norm(p, output, order);
    return order == 2 ? std::sqrt(sum) : std::pow(sum, 1 / order);
  };
  if (order == 2) return reduce_to(out[0], p, sum_of<double>([](double x) { return x * x; }), nullptr, root);
  const Scratch powers(static_cast<std::size_t>(p.outputs()) * sizeof(double));
  std::fill_n(powers.as<double>(), p.outputs(), order);
  reduce_to(out[0], p, sum_of<double>([](double x, double y) { return std::pow(std::fabs(x), y); }),
            powers.as<double>(), root);
}

// The first of equal elements; NaN counts as the extreme.
template <bool kMax> void arg(const OpCall& c, Outputs& out) {
  const Plan p = make_plan(c[0], c[0].dim() > 0 ? 1u << c.get<DimAttrs>().dim : 0u);
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, p.count()));
  visit_compute(c[0].dtype(), [&]<class C>(C) {
    parallel_for(p.outputs(), grain, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) C buffer[kBlock];
      for (std::int64_t o = begin; o < end; ++o) {
        const Loop row = p.row_of(o);
        std::int64_t best = 0;
        C value{};
        for (std::int64_t at = 0, n = 0; at < p.count(); at += n) {
          n = row.block(at, p.count());
          const C* x = fetch(row, 0, at, n, buffer);
          if (at == 0) value = x[0];
          for (std::int64_t i = 0; i < n; ++i)
            if ((kMax ? x[i] > value : x[i] < value) || (x[i] != x[i] && value == value)) {
              value = x[i];
              best = at + i;
            }
        }
        out[0].data<std::int64_t>()[o] = best;
      }
    });
  });
}

}  // namespace

void register_reductions() {
  set_kernel(OpId::sum, sum<false>);
  set_kernel(OpId::mean, sum<true>);
  set_kernel(OpId::var, var);
  set_kernel(OpId::max, extreme<true>);
  set_kernel(OpId::min, extreme<false>);
  set_kernel(OpId::logsumexp, logsumexp);
  set_kernel(OpId::norm, norm);
  set_kernel(OpId::argmax, arg<true>);
  set_kernel(OpId::argmin, arg<false>);
}

}  // namespace gradual::cpu
