#include "one_pass.h"

#include <bit>
#include <cfloat>
#include <type_traits>

#include "../support/multiversion.h"

namespace gradual::detail {
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

template <bool kOdd, Unscaling kUnscaling>
[[gnu::always_inline]] inline float rounded(float x, const Factors& by, const RoundingSpec<std::uint32_t>& spec) {
  constexpr std::uint32_t kSign = SourceBits<std::uint32_t>::kSign;
  const auto bits = std::bit_cast<std::uint32_t>(scaled<kOdd>(x, by.forward));
  const std::uint32_t magnitude = round_magnitude<kAligned, false>(bits & ~kSign, false, 0, spec);
  const std::uint32_t kept = choose(magnitude > spec.max, spec.overflow, magnitude);
  float value = std::bit_cast<float>(kept | (bits & kSign));
  if constexpr (kUnscaling != Unscaling::none) value *= by.inverse;
  if constexpr (kUnscaling == Unscaling::block_tensor) value *= by.of_tensor;
  return value;
}

template <bool kOdd, Unscaling kUnscaling>
[[gnu::always_inline]] inline void round_run(const float* __restrict from, float* __restrict to, std::int64_t n,
                                             const Factors& by, const RoundingSpec<std::uint32_t>& spec) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) to[i] = rounded<kOdd, kUnscaling>(from[i], by, spec);
}

struct Chunk {
  const float* from;
  float* to;
  std::int64_t n;
  const Grid* grid;
  const Scale* scales;
};

template <bool kOdd, Unscaling kUnscaling, std::int64_t kWidth>
void round_chunk(const Chunk& chunk, const RoundingSpec<std::uint32_t>& rounding) {
  vectorized([=] {
    const RoundingSpec<std::uint32_t> spec = rounding;
    const Chunk c = chunk;
    const float of_tensor = c.grid->spec.global_inverse;
    for_runs(c.n, *c.grid, [&](std::int64_t block, std::int64_t begin, std::int64_t end) {
      const std::int64_t width = kWidth ? kWidth : end - begin;
      const Factors by{c.scales[block].forward, c.scales[block].inverse, of_tensor};
      round_run<kOdd, kUnscaling>(c.from + begin, c.to + begin, width, by, spec);
    });
  });
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

OnePass::OnePass(const Rounder& rounder, bool exact) : exact_(exact) {
  if (!rounder.format.has_zero || rounder.format.table || !rounder.format.is_signed) return;
  spec_ = rounding_spec<std::uint32_t>(rounder, false);
  usable_ = spec_.ordinary != 0 && rounding_loop(rounder, spec_) == kAligned &&
            std::bit_cast<float>(spec_.quantum) >= kLeastQuantum;
}

// Whether all scaled elements are finite and no result passes f32.
bool OnePass::serves(const Grid& g, std::span<const Scale> scales, std::span<const float> most,
                     Unscaling unscaling) const {
  const float largest = std::bit_cast<float>(spec_.max);
  const float of_tensor = unscaling == Unscaling::block_tensor ? g.spec.global_inverse : 1;
  bool all = true;
  for (std::size_t b = 0; b < scales.size(); ++b) {
    const Scale& s = scales[b];
    const float top = exact_ ? times_to_odd(most[b], s.forward) : most[b] * s.forward;
    const float back = unscaling == Unscaling::none ? 0 : largest * s.inverse * of_tensor;
    all = all && s.forward > 0 && s.forward <= FLT_MAX && top <= FLT_MAX && back >= 0 && back <= FLT_MAX &&
          s.inverse <= FLT_MAX;
  }
  return all;
}

bool OnePass::run(const float* from, float* to, std::int64_t n, const Grid& grid, std::span<const Scale> scales,
                  std::span<const float> most, Unscaling unscaling) const {
  if (!usable_ || !serves(grid, scales, most, unscaling)) return false;
  bool odd = false;
  for (const Scale& s : scales) odd = odd || (exact_ && !is_power(s));
  if (odd && cpu_isa() < CpuIsa::avx2) return false;  // a fused multiply-add is an instruction
  const Chunk chunk{from, to, n, &grid, scales.data()};
  by_truth(odd, [&](auto is_odd) {
    by_unscaling(unscaling, [&](auto how) {
      by_width(width_of(grid), [&](auto width) { round_chunk<is_odd, how, width>(chunk, spec_); });
    });
  });
  return true;
}

}  // namespace gradual::detail
