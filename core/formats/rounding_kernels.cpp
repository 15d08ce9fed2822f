#include "rounding_kernels.h"

#include <algorithm>

#include "../support/multiversion.h"
#include "round_by_chance.h"

namespace gradual::detail {
namespace {

template <int loop, bool codes, bool count, bool ordinary, class U, class T, class Out>
[[gnu::always_inline]] inline void round_loop(const RoundingSpec<U>& spec, const T* __restrict in,
                                              const std::uint32_t* __restrict random, Out* out, std::int64_t n,
                                              LoopCounts* counts) {
  const RoundingSpec<U> s = spec;
  LoopCounts sums;
  if constexpr (count) sums = *counts;
  for (std::int64_t i = 0; i < n; ++i) {
    constexpr bool kDraws = loop == static_cast<int>(RoundingMode::stochastic) || loop == kByChance;
    const std::uint32_t word = kDraws ? random[i] : 0;
    const auto bits = round_bits<loop, codes, count, ordinary>(std::bit_cast<U>(in[i]), word, s, sums);
    out[i] = std::bit_cast<Out>(bits);
  }
  if constexpr (count) *counts = sums;
}

[[gnu::always_inline]] inline std::uint32_t largest_magnitude(const float* __restrict in, std::int64_t n) {
  std::uint32_t most = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(in[i]) & 0x7fffffff;
    most = most > magnitude ? most : magnitude;
  }
  return most;
}

// Rounds values below the next power of two beyond the format's largest one, by additions.
template <bool count>
void chance_loop(const RoundingSpec<std::uint32_t>& rounding, const ChanceSpec& chance, const float* in,
                 const std::uint32_t* random, float* out, std::int64_t n, LoopCounts* counts) {
  vectorized([=, overflow = rounding.overflow, max = rounding.max, min_normal = rounding.min_normal] {
    constexpr std::uint32_t kSign = SourceBits<std::uint32_t>::kSign;
    const ChanceSpec s = chance;
    std::uint32_t zeros = 0;
    std::uint32_t to_zero = 0;
    std::uint32_t below_normal = 0;
    std::uint32_t beyond = 0;
#pragma omp simd reduction(+ : zeros, to_zero, below_normal, beyond)
    for (std::int64_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(in[i]);
      const std::uint32_t r = magnitude_by_chance<false>(bits & ~kSign, 0, random[i] << s.unused_bits, s);
      out[i] = std::bit_cast<float>(choose(r > max, overflow, r) | (bits & kSign));
      if constexpr (count) {
        zeros += (bits & ~kSign) == 0 ? 1 : 0;
        to_zero += r == 0 ? 1 : 0;
        below_normal += r < min_normal ? 1 : 0;
        beyond += r > max ? 1 : 0;
      }
    }
    if constexpr (count) {
      counts->zeros += zeros;
      counts->to_zero += to_zero;
      counts->below_normal += below_normal;
      counts->beyond += beyond;
    }
  });
}
bool rounds_by_additions(const RoundingSpec<std::uint32_t>& s, const float* in, const std::uint32_t* random, float* out,
                         std::int64_t n, LoopCounts* counts) {
  if (cpu_isa() < CpuIsa::avx2) return false;
  const ChanceSpec chance = chance_spec(s);
  if (!chance || vectorized([=] { return largest_magnitude(in, n); }) >= chance.beyond) return false;
  if (counts) chance_loop<true>(s, chance, in, random, out, n, counts);
  else chance_loop<false>(s, chance, in, random, out, n, nullptr);
  return true;
}

template <int loop, bool codes, class U, class T, class Out>
[[gnu::always_inline]] inline void round_loop(const RoundingSpec<U>& s, const T* in, const std::uint32_t* random,
                                              Out* out, std::int64_t n, LoopCounts* counts) {
  LoopCounts unused;
  if constexpr (loop == kAligned || loop == kShifted) {  // the others are not worth more forms
    if (s.ordinary != 0 && largest_magnitude(in, n) <= s.ordinary) {
      if (counts) return round_loop<loop, codes, true, true>(s, in, random, out, n, counts);
      return round_loop<loop, codes, false, true>(s, in, random, out, n, nullptr);
    }
  }
  round_loop<loop, codes, true, false>(s, in, random, out, n, counts ? counts : &unused);
}

template <int loop, class U, class T>
[[gnu::always_inline]] inline void code_loop(const RoundingSpec<U>& s, const T* in, const std::uint32_t* random,
                                             void* out, int bytes, std::int64_t n, LoopCounts* counts) {
  alignas(64) U codes[kRoundingBlock];
  round_loop<loop, true>(s, in, random, codes, n, counts);
  if (bytes == 1) std::copy_n(codes, n, static_cast<std::uint8_t*>(out));
  else if (bytes == 2) std::copy_n(codes, n, static_cast<std::uint16_t*>(out));
  else std::copy_n(codes, n, static_cast<std::uint32_t*>(out));
}

}  // namespace

template <class U, int loop, class T>
void round_block(int number, const RoundingSpec<U>& s, const T* in, const std::uint32_t* random, T* values, void* codes,
                 int bytes, std::int64_t n, LoopCounts* counts) {
  constexpr int kLoops = SourceBits<U>::kWide ? static_cast<int>(kAligned) : static_cast<int>(kRoundingLoops);
  if constexpr (loop + 1 < kLoops)
    if (number != loop) return round_block<U, loop + 1>(number, s, in, random, values, codes, bytes, n, counts);
  if constexpr (SourceBits<U>::kWide && loop == static_cast<int>(RoundingMode::stochastic))
    if (s.shift >= s.random_bits)
      return round_block<U, kByChance>(kByChance, s, in, random, values, codes, bytes, n, counts);
  if constexpr (!SourceBits<U>::kWide && loop == static_cast<int>(RoundingMode::stochastic))
    if (!codes && rounds_by_additions(s, in, random, values, n, counts)) return;
  if (codes) vectorized([=, &s] { code_loop<loop>(s, in, random, codes, bytes, n, counts); });
  else vectorized([=, &s] { round_loop<loop, false>(s, in, random, values, n, counts); });
}
template void round_block(int, const RoundingSpec<std::uint32_t>&, const float*, const std::uint32_t*, float*, void*,
                          int, std::int64_t, LoopCounts*);
template void round_block(int, const RoundingSpec<std::uint64_t>&, const double*, const std::uint32_t*, double*, void*,
                          int, std::int64_t, LoopCounts*);

}  // namespace gradual::detail
