#include "rounded_gemm.h"

#include <algorithm>

#include "../formats/accumulate_element.h"
#include "../support/multiversion.h"
#include "../tensor/memory.h"

namespace gradual::cpu {
namespace {

using Spec = detail::SumSpec;

// A tile has kRows x kCols independent sums; kDepth rows of b are packed at a time.
constexpr std::int64_t kRows = 32, kCols = 64, kDepth = 64;

// sums[j] = round(sums[j] + factor * terms[j]). Factor and terms hold f32 values, so that the product is exact.
using Add = void (*)(const Spec&, double factor, const double* terms, double* sums, std::int64_t n);

template <int loop>
void add_rounded(const Spec& spec, double factor, const double* terms, double* sums, std::int64_t n) {
  vectorized([=, &spec] {
    const Spec s = spec;
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j) sums[j] = detail::add_rounded<loop>(s, sums[j], factor * terms[j]);
  });
}
void add_doubles(const Spec&, double factor, const double* terms, double* sums, std::int64_t n) {
  vectorized([=] {
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j) sums[j] += factor * terms[j];
  });
}

struct Adder {
  Spec spec;
  Add add;
  void operator()(double factor, const double* terms, double* sums, std::int64_t n) const {
    add(spec, factor, terms, sums, n);
  }
  // sums += terms; then the terms are 0.
  void carry(double* terms, double* sums, std::int64_t n) const {
    add(spec, 1, terms, sums, n);
    std::fill_n(terms, n, 0.0);
  }
};

Adder adder(const Format& format, RoundingMode mode) {
  // indexed by RoundingMode
  static constexpr Add kAdds[] = {
      add_rounded<detail::kAligned>, add_rounded<1>, add_rounded<2>, add_rounded<3>, add_rounded<4>, add_rounded<5>};
  return {detail::sum_spec(format, mode), kAdds[static_cast<int>(mode)]};
}

// A product c += a b whose c, too, has any strides.
struct Problem {
  std::int64_t m, n, k;
  MatrixRef<float> a, b;
  float* c;
  std::int64_t row_stride, col_stride;
};

struct Adders {
  Adder own, promoted, last;
};

// `packed` has space for kDepth rows of b, then for three tiles of sums: the innermost ones, those of chunks, and the
// promoted ones.
void tile(const Accumulator& how, const Adders& add, const Problem& g, double* packed) {
  const std::int64_t all = g.m * g.n;
  double* const chain = packed + kDepth * kCols;
  double* const group = how.chunk ? chain + kRows * kCols : chain;
  double* const total = how.promote ? chain + 2 * kRows * kCols : group;
  for (int level = 0; level < 3; ++level) std::fill_n(chain + level * kRows * kCols, all, 0.0);
  for (std::int64_t at = 0, end = 0; at < g.k; at = end) {
    const std::int64_t within = how.promote ? at % how.promote : at;
    end = std::min(g.k, at + kDepth);
    if (how.promote) end = std::min(end, at - within + how.promote);
    if (how.chunk) end = std::min(end, at + how.chunk - within % how.chunk);
    for (std::int64_t p = at; p < end; ++p)
      for (std::int64_t j = 0; j < g.n; ++j)
        packed[(p - at) * g.n + j] = g.b.data[p * g.b.row_stride + j * g.b.col_stride];
    for (std::int64_t i = 0; i < g.m; ++i)
      for (std::int64_t p = at; p < end; ++p)
        add.own(g.a.data[i * g.a.row_stride + p * g.a.col_stride], packed + (p - at) * g.n, chain + i * g.n, g.n);
    const bool promotes = how.promote && (end == g.k || end % how.promote == 0);
    const bool closes = how.chunk && (promotes || end == g.k || (within + end - at) % how.chunk == 0);
    if (closes) add.own.carry(chain, group, all);
    if (promotes) add.promoted.carry(group, total, all);
  }
  for (std::int64_t i = 0; i < g.m; ++i) {
    float* const c = g.c + i * g.row_stride;
    for (std::int64_t j = 0; j < g.n; ++j) packed[j] = c[j * g.col_stride];
    add.last(1, total + i * g.n, packed, g.n);
    for (std::int64_t j = 0; j < g.n; ++j) c[j * g.col_stride] = static_cast<float>(packed[j]);
  }
}

}  // namespace

void accumulate(const Accumulator& how, const Gemm<float>& g, bool narrows) {
  if (g.m <= 0 || g.n <= 0 || g.k <= 0) return;
  using enum RoundingMode;
  const Format f32 = Format::ieee(8, 23);
  const Adders add{how.f64 ? Adder{{}, add_doubles} : adder(how.format, how.rounding.mode), adder(f32, nearest_even),
                   adder(f32, narrows ? to_odd : nearest_even)};
  Problem p{g.m, g.n, g.k, g.a, g.b, g.c, g.ldc, 1};
  if (g.n < kCols && g.n < g.m)  // loops over columns are vectorised; the transposed product has more
    p = {g.n, g.m, g.k,  {g.b.data, g.b.col_stride, g.b.row_stride}, {g.a.data, g.a.col_stride, g.a.row_stride},
         g.c, 1,   g.ldc};
  const Scratch memory((kDepth * kCols + 3 * kRows * kCols) * sizeof(double));  // too large for a small stack
  for (std::int64_t j = 0; j < p.n; j += kCols) {
    for (std::int64_t i = 0; i < p.m; i += kRows) {
      Problem part = p;
      part.m = std::min(kRows, p.m - i);
      part.n = std::min(kCols, p.n - j);
      part.a.data += i * p.a.row_stride;
      part.b.data += j * p.b.col_stride;
      part.c += i * p.row_stride + j * p.col_stride;
      tile(how, add, part, memory.as<double>());
    }
  }
}

}  // namespace gradual::cpu
