// sum, mean, var, max, min, argmax, argmin, logsumexp and norm. Counterpart of core/cpu/reduce.cpp.
#include <algorithm>
#include <cmath>

#include "reduce.h"

#include "../../core/kernels/norm_element.h"
#include "../../core/ops/accumulator_of.h"
#include "../../core/tensor/memory.h"
#include "elementwise.h"
#include "movement.h"
#include "rounded_gemm.h"

namespace gradual::cuda {
namespace {

// --- maps of elements, and the last step of results -----------------------------------------------------------------

struct Same {
  template <class C> GRADUAL_HD C operator()(C x) const { return x; }
};
struct Squared {
  GRADUAL_HD double operator()(double x) const { return x * x; }
};
struct Magnitude {
  GRADUAL_HD double operator()(double x) const { return std::fabs(x); }
};
struct NotZero {
  GRADUAL_HD double operator()(double x) const { return x != 0 ? 1.0 : 0.0; }
};
struct Powered {
  double order;
  GRADUAL_HD double operator()(double x) const { return std::pow(std::fabs(x), order); }
};
// x times the power of two that makes the largest magnitude a number of [1, 2). A largest of 0 or Inf changes nothing.
GRADUAL_HD inline double near_one(double x, double largest) {
  if (!(largest > 0) || largest - largest != 0) return x;
  return std::ldexp(x, -std::ilogb(largest));
}
struct PoweredNearOne {
  double order;
  GRADUAL_HD double operator()(double x, double largest) const {
    return std::pow(std::fabs(near_one(x, largest)), order);
  }
};
// The same with one number per output.
struct SquareAbout {
  template <class C> GRADUAL_HD C operator()(C x, C mean) const { return (x - mean) * (x - mean); }
};
struct ExpAbove {
  template <class C> GRADUAL_HD C operator()(C x, C largest) const { return math::exp(x - largest); }
};

// The last step of an output.
enum class Then : std::uint8_t { nothing, divide, root, power, if_finite, log_and_shift };
template <class C> struct Finish {
  Stored<C> to;
  Then then = Then::nothing;
  C number{};                // the divisor, or the power
  const C* shift = nullptr;  // one per output
  __device__ void operator()(C value, std::int64_t output) const { to(result(value, output), output); }

 private:
  __device__ C result(C value, std::int64_t output) const {
    if (then == Then::divide) return value / number;
    if constexpr (std::is_floating_point_v<C>) {
      if (then == Then::root) return std::sqrt(value);
      if (then == Then::power) return std::pow(value, number);
      if (then == Then::if_finite) return value - value == 0 ? value : C{0};
      if (then == Then::log_and_shift) return math::log(value) + shift[output];
    }
    return value;
  }
};

// A norm from the sum of powers. If this sum leaves the range of double: from that of numbers near one.
struct FinishNorm {
  Stored<double> to;
  double order;
  // one per output
  const double* sums;
  const double* largest;
  __device__ void operator()(double near, std::int64_t output) const { to(result(near, output), output); }

 private:
  __device__ double root(double sum) const { return order == 2 ? std::sqrt(sum) : std::pow(sum, 1 / order); }
  __device__ double result(double near, std::int64_t output) const {
    using Limits = std::numeric_limits<double>;
    const double sum = sums[output];
    const double most = largest[output];
    if (!(sum > Limits::max() || sum < Limits::min())) return root(sum);
    if (most == 0 || most - most != 0) return most;
    return std::ldexp(std::pow(near, 1 / order), std::ilogb(most));
  }
};

// Elements are loaded as N, which may be narrower than C.
template <class C, class Map, class Combine, class N = C, class Last = Finish<C>> struct Numeric {
  using Number = N;
  using Acc = C;
  static constexpr int kInputs = 1;
  Map of;
  C start;
  const C* params;  // for a map of two arguments: one per output
  Last last;

  __device__ C identity() const { return start; }
  __device__ C map(const N (&x)[1], std::int64_t output, std::int64_t) const {
    if constexpr (std::is_invocable_v<Map, C>) return of(static_cast<C>(x[0]));
    else return of(x[0], params[output]);
  }
  __device__ C combine(C a, C b) const { return Combine{}(a, b); }
  __device__ void finish(C value, std::int64_t output) const { last(value, output); }
};

template <class C, class Map>
void reduce_sum(const ReduceSource<1>& s, const Map& map, const Finish<C>& last, const C* params = nullptr) {
  reduce(s, Numeric<C, Map, functors::Add>{map, C{0}, params, last});
}
template <class C>
constexpr C kTop =
    std::numeric_limits<C>::has_infinity ? std::numeric_limits<C>::infinity() : std::numeric_limits<C>::max();
template <class C>
constexpr C kBottom = std::numeric_limits<C>::has_infinity ? -kTop<C> : std::numeric_limits<C>::lowest();
template <bool kMax, class C> void reduce_extreme(const ReduceSource<1>& s, const Finish<C>& last) {
  if constexpr (kMax) reduce(s, Numeric<C, Same, functors::Maximum>{{}, kBottom<C>, nullptr, last});
  else reduce(s, Numeric<C, Same, functors::Minimum>{{}, kTop<C>, nullptr, last});
}

// --- kernels ---------------------------------------------------------------------------------------------------------

ReduceSource<1> source(const OpCall& c, std::uint32_t dims) {
  const Tensor* const operands[] = {&c[0]};
  return reduce_source(operands, dims);
}
ReduceSource<1> source(const OpCall& c) { return source(c, c.get<ReduceAttrs>().dims); }

template <class C> std::size_t bytes_of(const ReduceSource<1>& s) {
  return static_cast<std::size_t>(s.outputs()) * sizeof(C);
}

// Under an accumulator: the product of each output's elements, in row-major order, with ones, divided by n.
void sum_accumulated(const Accumulator& how, const Tensor& x, std::uint32_t dims, double n, const Tensor& out) {
  if (out.numel() == 0) return;
  const CategoryScope scope(Category::workspace);
  const Tensor rows = copied(cpu::reduced_last(x, dims), DType::f32);
  const Tensor one = full({}, 1, {.device = x.device()});
  const Tensor sums = empty(out.sizes(), {.device = x.device()});
  const std::int64_t count = x.numel() / out.numel();
  const Gemm ones{.m = out.numel(),
                  .n = 1,
                  .k = count,
                  .a = {.data = rows.raw(), .ld = count},
                  .b = {.data = one.raw()},  // the same one for every element
                  .c = sums.raw(),
                  .ldc = 1};
  accumulate(how, ones, n == 1 && out.dtype() != DType::f32);
  const Tensor number;
  const Tensor* const quotient[] = {&sums, &number};
  map_elements<float, 2>(out, quotient, functors::Div{}, static_cast<float>(n));
}

template <bool kMean> void sum(const OpCall& c, Outputs& out) {
  const std::optional<Accumulator> how = accumulator_of(c.op);
  if (how && c[0].is_floating() && c[0].dtype() != DType::f64) {
    const double n = kMean ? static_cast<double>(c[0].numel()) / static_cast<double>(out[0].numel()) : 1;
    return sum_accumulated(*how, c[0], c.get<ReduceAttrs>().dims, n, out[0]);
  }
  const ReduceSource<1> s = source(c);
  cpu::visit_compute(c[0].dtype(), [&]<class C>(C) {
    const CountingStores counting(dtype_of<C>, out[0].dtype());
    const Stored<C> to(out[0], counting);
    if (kMean) reduce_sum<C>(s, Same{}, {to, Then::divide, static_cast<C>(s.count())});
    else reduce_sum<C>(s, Same{}, {to});
  });
}

template <bool kMax> void extreme(const OpCall& c, Outputs& out) {
  cpu::visit_compute(c[0].dtype(), [&]<class C>(C) {
    const CountingStores counting(dtype_of<C>, out[0].dtype());
    reduce_extreme<kMax, C>(source(c), {Stored<C>(out[0], counting)});
  });
}

// Two passes: the mean, then the squared deviations from it.
void var(const OpCall& c, Outputs& out) {
  const ReduceSource<1> s = source(c);
  const auto n = static_cast<double>(s.count());
  cpu::visit_floating(c[0].dtype(), [&]<class C>(C) {
    const Workspace means(bytes_of<C>(s));
    const CountingStores counting(dtype_of<C>, out[0].dtype());
    reduce_sum<C>(s, Same{}, {Stored<C>(means.as<C>()), Then::divide, static_cast<C>(n)});
    const auto degrees = static_cast<C>(std::max(0.0, n - c.get<ReduceAttrs>().value));
    reduce_sum<C>(s, SquareAbout{}, {Stored<C>(out[0], counting), Then::divide, degrees}, means.as<C>());
  });
}

// max + log(sum of exp(x - max)). A maximum that is not finite counts as 0, so that Inf - Inf never arises.
void logsumexp(const OpCall& c, Outputs& out) {
  const ReduceSource<1> s = source(c);
  cpu::visit_floating(c[0].dtype(), [&]<class C>(C) {
    const Workspace memory(bytes_of<C>(s));
    C* const shift = memory.as<C>();
    const CountingStores counting(dtype_of<C>, out[0].dtype());
    reduce_extreme<true, C>(s, {Stored<C>(shift), Then::if_finite});
    reduce_sum<C>(s, ExpAbove{}, {Stored<C>(out[0], counting), Then::log_and_shift, C{}, shift}, shift);
  });
}

// Sums of powers may leave the range of double: two more passes find the largest magnitude, and add powers of numbers
// near one.
template <class N> void far_norm(const ReduceSource<1>& s, double order, const Stored<double>& to) {
  const Workspace sums(bytes_of<double>(s));
  const Workspace largest(bytes_of<double>(s));
  const Stored<double> sum(sums.as<double>());
  const Stored<double> most(largest.as<double>());
  if (order == 2) reduce(s, Numeric<double, Squared, functors::Add, N>{{}, 0.0, nullptr, {sum}});
  else reduce(s, Numeric<double, Powered, functors::Add, N>{{order}, 0.0, nullptr, {sum}});
  reduce(s, Numeric<double, Magnitude, functors::Maximum, N>{{}, 0.0, nullptr, {most}});
  const FinishNorm last{to, order, sums.as<double>(), largest.as<double>()};
  reduce(s, Numeric<double, PoweredNearOne, functors::Add, N, FinishNorm>{{order}, 0.0, largest.as<double>(), last});
}

// Computed in double, so that squares of floats neither overflow nor underflow.
void norm(const OpCall& c, Outputs& out) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const double order = c.get<ReduceAttrs>().value;
  const ReduceSource<1> s = source(c);
  const CountingStores counting(DType::f64, out[0].dtype());
  const Stored<double> to(out[0], counting);
  cpu::visit_floating(c[0].dtype(), [&]<class N>(N) {
    using functors::Add, functors::Maximum, functors::Minimum;
    const auto run = [&]<class Map, class Combine>(const Map& map, Combine, double start, const Finish<double>& last) {
      reduce(s, Numeric<double, Map, Combine, N>{map, start, nullptr, last});
    };
    if (order == kInf) return run(Magnitude{}, Maximum{}, 0.0, {to});
    if (order == -kInf) return run(Magnitude{}, Minimum{}, kInf, {to});
    if (order == 0) return run(NotZero{}, Add{}, 0.0, {to});
    if (order == 1) return run(Magnitude{}, Add{}, 0.0, {to});
    if (order > 0 && powers_leave_double(c[0].dtype(), order)) return far_norm<N>(s, order, to);
    if (order == 2) return run(Squared{}, Add{}, 0.0, {to, Then::root});
    run(Powered{order}, Add{}, 0.0, {to, Then::power, 1 / order});
  });
}

// The first of equal elements; NaN counts as the extreme.
template <class C> struct Best {
  C value;
  std::int64_t index;  // -1: none so far
  template <class F> __device__ Best each(const F& f) const { return {f(value), f(index)}; }
};
template <class C, bool kMax> struct Arg {
  using Number = C;
  using Acc = Best<C>;
  static constexpr int kInputs = 1;
  std::int64_t* to;

  __device__ Acc identity() const { return {C{}, -1}; }
  __device__ Acc map(const C (&x)[1], std::int64_t, std::int64_t position) const { return {x[0], position}; }
  __device__ Acc combine(const Acc& a, const Acc& b) const {
    if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
    const bool a_nan = a.value != a.value;
    const bool b_nan = b.value != b.value;
    if (a_nan != b_nan) return a_nan ? a : b;
    if (a.value == b.value || a_nan) return a.index < b.index ? a : b;
    return (kMax ? a.value > b.value : a.value < b.value) ? a : b;
  }
  __device__ void finish(const Acc& best, std::int64_t output) const { to[output] = best.index; }
};
template <bool kMax> void arg(const OpCall& c, Outputs& out) {
  const ReduceSource<1> s = source(c, c[0].dim() > 0 ? 1u << c.get<DimAttrs>().dim : 0u);
  cpu::visit_compute(c[0].dtype(),
                     [&]<class C>(C) { reduce(s, Arg<C, kMax>{static_cast<std::int64_t*>(out[0].raw())}); });
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

}  // namespace gradual::cuda
