#include "rounded_gemm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "../formats/accumulate_element.h"
#include "../kernels/contraction_operand.h"
#include "../kernels/copies.h"
#include "../kernels/loops.h"
#include "../kernels/reduce_plan.h"
#include "../support/multiversion.h"
#include "../support/parallel.h"
#include "../support/philox.h"
#include "../tensor/memory.h"

namespace gradual::cpu {
namespace {

using Spec = detail::SumSpec;

// A tile has kRows x kCols independent sums; kDepth rows of b are packed at a time.
constexpr std::int64_t kRows = 32, kCols = 64, kDepth = 64;

// sums[j] = round(sums[j] + factor * terms[j]). Factor and terms hold f32 values, so that the product is exact. `words`
// are for stochastic rounding.
using Add = void (*)(const Spec&, double factor, const double* terms, const std::uint32_t* words, double* sums,
                     std::int64_t n);

template <int loop>
void add_rounded(const Spec& spec, double factor, const double* terms, const std::uint32_t* words, double* sums,
                 std::int64_t n) {
  constexpr bool by_chance = loop == static_cast<int>(RoundingMode::stochastic);
  vectorized([=, &spec] {
    const Spec s = spec;
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j)
      sums[j] = detail::add_rounded<loop>(s, sums[j], factor * terms[j], by_chance ? words[j] : 0);
  });
}
void add_doubles(const Spec&, double factor, const double* terms, const std::uint32_t*, double* sums, std::int64_t n) {
  vectorized([=] {
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j) sums[j] += factor * terms[j];
  });
}

// log2 of a magnitude, rounded down; far below any other for zero, 1024 for Inf and NaN.
inline std::int64_t exponent_of(double x) {
  return static_cast<std::int64_t>(std::bit_cast<std::uint64_t>(x) << 1 >> 53) - 1023;
}

// One group: sums[j] += factors[p * step] * terms[p * n + j] for p < count, as Accumulator::group says.
using AddGroup = void (*)(const Spec&, int fraction, const float* factors, std::int64_t step, const double* terms,
                          std::int64_t count, const std::uint32_t* words, double* sums, std::int64_t n);

template <int loop>
void add_group(const Spec& spec, int fraction, const float* factors, std::int64_t step, const double* terms,
               std::int64_t count, const std::uint32_t* words, double* sums, std::int64_t n) {
  constexpr bool by_chance = loop == static_cast<int>(RoundingMode::stochastic);
  vectorized([=, &spec] {
    const Spec s = spec;
    const std::int64_t lowest = s.min_exponent - 1023;
    for (std::int64_t j = 0; j < n; ++j) {
      std::int64_t most = sums[j] == 0 ? -1023 : std::max(exponent_of(sums[j]), lowest);
      double plain = sums[j];
      for (std::int64_t p = 0; p < count; ++p) {
        const auto factor = static_cast<double>(factors[p * step]);
        const double product = factor * terms[p * n + j];
        plain += product;
        if (product != 0) most = std::max(most, exponent_of(factor) + exponent_of(terms[p * n + j]));
      }
      if (plain - plain != 0) {  // an Inf or a NaN
        sums[j] = plain;
        continue;
      }
      // unit * back == 1; products and their multiples are exact.
      const double unit = std::bit_cast<double>(static_cast<std::uint64_t>(1023 + fraction - most) << 52);
      const double back = std::bit_cast<double>(static_cast<std::uint64_t>(1023 - fraction + most) << 52);
      double total = std::trunc(sums[j] * unit);
      for (std::int64_t p = 0; p < count; ++p)
        total += std::trunc(static_cast<double>(factors[p * step]) * terms[p * n + j] * unit);
      detail::LoopCounts none;
      const auto bits = std::bit_cast<std::uint64_t>(total * back);
      sums[j] = std::bit_cast<double>(
                    detail::round_bits<loop, false, false, false>(bits, by_chance ? words[j] : 0, s, none)) +
                0.0;
    }
  });
}

// The random words of a stochastic accumulator's additions; null for others.
struct Words {
  const Accumulator& how;
  std::int64_t first = 0, across = 0;  // of c: the number of the tile's first element, and of the elements in a row
  std::uint32_t words[kCols] = {};

  // Of n elements from `col` in row `row`, for their addition number `addition`.
  const std::uint32_t* of(std::int64_t row, std::int64_t col, std::int64_t addition, std::int64_t n) {
    if (how.rounding.mode != RoundingMode::stochastic) return nullptr;
    const std::int64_t element = first + row * across + col;
    philox_fill(how.key.seed, how.key.stream + static_cast<std::uint64_t>(addition),
                static_cast<std::uint64_t>(element), words, n);
    for (std::int64_t j = 0; j < n; ++j) words[j] >>= 32 - how.rounding.random_bits;
    return words;
  }
};

struct Adder {
  Spec spec;
  Add add;
  AddGroup group;
};

template <int... mode>
Adder adder(const Format& format, const Rounding& rounding, std::integer_sequence<int, mode...>) {
  static constexpr Add kAdds[] = {add_rounded<(mode ? mode : detail::kAligned)>...};
  static constexpr AddGroup kGroups[] = {add_group<(mode ? mode : detail::kAligned)>...};
  const auto by = static_cast<std::size_t>(rounding.mode);
  return {detail::sum_spec(format, rounding), kAdds[by], kGroups[by]};
}
Adder adder(const Format& format, const Rounding& rounding) {
  return adder(format, rounding, std::make_integer_sequence<int, detail::kAligned>{});
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

// sums += terms, [m, n], and the terms start again from zero.
void carry(const Adder& add, double* terms, double* sums, std::int64_t m, std::int64_t n, Words& words,
           std::int64_t addition) {
  for (std::int64_t i = 0; i < m; ++i)
    add.add(add.spec, 1, terms + i * n, words.of(i, 0, addition, n), sums + i * n, n);
  std::fill_n(terms, m * n, 0.0);
}

// `packed` has room for kDepth rows of b and then for three tiles of sums: the chains, those of chunks, the promoted
// ones.
void tile(const Accumulator& how, const Adders& add, const Problem& g, Words& words, double* packed) {
  const std::int64_t all = g.m * g.n;
  double* const chain = packed + kDepth * kCols;
  double* const group = how.chunk ? chain + kRows * kCols : chain;
  double* const total = how.promote ? chain + 2 * kRows * kCols : group;
  for (int level = 0; level < 3; ++level) std::fill_n(chain + level * kRows * kCols, all, 0.0);
  const std::int64_t depth = how.group ? kDepth / how.group * how.group : kDepth, step = g.a.col_stride;
  for (std::int64_t at = 0, end = 0; at < g.k; at = end) {
    const std::int64_t within = how.promote ? at % how.promote : at;
    end = std::min(g.k, at + depth);
    if (how.promote) end = std::min(end, at - within + how.promote);
    if (how.chunk) end = std::min(end, at + how.chunk - within % how.chunk);
    for (std::int64_t p = at; p < end; ++p)
      for (std::int64_t j = 0; j < g.n; ++j)
        packed[(p - at) * g.n + j] = g.b.data[p * g.b.row_stride + j * g.b.col_stride];
    for (std::int64_t i = 0; i < g.m; ++i)
      for (std::int64_t p = at, next = 0; p < end; p = next) {
        next = how.group ? std::min(end, p + how.group) : p + 1;
        const float* const factors = g.a.data + i * g.a.row_stride + p * step;
        const double* const terms = packed + (p - at) * g.n;
        const std::uint32_t* const random = words.of(i, 0, p, g.n);
        if (how.group)
          add.own.group(add.own.spec, how.fraction, factors, step, terms, next - p, random, chain + i * g.n, g.n);
        else add.own.add(add.own.spec, *factors, terms, random, chain + i * g.n, g.n);
      }
    const bool promotes = how.promote && (end == g.k || end % how.promote == 0);
    const bool closes = how.chunk && (promotes || end == g.k || (within + end - at) % how.chunk == 0);
    if (closes) carry(add.own, chain, group, g.m, g.n, words, g.k + end);  // after the numbers of products
    if (promotes) carry(add.promoted, group, total, g.m, g.n, words, 0);
  }
  for (std::int64_t i = 0; i < g.m; ++i) {
    float* const c = g.c + i * g.row_stride;
    for (std::int64_t j = 0; j < g.n; ++j) packed[j] = c[j * g.col_stride];
    add.last.add(add.last.spec, 1, total + i * g.n, nullptr, packed, g.n);
    for (std::int64_t j = 0; j < g.n; ++j) c[j * g.col_stride] = static_cast<float>(packed[j]);
  }
}

}  // namespace

void accumulate(const Accumulator& how, const Gemm<float>& g, bool narrows, std::int64_t first_element,
                std::int64_t across) {
  if (g.m <= 0 || g.n <= 0 || g.k <= 0) return;
  using enum RoundingMode;
  const Format f32 = Format::ieee(8, 23);
  const Adders add{how.f64 ? Adder{{}, add_doubles, nullptr} : adder(how.format, how.rounding), adder(f32, {}),
                   adder(f32, {narrows ? to_odd : nearest_even})};
  Problem p{g.m, g.n, g.k, g.a, g.b, g.c, g.ldc, 1};
  const bool by_chance = how.rounding.mode == stochastic;  // numbers elements along the rows
  if (g.n < kCols && g.n < g.m && !by_chance)  // the transposed product has more columns, which are what is vectorised
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
      Words words{how, first_element + i * across + j, across};
      tile(how, add, part, words, memory.as<double>());
    }
  }
}

bool sum_accumulated(const Tensor& x, std::uint32_t dims, double n, Tensor& out) {
  if (!current_accumulator() || !is_floating(x.dtype()) || x.dtype() == DType::f64) return false;
  constexpr float kOne = 1;
  constexpr std::int64_t kSums = 64;  // sums per product
  const Tensor rows = copied(reduced_last(x, dims), DType::f32);
  const std::int64_t count = x.numel() / std::max<std::int64_t>(1, out.numel());
  const Accumulator& how = *current_accumulator();
  const Result<float> sums(out);
  parallel_for(out.numel(), kSums, [&](std::int64_t begin, std::int64_t end) {
    float* const to = sums.data() + begin;
    std::fill_n(to, end - begin, 0.0F);
    const Gemm<float> ones{.m = 1,
                           .n = end - begin,
                           .k = count,
                           .a = {&kOne, 0, 0},
                           .b = {rows.data<float>() + begin * count, 1, count},
                           .c = to,
                           .ldc = end - begin};
    accumulate(how, ones, n == 1 && out.dtype() != DType::f32, begin, out.numel());
    for (std::int64_t i = 0; i < end - begin; ++i) to[i] = to[i] / static_cast<float>(n);
  });
  sums.store();
  return true;
}

}  // namespace gradual::cpu
