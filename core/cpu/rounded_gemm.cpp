#include "rounded_gemm.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <utility>

#include "../formats/accumulate_element.h"
#include "../kernels/contraction_operand.h"
#include "../kernels/copies.h"
#include "../kernels/loops.h"
#include "../kernels/reduce_plan.h"
#include "../ops/accumulator_of.h"
#include "../support/multiversion.h"
#include "../support/parallel.h"
#include "../support/philox.h"
#include "../tensor/memory.h"
#include "group_sums.h"
#include "ordered_gemm.h"

namespace gradual::cpu {
namespace {

using Spec = GroupSpec;

// A tile has kRows x kCols independent sums; kDepth rows of b are packed at a time, kCols apart.
constexpr std::int64_t kRows = 32;
constexpr std::int64_t kCols = 64;
constexpr std::int64_t kDepth = 64;
constexpr float kOne = 1;

// sums[j] = round(sums[j] + factors[p * step] * terms[p * kCols + j]) for one p < count after the other, or, as
// Accumulator::group says, for all at once. Factors and terms hold f32 values, so that products are exact in f64.
// `words` are for stochastic rounding of one addition. The result is for in_floats().
template <class T>
using Add = float (*)(const Spec&, const float* factors, std::int64_t step, const T* terms, std::int64_t count,
                      const std::uint32_t* words, T* sums, std::int64_t n);

// The product of f32 values, exact in f64, rounded to its own format; a sum with -0 is the number itself.
inline double rounded_product(const Spec& s, double product) {
  return detail::add_rounded<static_cast<int>(RoundingMode::nearest_even)>(s.product, product, -0.0);
}

// Not rounded, if `loop` is kPlain. unfused: products are rounded before.
constexpr int kPlain = -1;
template <int loop, class T, bool unfused = false>
float add_rounded(const Spec& spec, const float* factors, std::int64_t step, const T* terms, std::int64_t count,
                  const std::uint32_t* words, T* sums, std::int64_t n) {
  constexpr bool by_chance = loop == static_cast<int>(RoundingMode::stochastic);
  vectorized([=, &spec] {
    const Spec s = spec;
    for (std::int64_t p = 0; p < count; ++p) {
      const T factor = factors[p * step];
#pragma omp simd
      for (std::int64_t j = 0; j < n; ++j) {
        T product = factor * terms[p * kCols + j];
        if constexpr (unfused) product = rounded_product(s, product);
        if constexpr (loop == kPlain) sums[j] += product;
        else sums[j] = detail::add_rounded<loop>(s, sums[j], product, by_chance ? words[j] : 0);
      }
    }
  });
  return 0;
}

template <int loop>
float add_group(const Spec& spec, const float* factors, std::int64_t step, const double* terms, std::int64_t count,
                const std::uint32_t* words, double* sums, std::int64_t n) {
  constexpr bool by_chance = loop == static_cast<int>(RoundingMode::stochastic);
  vectorized([=, &spec] {
    const Spec s = spec;
    const std::int64_t lowest = s.lowest_exponent();
    for (std::int64_t j = 0; j < n; ++j) {
      std::int64_t most = sums[j] == 0 ? kNoExponent : std::max(exponent_of(sums[j]), lowest);
      double plain = sums[j];
      for (std::int64_t p = 0; p < count; ++p) {
        const auto factor = static_cast<double>(factors[p * step]);
        const double product = factor * terms[p * kCols + j];
        plain += product;
        const std::int64_t exponent = std::max(exponent_of(factor), s.operands_from) +
                                      std::max(exponent_of(terms[p * kCols + j]), s.operands_from);
        if (product != 0) most = std::max(most, exponent);
      }
      if (plain - plain != 0) {  // an Inf or a NaN
        sums[j] = plain;
        continue;
      }
      // unit * back == 1; products and their multiples are exact.
      const double unit = std::bit_cast<double>(static_cast<std::uint64_t>(1023 + s.fraction - most) << 52);
      const double back = std::bit_cast<double>(static_cast<std::uint64_t>(1023 - s.fraction + most) << 52);
      double total = std::trunc(sums[j] * unit);
      for (std::int64_t p = 0; p < count; ++p)
        total += std::trunc(static_cast<double>(factors[p * step]) * terms[p * kCols + j] * unit);
      detail::LoopCounts none;
      const auto bits = std::bit_cast<std::uint64_t>(total * back);
      sums[j] = std::bit_cast<double>(
                    detail::round_bits<loop, false, false, false>(bits, by_chance ? words[j] : 0, s, none)) +
                0.0;
    }
  });
  return 0;
}

// A group's sum for one column after the other.
template <auto group_sum, bool by_chance>
float add_columns(const Spec& spec, const float* factors, std::int64_t step, const double* terms, std::int64_t count,
                  const std::uint32_t* words, double* sums, std::int64_t n) {
  Group g;
  g.count = count;
  for (std::int64_t p = 0; p < count; ++p) g.a[p] = factors[p * step];
  for (std::int64_t j = 0; j < n; ++j) {
    for (std::int64_t p = 0; p < count; ++p) g.b[p] = terms[p * kCols + j];
    sums[j] = group_sum(spec, sums[j], g, by_chance ? words[j] : 0);
  }
  return 0;
}

template <int loop> Add<double> group_adder(GroupSum adds) {
  constexpr bool by_chance = loop == static_cast<int>(RoundingMode::stochastic);
  static constexpr Add<double> kByWay[] = {
      add_group<loop>, add_columns<exact_group_sum<loop>, by_chance>, add_columns<pairwise_group_sum<loop>, false>,
      add_columns<late_group_sum<loop, false>, by_chance>, add_columns<late_group_sum<loop, true>, by_chance>};
  return kByWay[static_cast<std::size_t>(adds)];
}

#if defined(__x86_64__)
[[gnu::target("avx")]] inline float largest_of(__m256 x) {
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, x);
  return *std::max_element(std::begin(lanes), std::end(lanes));
}

// The same in floats, for sums that in_floats() accepts; n counts as kCols. A fused multiply-add rounded down and one
// rounded up give neighbours, or twice the exact sum. The odd one of them is the sum rounded to odd in f32, and a later
// rounding to at most 22 bits gives the rounding of the exact sum (Boldo and Melquiond 2005). The last place of
// 3/2 * 2^shift times the sum's power of two is the format's: adding and subtracting it rounds. `down` has that power
// too, or the next one, to which the sum is so near that both round alike. An exact zero is that of rounding up, as to
// nearest. Returns the largest magnitude of a rounded sum. A power of two beyond f32 makes the sum NaN, which stays.
[[gnu::target("avx512f,avx512bw,avx512dq")]] float add_floats(const Spec& s, const float* factors, std::int64_t step,
                                                              const float* terms, std::int64_t count,
                                                              const std::uint32_t*, float* sums, std::int64_t) {
  constexpr int kLanes = 16;
  constexpr int kVectors = kCols / kLanes;
  const __m512i lowest = _mm512_set1_epi32((s.min_exponent - 1023 + 127) << 23);
  const __m512i one = _mm512_set1_epi32(1);
  const __m512i further = _mm512_set1_epi32(((s.shift - 29) << 23) + (1 << 22));
  const __m512i sign = _mm512_set1_epi32(INT32_MIN);
  const __m512i exponents = _mm512_set1_epi32(0x7f800000);
  __m512 sum[kVectors], most[kVectors]{};
  for (int v = 0; v < kVectors; ++v) sum[v] = _mm512_loadu_ps(sums + v * kLanes);
  for (std::int64_t p = 0; p < count; ++p) {
    const __m512 factor = _mm512_set1_ps(factors[p * step]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __m512 term = _mm512_loadu_ps(terms + p * kCols + v * kLanes);
      const __m512 down = _mm512_fmadd_round_ps(factor, term, sum[v], _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
      const __m512 up = _mm512_fmadd_round_ps(factor, term, sum[v], _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
      const __m512i bits = _mm512_castps_si512(down);
      const __m512 odd = _mm512_mask_mov_ps(up, _mm512_test_epi32_mask(bits, one), down);
      const __m512i power = _mm512_max_epi32(_mm512_and_si512(bits, exponents), lowest);
      const __m512 aligner = _mm512_castsi512_ps(_mm512_adds_epi16(power, further));  // saturates to NaN
      const __m512 rounded = _mm512_sub_ps(_mm512_add_ps(odd, aligner), aligner);
      sum[v] = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(rounded), _mm512_castps_si512(odd),
                                                             sign, 0xf8));  // keeps the sign of a zero
      most[v] = _mm512_range_ps(most[v], sum[v], 0xb);                      // the larger magnitude
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    _mm512_storeu_ps(sums + v * kLanes, sum[v]);
    most[0] = _mm512_range_ps(most[0], most[v], 0xb);
  }
  const __m512d all = _mm512_castps_pd(most[0]);
  const __m256d low = _mm512_maskz_extractf64x4_pd(0xf, all, 0);
  const __m256d high = _mm512_maskz_extractf64x4_pd(0xf, all, 1);
  return largest_of(_mm256_max_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high)));
}

// factor * term + sum rounded to odd, from `near`, the same rounded to nearest. The product is exact in f64, TwoSum
// (Knuth, TAOCP 2, 4.2.2) gives the error of adding it in f64, and the difference between that sum and `near` is exact.
[[gnu::target("avx2,fma")]] inline __m256 sum_to_odd(__m256 factor, __m256 term, __m256 sum, __m256 near) {
  __m256i parts[2];
  for (int half = 0; half < 2; ++half) {
    const auto wide = [half](__m256 x) __attribute__((target("avx2,fma"))) {
      return _mm256_cvtps_pd(half ? _mm256_extractf128_ps(x, 1) : _mm256_castps256_ps128(x));
    };
    const __m256d old = wide(sum);
    const __m256d product = _mm256_mul_pd(wide(factor), wide(term));
    const __m256d total = _mm256_add_pd(old, product);
    const __m256d of_product = _mm256_sub_pd(total, old);
    const __m256d rest =
        _mm256_add_pd(_mm256_sub_pd(old, _mm256_sub_pd(total, of_product)), _mm256_sub_pd(product, of_product));
    const __m256d error = _mm256_add_pd(_mm256_sub_pd(total, wide(near)), rest);
    const __m256d inexact = _mm256_cmp_pd(error, _mm256_setzero_pd(), _CMP_NEQ_UQ);
    // bit 0: near is not exact; the sign: it lies farther from zero than the exact sum
    const __m256d beyond = _mm256_and_pd(_mm256_xor_pd(error, wide(near)), _mm256_set1_pd(-0.0));
    const __m256i is_odd = _mm256_and_si256(_mm256_castpd_si256(inexact), _mm256_set1_epi64x(1));
    parts[half] = _mm256_or_si256(is_odd, _mm256_castpd_si256(_mm256_and_pd(inexact, beyond)));
  }
  const __m256 low = _mm256_castsi256_ps(parts[0]);
  const __m256 high = _mm256_castsi256_ps(parts[1]);
  const auto joined = [&](__m256 x) __attribute__((target("avx2,fma"))) {  // pairs of 64 bits in the order of the lanes
    return _mm256_permute4x64_epi64(_mm256_castps_si256(x), 0xd8);
  };
  const __m256i inexact = joined(_mm256_shuffle_ps(low, high, 0x88));
  const __m256i too_far = _mm256_srli_epi32(joined(_mm256_shuffle_ps(low, high, 0xdd)), 31);
  return _mm256_castsi256_ps(_mm256_or_si256(_mm256_sub_epi32(_mm256_castps_si256(near), too_far), inexact));
}

// As add_floats(), without rounding by the instruction. A sum rounded to nearest in f32 and then in the format is the
// exact sum rounded once, unless f32's lies half way between two numbers of the format: such sums are rounded to odd in
// f32 first. `tiny`: half of the format's last place may be below f32's normal numbers; where it is, sums other than
// zero count as half way.
template <bool tiny>
[[gnu::target("avx2,fma")]] float add_floats_avx2(const Spec& s, const float* factors, std::int64_t step,
                                                  const float* terms, std::int64_t count, const std::uint32_t*,
                                                  float* sums, std::int64_t) {
  constexpr int kLanes = 8;
  constexpr int kVectors = 4;
  const int dropped = s.shift - 29;  // bits of f32 that the format lacks
  const __m256i lowest = _mm256_set1_epi32((s.min_exponent - 1023 + 127) << 23);
  const __m256i further = _mm256_set1_epi32((dropped << 23) + (1 << 22));
  const __m256i to_half = _mm256_set1_epi32((24 - dropped) << 23);  // from a sum's power of two to half its last place
  const __m256i exponents = _mm256_set1_epi32(0x7f800000);
  const __m256 sign = _mm256_set1_ps(-0.0F);
  const __m256 zero = _mm256_setzero_ps();
  const __m256i all = _mm256_set1_epi32(-1);
  const auto power_of = [&](__m256 x) __attribute__((target("avx2,fma"))) {
    return _mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(x), exponents), lowest);
  };
  const auto rounded = [&](__m256 x, __m256i power) __attribute__((target("avx2,fma"))) {
    const __m256 aligner = _mm256_castsi256_ps(_mm256_adds_epi16(power, further));  // saturates to NaN
    return _mm256_sub_ps(_mm256_add_ps(x, aligner), aligner);
  };
  __m256 most = zero;
  for (std::int64_t at = 0; at < kCols; at += kVectors * kLanes) {
    __m256 sum[kVectors];
    for (int v = 0; v < kVectors; ++v) sum[v] = _mm256_loadu_ps(sums + at + v * kLanes);
    for (std::int64_t p = 0; p < count; ++p) {
      const __m256 factor = _mm256_set1_ps(factors[p * step]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const __m256 term = _mm256_loadu_ps(terms + p * kCols + at + v * kLanes);
        __m256 near = _mm256_fmadd_ps(factor, term, sum[v]);
        const __m256i power = power_of(near);
        __m256 result = rounded(near, power);
        const __m256i moved = _mm256_castps_si256(_mm256_andnot_ps(sign, _mm256_sub_ps(near, result)));
        __m256i doubtful = _mm256_cmpeq_epi32(moved, _mm256_sub_epi32(power, to_half));
        if constexpr (tiny) {
          const __m256i is_zero = _mm256_castps_si256(_mm256_cmp_ps(near, zero, _CMP_EQ_OQ));
          const __m256i is_safe = _mm256_or_si256(is_zero, _mm256_cmpgt_epi32(power, to_half));
          doubtful = _mm256_or_si256(doubtful, _mm256_andnot_si256(is_safe, all));
        }
        if (!_mm256_testz_si256(doubtful, doubtful)) {
          near = sum_to_odd(factor, term, sum[v], near);
          result = rounded(near, power_of(near));
        }
        sum[v] = _mm256_or_ps(result, _mm256_and_ps(near, sign));  // keeps the sign of a zero
        most = _mm256_max_ps(most, _mm256_andnot_ps(sign, sum[v]));
      }
    }
    for (int v = 0; v < kVectors; ++v) _mm256_storeu_ps(sums + at + v * kLanes, sum[v]);
  }
  return largest_of(most);
}
#else
constexpr Add<float> add_floats = nullptr;
template <bool tiny> constexpr Add<float> add_floats_avx2 = nullptr;
#endif

// The one that this processor has; for accumulators that in_floats() accepts.
Add<float> float_adder(const Spec& spec) {
  if (cpu_isa() >= CpuIsa::avx512) return add_floats;
  // the smallest normal number's last place, halved, against f32's smallest normal number
  const bool tiny = spec.min_exponent - 1023 - (52 - spec.shift) - 1 < -126;
  return tiny ? add_floats_avx2<true> : add_floats_avx2<false>;
}

// Whether add_floats() and add_floats_avx2() give the sums, unless one is beyond the format's range.
bool in_floats(const Accumulator& how) {
  const Format& f = how.format;
  return cpu_isa() >= CpuIsa::avx2 && how.rounding == Rounding() && !how.f64 && how.group == 0 && !how.product &&
         f.mantissa_bits >= 1 && f.mantissa_bits <= 21 && f.subnormals && f.has_negative_zero;
}

// The random words of a stochastic accumulator's additions; null for others.
struct Words {
  const Accumulator& how;
  std::int64_t first = 0;   // of c: the number of the tile's first element
  std::int64_t across = 0;  // and of the elements in a row
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

template <class T> struct Adder {
  Spec spec;
  Add<T> add;
};

template <int... mode> Adder<double> adder(const Accumulator& how, std::integer_sequence<int, mode...>) {
  static constexpr Add<double> kAdds[] = {add_rounded<(mode ? mode : detail::kAligned), double>...};
  static constexpr Add<double> (*kGroups[])(GroupSum) = {group_adder<(mode ? mode : detail::kAligned)>...};
  static constexpr Add<double> kUnfused[] = {add_rounded<mode, double, true>...};
  Spec spec{detail::sum_spec(how.format, how.rounding), how.fraction,
            how.lowest ? std::int64_t{*how.lowest} : kNoExponent};
  const auto by = static_cast<std::size_t>(how.rounding.mode);
  constexpr int kNearest = static_cast<int>(RoundingMode::nearest_even);
  if (how.product) {
    spec.product = detail::sum_spec(*how.product, {});
    return {spec, kUnfused[by]};
  }
  if (by == kNearest && how.format.mantissa_bits == 0)  // ties go by the exponent's last bit
    return {spec, how.group ? group_adder<kNearest>(how.adds) : add_rounded<kNearest, double>};
  return {spec, how.group ? kGroups[by](how.adds) : kAdds[by]};
}
Adder<double> adder(const Accumulator& how) {
  if (how.f64) return {{}, add_rounded<kPlain, double>};
  return adder(how, std::make_integer_sequence<int, detail::kAligned>{});
}

// A product c += a b whose c, too, has any strides.
struct RoundedProduct : Gemm<float> {
  std::int64_t col_stride;
};

// For products, the sums of chunks and promoted sums.
template <class T> struct Adders {
  Adder<T> product, chunk, promoted;
};

// sums += terms, [m, n], and the terms start again from zero. The largest of what `add` returns.
template <class T>
float carry(const Adder<T>& add, T* terms, T* sums, const RoundedProduct& g, Words& words, std::int64_t addition) {
  float most = 0;
  for (std::int64_t i = 0; i < g.m; ++i)
    most = std::max(
        most, add.add(add.spec, &kOne, 0, terms + i * kCols, 1, words.of(i, 0, addition, g.n), sums + i * kCols, g.n));
  std::fill_n(terms, g.m * kCols, T(0));
  return most;
}

// `packed` has room for kDepth rows of b and then for three tiles of sums: the chains, those of chunks, the promoted
// ones. Returns false, with c as before, if a float's sum is beyond the format.
template <class T>
bool tile(const Accumulator& how, const Adders<T>& add, const Adder<double>& last, const RoundedProduct& g,
          Words& words, T* packed) {
  T* const chain = packed + kDepth * kCols;
  T* const group = how.chunk ? chain + kRows * kCols : chain;
  T* const total = how.promote ? chain + 2 * kRows * kCols : group;
  for (int level = 0; level < 3; ++level) std::fill_n(chain + level * kRows * kCols, g.m * kCols, T(0));
  if (g.n < kCols) std::fill_n(packed, kDepth * kCols, T(0));
  const std::int64_t depth = how.group ? kDepth / how.group * how.group : kDepth;
  const std::int64_t step = g.a.col_stride;
  const std::int64_t together = how.group ? how.group : how.rounding.mode == RoundingMode::stochastic ? 1 : kDepth;
  float most = 0;
  for (std::int64_t at = 0, end = 0; at < g.k; at = end) {
    const std::int64_t within = how.promote ? at % how.promote : at;
    end = std::min(g.k, at + depth);
    if (how.promote) end = std::min(end, at - within + how.promote);
    if (how.chunk) end = std::min(end, at + how.chunk - within % how.chunk);
    for (std::int64_t p = at; p < end; ++p)
      for (std::int64_t j = 0; j < g.n; ++j)
        packed[(p - at) * kCols + j] = g.b.data[p * g.b.row_stride + j * g.b.col_stride];
    for (std::int64_t i = 0; i < g.m; ++i)
      for (std::int64_t p = at; p < end; p += together)
        most = std::max(most, add.product.add(add.product.spec, g.a.data + i * g.a.row_stride + p * step, step,
                                              packed + (p - at) * kCols, std::min(together, end - p),
                                              words.of(i, 0, p, g.n), chain + i * kCols, g.n));
    const bool promotes = how.promote && (end == g.k || end % how.promote == 0);
    const bool closes = how.chunk && (promotes || end == g.k || (within + end - at) % how.chunk == 0);
    if (closes) most = std::max(most, carry(add.chunk, chain, group, g, words, g.k + end));  // after products' numbers
    if (promotes) carry(add.promoted, group, total, g, words, 0);
  }
  const auto finite = [](T sum) { return sum - sum == 0; };
  if (sizeof(T) == sizeof(float) && !(most <= how.format.max() && std::all_of(total, total + g.m * kCols, finite)))
    return false;
  double sums[kCols], terms[kCols];
  for (std::int64_t i = 0; i < g.m; ++i) {
    float* const c = g.c + i * g.ldc;
    for (std::int64_t j = 0; j < g.n; ++j) sums[j] = c[j * g.col_stride];
    std::copy_n(total + i * kCols, g.n, terms);
    last.add(last.spec, &kOne, 0, terms, 1, nullptr, sums, g.n);
    for (std::int64_t j = 0; j < g.n; ++j) c[j * g.col_stride] = static_cast<float>(sums[j]);
  }
  return true;
}

// c += a b. Sums are f32 numbers, so adding one to c rounds once.
void add_ordered(const Gemm<float>& g) {
  const Scratch memory(static_cast<std::size_t>(g.m * g.n) * sizeof(float));
  Gemm<float> sums = g;
  sums.c = memory.as<float>();
  sums.ldc = g.n;
  ordered_gemm(sums);
  for (std::int64_t i = 0; i < g.m; ++i)
    for (std::int64_t j = 0; j < g.n; ++j) g.c[i * g.ldc + j] += sums.c[i * g.n + j];
}

}  // namespace

bool is_ordered_f32(const Accumulator& how) {
  Accumulator without_key = how;
  without_key.key = {};
  return without_key == Accumulator();
}

void accumulate(const Accumulator& how, const Gemm<float>& g, bool narrows, std::int64_t first_element,
                std::int64_t across) {
  if (g.m <= 0 || g.n <= 0 || g.k <= 0) return;
  if (is_ordered_f32(how) && !narrows) return add_ordered(g);
  using enum RoundingMode;
  const Adder<double> f32 = adder({});
  const Adder<double> last = adder({.rounding = {narrows ? to_odd : nearest_even}});
  Accumulator chunks = how;
  chunks.group = 0;
  chunks.product.reset();
  const Adders<double> doubles{adder(how), adder(chunks), f32};
  const Adder<float> own{doubles.chunk.spec, float_adder(doubles.chunk.spec)};
  const Adders<float> floats{own, own, {{}, add_rounded<kPlain, float>}};
  RoundedProduct p{g, 1};
  const bool by_chance = how.rounding.mode == stochastic;  // numbers elements along the rows
  if (g.n < kCols && g.n < g.m && !by_chance)  // the transposed product has more columns, which are what is vectorised
    p = {
        {g.n, g.m, g.k, {g.b.data, g.b.col_stride, g.b.row_stride}, {g.a.data, g.a.col_stride, g.a.row_stride}, g.c, 1},
        g.ldc};
  const Scratch memory((kDepth * kCols + 3 * kRows * kCols) * sizeof(double));  // too large for a small stack
  for (std::int64_t j = 0; j < p.n; j += kCols) {
    for (std::int64_t i = 0; i < p.m; i += kRows) {
      RoundedProduct part = p;
      part.m = std::min(kRows, p.m - i);
      part.n = std::min(kCols, p.n - j);
      part.a.data += i * p.a.row_stride;
      part.b.data += j * p.b.col_stride;
      part.c += i * p.ldc + j * p.col_stride;
      Words words{how, first_element + i * across + j, across};
      if (!in_floats(how) || !tile(how, floats, last, part, words, memory.as<float>()))
        tile(how, doubles, last, part, words, memory.as<double>());
    }
  }
}

bool sum_accumulated(const Tensor& x, std::uint32_t dims, double n, Tensor& out) {
  const std::optional<Accumulator> how = accumulator_of(OpId::sum);  // the same for mean
  if (!how || !is_floating(x.dtype()) || x.dtype() == DType::f64) return false;
  const Tensor rows = copied(reduced_last(x, dims), DType::f32);
  const std::int64_t count = x.numel() / std::max<std::int64_t>(1, out.numel());
  const Result<float> sums(out);
  parallel_for(out.numel(), kCols, [&](std::int64_t begin, std::int64_t end) {
    float* const to = sums.data() + begin;
    std::fill_n(to, end - begin, 0.0F);
    const MatrixRef<float> ones{&kOne, 0, 0};
    const MatrixRef<float> terms{rows.data<float>() + begin * count, 1, count};
    accumulate(*how, {1, end - begin, count, ones, terms, to, end - begin}, n == 1 && out.dtype() != DType::f32, begin,
               out.numel());
    for (std::int64_t i = 0; i < end - begin; ++i) to[i] = to[i] / static_cast<float>(n);
  });
  sums.store();
  return true;
}

}  // namespace gradual::cpu
