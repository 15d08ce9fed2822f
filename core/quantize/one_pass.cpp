#include "one_pass.h"

#include <bit>
#include <cfloat>
#include <optional>
#include <type_traits>

#include "../support/multiversion.h"
#include "../support/philox.h"
#include "../tensor/memory.h"

namespace gradual::detail {

struct OnePass::Chunk {
  const float* from;
  float* to;
  const std::uint32_t* words;  // of rounding by chance; else null
  std::int64_t n;
  const Grid* grid;
  const Scale* scales;
};

namespace {

// The least quantum of a format that the one pass takes. Below it the remainder of a product may be inexact; above it
// that happens only to elements that round to zero in any case.
constexpr float kLeastQuantum = 0x1p-90F;

// x * by, rounded to odd if the product is not exact. The format's numbers are far above f32's least ones, so that the
// remainder is exact where it matters.
template <bool kOdd> [[gnu::always_inline]] inline float scaled(float x, float by) {
  const float near = x * by;
  if constexpr (!kOdd) return near;
  const float error = __builtin_fmaf(x, by, -near);
  const auto inexact = static_cast<std::uint32_t>(error < 0) | static_cast<std::uint32_t>(error > 0);
  const auto bits = std::bit_cast<std::uint32_t>(near);
  const std::uint32_t too_far = (bits ^ std::bit_cast<std::uint32_t>(error)) >> 31;  // rounded away from zero
  return std::bit_cast<float>((bits - (inexact & too_far)) | inexact);
}

struct Factors {
  float forward = 1;
  float inverse = 1;
  float of_tensor = 1;
};

struct Specs {
  RoundingSpec<std::uint32_t> nearest;
  ChanceSpec chance;
};

// Magnitudes of a product. If it is not a number of f32, `product` is a neighbour in the same power of two.
struct Rounded {
  std::uint32_t product;
  std::uint32_t magnitude;
};

template <bool kOdd> [[gnu::always_inline]] inline Rounded round_product(float x, float by, const Specs& s) {
  const auto bits = std::bit_cast<std::uint32_t>(scaled<kOdd>(x, by)) & ~SourceBits<std::uint32_t>::kSign;
  return {bits, round_magnitude<kAligned, false>(bits, false, 0, s.nearest)};
}
template <bool kExact>
[[gnu::always_inline]] inline Rounded round_product(float x, float by, std::uint32_t word, const Specs& s) {
  constexpr std::uint32_t kSign = SourceBits<std::uint32_t>::kSign;
  const float product = x * by;
  const auto bits = std::bit_cast<std::uint32_t>(product);
  const std::uint32_t near = bits & ~kSign;
  if constexpr (!kExact) return {near, magnitude_by_chance<kExact>(near, 0, word, s.chance)};
  const auto error =
      std::bit_cast<float>(std::bit_cast<std::uint32_t>(__builtin_fmaf(x, by, -product)) ^ (bits & kSign));
  const std::uint32_t too_far = error < 0 ? 1 : 0;
  return {near - too_far, magnitude_by_chance<kExact>(near, error, word, s.chance)};
}

template <bool kInexact, bool kByChance>
[[gnu::always_inline]] inline std::uint32_t magnitude_of(float x, float by, const std::uint32_t* words, std::int64_t i,
                                                         const Specs& s) {
  if constexpr (kByChance) return round_product<kInexact>(x, by, words[i], s).magnitude;
  return round_product<kInexact>(x, by, s).magnitude;
}

// The value of a rounded magnitude with the sign of x, scaled back.
template <Unscaling kUnscaling>
[[gnu::always_inline]] inline float value_of(std::uint32_t magnitude, float x, const Factors& by,
                                             const RoundingSpec<std::uint32_t>& spec) {
  const std::uint32_t sign = std::bit_cast<std::uint32_t>(x) & SourceBits<std::uint32_t>::kSign;
  float value = std::bit_cast<float>(choose(magnitude > spec.max, spec.overflow, magnitude) | sign);
  if constexpr (kUnscaling != Unscaling::none) value *= by.inverse;
  if constexpr (kUnscaling == Unscaling::block_tensor) value *= by.of_tensor;
  return value;
}

// kInexact: products are rounded as exact ones, and some are no numbers of f32.
template <bool kInexact, bool kByChance, Unscaling kUnscaling>
[[gnu::always_inline]] inline void round_run(const float* __restrict from, float* __restrict to,
                                             const std::uint32_t* __restrict words, std::int64_t n, const Factors& by,
                                             const Specs& s) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    to[i] = value_of<kUnscaling>(magnitude_of<kInexact, kByChance>(from[i], by.forward, words, i, s), from[i], by,
                                 s.nearest);
  }
}

template <bool kInexact, bool kByChance, Unscaling kUnscaling, std::int64_t kWidth, class Chunk>
void round_chunk(const Chunk& chunk, const Specs& rounding) {
  vectorized([=] {
    const Specs specs = rounding;
    const Chunk c = chunk;
    const float of_tensor = c.grid->spec.global_inverse;
    for_runs(c.n, *c.grid, [&](std::int64_t block, std::int64_t begin, std::int64_t end) {
      const std::int64_t width = kWidth ? kWidth : end - begin;
      const Factors by{c.scales[block].forward, c.scales[block].inverse, of_tensor};
      const std::uint32_t* const words = kByChance ? c.words + begin : nullptr;
      round_run<kInexact, kByChance, kUnscaling>(c.from + begin, c.to + begin, words, width, by, specs);
    });
  });
}

constexpr std::int64_t kLanes = 16;          // of a vector; each counts its own numbers
constexpr std::uint32_t kMostCounted = 255;  // in a byte
constexpr std::int64_t kCountedRun = 128 * kLanes;

// Counts of each lane in four bytes, the lowest first: zeros before and after, below the smallest normal value, beyond
// the largest one.
struct LaneCounts {
  alignas(64) std::uint32_t lanes[kLanes] = {};
  std::uint32_t taken = 0;  // numbers of a lane
};
[[gnu::always_inline]] inline void add_lanes(LaneCounts& from, LoopCounts& to) {
  for (std::uint32_t& lane : from.lanes) {
    to.zeros += lane & 0xff;
    to.to_zero += lane >> 8 & 0xff;
    to.below_normal += lane >> 16 & 0xff;
    to.beyond += lane >> 24;
    lane = 0;
  }
  from.taken = 0;
}

struct CountedRun {
  const float* from;
  float* to;
  const std::uint32_t* words;
  float* products;    // out: magnitudes of scaled elements, at most one unit in the last place off
  float keeps_zeros;  // times an element it is zero where a zero is counted
};

// Rounds element i; returns its counts in four bytes. All factors of `by` apply.
template <bool kInexact, bool kByChance>
[[gnu::always_inline]] inline std::uint32_t round_one(const CountedRun& run, std::int64_t i, const Factors& by,
                                                      const Specs& s) {
  const float x = run.from[i];
  Rounded rounded;
  if constexpr (kByChance) rounded = round_product<kInexact>(x, by.forward, run.words[i], s);
  else rounded = round_product<kInexact>(x, by.forward, s);
  run.products[i] = std::bit_cast<float>(rounded.product);
  run.to[i] = value_of<Unscaling::block_tensor>(rounded.magnitude, x, by, s.nearest);
  const std::uint32_t zero = x * run.keeps_zeros == 0 ? 1 : 0;
  const std::uint32_t to_zero = rounded.magnitude == 0 ? 1 << 8 : 0;
  const std::uint32_t below_normal = rounded.magnitude < s.nearest.min_normal ? 1 << 16 : 0;
  const std::uint32_t beyond = rounded.magnitude > s.nearest.max ? 1 << 24 : 0;
  return zero + to_zero + below_normal + beyond;
}

template <bool kInexact, bool kByChance>
[[gnu::always_inline]] inline void round_counted_run(const CountedRun& run, std::int64_t n, const Factors& by,
                                                     const Specs& s, std::uint32_t* __restrict lanes) {
  const std::int64_t whole = n / kLanes * kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes) {
#pragma omp simd
    for (std::int64_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] += round_one<kInexact, kByChance>(run, i + lane, by, s);
  }
  for (std::int64_t i = whole; i < n; ++i) lanes[i - whole] += round_one<kInexact, kByChance>(run, i, by, s);
}

// round_chunk() with counts.
template <bool kInexact, bool kByChance, class Chunk>
LoopCounts round_counted_chunk(const Chunk& chunk, const Specs& rounding, Unscaling unscaling, float* products,
                               bool zeros_of_products) {
  return vectorized([=] {
    const Specs specs = rounding;
    const Chunk c = chunk;
    const float of_tensor = unscaling == Unscaling::block_tensor ? c.grid->spec.global_inverse : 1;
    LaneCounts counts;
    LoopCounts sums;
    for_runs(c.n, *c.grid, [&](std::int64_t block, std::int64_t begin, std::int64_t end) {
      const Scale& scale = c.scales[block];
      const Factors by{scale.forward, unscaling == Unscaling::none ? 1 : scale.inverse, of_tensor};
      for (; begin < end; begin += kCountedRun) {
        const std::int64_t n = end - begin < kCountedRun ? end - begin : kCountedRun;
        const auto each = static_cast<std::uint32_t>((n + kLanes - 1) / kLanes);
        if (counts.taken + each > kMostCounted) add_lanes(counts, sums);
        counts.taken += each;
        const std::uint32_t* const words = kByChance ? c.words + begin : nullptr;
        const CountedRun run{c.from + begin, c.to + begin, words, products + begin,
                             zeros_of_products ? scale.forward : 1};
        round_counted_run<kInexact, kByChance>(run, n, by, specs, counts.lanes);
      }
    });
    add_lanes(counts, sums);
    return sums;
  });
}

// Whether f32's nearest numbers tell the exponents of exact products: not of tiny ones, nor of those beyond f32.
bool tells_exponents(const ExponentHistogram& of_products, std::uint64_t numbers) {
  constexpr std::size_t kLeastCertain = 28;  // 2^-99: the remainder of a product is exact
  constexpr std::size_t kLargest = 254;
  std::uint64_t certain = 0;
  for (std::size_t bin = kLeastCertain; bin < kLargest; ++bin) certain += of_products.bins[bin];
  return certain == numbers;
}

// The width that all runs have, if there is a loop for it.
std::int64_t width_of(const Grid& g) {
  const bool whole = !g.fixed && g.k % g.block_cols == 0;
  return whole && (g.block_cols == 16 || g.block_cols == 32) ? g.block_cols : 0;
}

// Calls f with the constants of this chunk.
template <class F> void by_width(std::int64_t width, const F& f) {
  if (width == 16) return f(std::integral_constant<std::int64_t, 16>());
  if (width == 32) return f(std::integral_constant<std::int64_t, 32>());
  f(std::integral_constant<std::int64_t, 0>());
}
template <class F> void by_unscaling(Unscaling unscaling, const F& f) {
  if (unscaling == Unscaling::none) return f(std::integral_constant<Unscaling, Unscaling::none>());
  if (unscaling == Unscaling::block) return f(std::integral_constant<Unscaling, Unscaling::block>());
  f(std::integral_constant<Unscaling, Unscaling::block_tensor>());
}
template <class F> void by_truth(bool value, const F& f) {
  if (value) return f(std::true_type());
  f(std::false_type());
}

}  // namespace

OnePass::OnePass(const Rounder& rounder, bool exact)
    : key_(rounder.key), by_chance_(rounder.rounding.mode == RoundingMode::stochastic), exact_(exact) {
  if (!rounder.format.has_zero || rounder.format.table || !rounder.format.is_signed) return;
  spec_ = rounding_spec<std::uint32_t>(rounder, false);
  if (by_chance_) chance_ = chance_spec(spec_);
  const bool aligned = !by_chance_ && rounding_loop(rounder, spec_) == kAligned;
  usable_ = spec_.ordinary != 0 && (aligned || chance_) && std::bit_cast<float>(spec_.quantum) >= kLeastQuantum;
}

// Whether all scaled elements are finite, as small as rounding by chance needs them, and no result passes f32.
bool OnePass::serves(const Grid& g, std::span<const Scale> scales, std::span<const float> most,
                     Unscaling unscaling) const {
  const float largest = std::bit_cast<float>(spec_.max);
  const float highest = by_chance_ ? std::bit_cast<float>(chance_.beyond - 1) : FLT_MAX;
  const float of_tensor = unscaling == Unscaling::block_tensor ? g.spec.global_inverse : 1;
  bool all = true;
  for (std::size_t b = 0; b < scales.size(); ++b) {
    const Scale& s = scales[b];
    const float top = exact_ ? times_to_odd(most[b], s.forward) : most[b] * s.forward;
    const float back = unscaling == Unscaling::none ? 0 : largest * s.inverse * of_tensor;
    all = all && s.forward > 0 && s.forward <= FLT_MAX && top <= highest && back >= 0 && back <= FLT_MAX &&
          s.inverse <= FLT_MAX;
  }
  return all;
}

bool OnePass::run(const float* from, float* to, std::int64_t n, std::int64_t first, const Grid& grid,
                  std::span<const Scale> scales, std::span<const float> most, Unscaling unscaling,
                  CastStats stats) const {
  if (!usable_ || !serves(grid, scales, most, unscaling)) return false;
  bool inexact = false;
  for (const Scale& s : scales) inexact = inexact || (exact_ && !is_power(s));
  // a fused multiply-add and a floor are instructions
  if ((inexact || by_chance_) && cpu_isa() < CpuIsa::avx2) return false;
  std::optional<Scratch> words;
  if (by_chance_) {
    words.emplace(static_cast<std::size_t>(n) * sizeof(std::uint32_t));
    philox_fill(key_.seed, key_.stream, static_cast<std::uint64_t>(first), words->as<std::uint32_t>(), n);
  }
  const Chunk chunk{from, to, words ? words->as<std::uint32_t>() : nullptr, n, &grid, scales.data()};
  if (stats.counts || stats.exponents) return round_counted(chunk, inexact, unscaling, stats);
  round(chunk, inexact, unscaling);
  return true;
}

void OnePass::round(const Chunk& chunk, bool inexact, Unscaling unscaling) const {
  by_truth(inexact, [&](auto is_inexact) {
    by_truth(by_chance_, [&](auto chance) {
      by_unscaling(unscaling, [&](auto how) {
        by_width(width_of(*chunk.grid), [&](auto width) {
          round_chunk<is_inexact, chance, how, width>(chunk, {spec_, chance_});
        });
      });
    });
  });
}

bool OnePass::round_counted(const Chunk& chunk, bool inexact, Unscaling unscaling, CastStats stats) const {
  const Scratch products(static_cast<std::size_t>(chunk.n) * sizeof(float));
  LoopCounts found;
  by_truth(inexact, [&](auto is_inexact) {
    by_truth(by_chance_, [&](auto chance) {
      found =
          round_counted_chunk<is_inexact, chance>(chunk, {spec_, chance_}, unscaling, products.as<float>(), !exact_);
    });
  });
  const auto n = static_cast<std::uint64_t>(chunk.n);
  if (stats.exponents) {
    ExponentHistogram exponents;
    exponents.add(products.as<float>(), chunk.n);
    if (exact_ && !tells_exponents(exponents, n - found.zeros)) return false;
    *stats.exponents += exponents;
  }
  if (stats.counts)
    *stats.counts += {.elements = n,
                      .zeros = found.zeros,
                      .underflow = found.to_zero - found.zeros,
                      .subnormal = found.below_normal - found.to_zero,
                      .overflow = found.beyond};
  return true;
}

}  // namespace gradual::detail
