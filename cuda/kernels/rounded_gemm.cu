#include "rounded_gemm.h"

#include "../../core/formats/accumulate_element.h"
#include "../../core/support/error.h"
#include "gemm_element.h"

namespace gradual::cuda {
namespace {

using detail::add_rounded;
using detail::SumSpec;

constexpr int kDoubles = -1;  // sums are doubles, in place of a rounding

// One thread per element computes its sum of products, the sums of chunks and promotions, and adds the bias at the end.
template <int own> struct Accumulate {
  Gemm g;
  SumSpec format, f32, last;
  std::int64_t chunk, promote;
  bool narrows;

  __device__ void operator()(std::int64_t i) const {
    const Place at = place(g, i);
    double chain = 0;
    double group = 0;
    double total = 0;
    for (std::int64_t p = 0; p < g.k; ++p) {
      chain = add(chain, operand(g.a, at.batch, at.row, p) * operand(g.b, at.batch, p, at.col));
      const std::int64_t within = (promote ? p % promote : p) + 1;
      const bool promotes = promote && (within == promote || p + 1 == g.k);
      if (chunk && (promotes || p + 1 == g.k || within % chunk == 0)) {
        group = add(group, chain);
        chain = 0;
      }
      if (promotes) {
        total = add_rounded<detail::kAligned>(f32, total, chunk ? group : chain);
        group = 0;
        chain = 0;
      }
    }
    double value = g.bias ? load_element<double>(g.bias_dtype(), g.bias, at.col) : 0;
    const double sum = promote ? total : chunk ? group : chain;
    if (g.k > 0)
      value = narrows ? add_rounded<static_cast<int>(RoundingMode::to_odd)>(last, value, sum)
                      : add_rounded<detail::kAligned>(last, value, sum);
    store_result(g, at, static_cast<float>(value));
  }

 private:
  // An f32 operand as a double: products are exact.
  __device__ double operand(const Matrix& x, std::int64_t batch, std::int64_t i, std::int64_t j) const {
    return static_cast<double>(element<float>(x, g.tf32, batch, i, j));
  }
  __device__ double add(double sum, double term) const {
    if constexpr (own == kDoubles) return sum + term;
    else return add_rounded<own>(format, sum, term);
  }
};

template <int own> void start_with(const Accumulator& how, const Gemm& g, bool narrows) {
  using enum RoundingMode;
  const Format f32 = Format::ieee(8, 23);
  for_each(g.batch * g.m * g.n,
           Accumulate<own>{g, detail::sum_spec(how.format, how.rounding), detail::sum_spec(f32, {nearest_even}),
                           detail::sum_spec(f32, {narrows ? to_odd : nearest_even}), how.chunk, how.promote, narrows});
}

}  // namespace

void accumulate(const Accumulator& how, const Gemm& g, bool narrows) {
  if (how.group != 0 || how.product || how.rounding.mode == RoundingMode::stochastic)
    throw_error("accumulator " + to_string(how) +
                ": sums of groups or of rounded products and stochastic sums run on the CPU only");
  // by RoundingMode
  static constexpr auto kRounded = {
      start_with<detail::kAligned>, start_with<1>, start_with<2>, start_with<3>, start_with<4>, start_with<5>};
  const int mode = static_cast<int>(how.rounding.mode);
  const bool by_exponent = mode == 0 && how.format.mantissa_bits == 0;  // ties go by the exponent's last bit
  const auto rounded = by_exponent ? start_with<0> : kRounded.begin()[mode];
  const auto start = how.f64 ? start_with<kDoubles> : rounded;
  start(how, g, narrows);
}

}  // namespace gradual::cuda
