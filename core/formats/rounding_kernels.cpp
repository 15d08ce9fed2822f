#include "rounding_kernels.h"

#include <array>
#include <cstring>
#include <utility>

#include "../support/multiversion.h"

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
    const std::uint32_t word = loop == static_cast<int>(RoundingMode::stochastic) ? random[i] : 0;
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

template <int loop, bool codes, class U, class T, class Out>
[[gnu::always_inline]] inline void round_loop(const RoundingSpec<U>& s, const T* in, const std::uint32_t* random,
                                              Out* out, std::int64_t n, LoopCounts* counts) {
  LoopCounts unused;
  if constexpr (loop >= kAligned) {  // the others are not worth more forms
    if (s.ordinary != 0 && largest_magnitude(in, n) <= s.ordinary) {
      if (counts) return round_loop<loop, codes, true, true>(s, in, random, out, n, counts);
      return round_loop<loop, codes, false, true>(s, in, random, out, n, nullptr);
    }
  }
  round_loop<loop, codes, true, false>(s, in, random, out, n, counts ? counts : &unused);
}

template <class Code, class U>
[[gnu::always_inline]] inline void narrow(const U* __restrict in, void* out, std::int64_t n) {
  auto* __restrict to = static_cast<Code*>(out);
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<Code>(in[i]);
}

template <int loop, class U, class T>
[[gnu::always_inline]] inline void code_loop(const RoundingSpec<U>& s, const T* in, const std::uint32_t* random,
                                             void* out, int bytes, std::int64_t n, LoopCounts* counts) {
  alignas(64) U codes[kRoundingBlock];
  round_loop<loop, true>(s, in, random, codes, n, counts);
  if (bytes == 1) narrow<std::uint8_t>(codes, out, n);
  else if (bytes == 2) narrow<std::uint16_t>(codes, out, n);
  else narrow<std::uint32_t>(codes, out, n);
}

using Bytes [[gnu::vector_size(64), gnu::may_alias]] = std::uint8_t;

// Few exponents, as in most tensors: compares all bytes with each exponent. Many: counts in eight tables, so that
// increments of one bin do not wait for each other.
[[gnu::always_inline]] inline void exponent_loop(const float* __restrict in, std::int64_t n, std::uint64_t* bins) {
  constexpr int kFew = 24, kLanes = 64;
  static_assert(kExponentBlock / kLanes < 256);  // so that a lane of 8 bits does not overflow
  alignas(64) std::uint8_t exponents[kExponentBlock];
  for (std::int64_t i = 0; i < n; ++i)
    exponents[i] = static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(in[i]) >> 23);
  std::uint8_t low = 255, high = 0;
  const std::int64_t whole = n / kLanes * kLanes;
  for (std::int64_t i = 0; i < whole; ++i) {
    low = low < exponents[i] ? low : exponents[i];
    high = high > exponents[i] ? high : exponents[i];
  }
  for (std::int64_t i = whole; i < n; ++i) ++bins[exponents[i]];
  if (high - low < kFew) {
    for (int e = low; e <= high; e += 4) {  // four at a time
      Bytes sums[4]{};
      for (std::int64_t i = 0; i < whole; i += kLanes) {
        const Bytes here = *reinterpret_cast<const Bytes*>(exponents + i);
        for (int k = 0; k < 4; ++k) sums[k] -= here == static_cast<std::uint8_t>(e + k);
      }
      for (int k = 0; k < 4 && e + k <= high; ++k)
        for (int lane = 0; lane < kLanes; ++lane) bins[e + k] += sums[k][lane];
    }
    return;
  }
  std::uint32_t tables[8][256] = {};
  for (std::int64_t i = 0; i < whole; i += 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, exponents + i, 8);
    for (int k = 0; k < 8; ++k) ++tables[k][eight >> (8 * k) & 0xff];
  }
  for (int e = 0; e < 256; ++e)
    for (const auto& table : tables) bins[e] += table[e];
}

template <class U, class T = typename SourceBits<U>::Value>
using RoundBlock = void (*)(const RoundingSpec<U>&, const T* in, const std::uint32_t* random, T* values, void* codes,
                            int bytes, std::int64_t n, LoopCounts* counts);

// round_block of each loop.
template <class U, int... loops>
constexpr auto blocks_of(std::integer_sequence<int, loops...>) -> std::array<RoundBlock<U>, sizeof...(loops)> {
  return {[](const auto& s, auto* in, auto* random, auto* values, auto* codes, int bytes, auto n, auto* counts) {
    if (codes) vectorized([=, &s] { code_loop<loops>(s, in, random, codes, bytes, n, counts); });
    else vectorized([=, &s] { round_loop<loops, false>(s, in, random, values, n, counts); });
  }...};
}

}  // namespace

template <class U, class T>
void round_block(int loop, const RoundingSpec<U>& spec, const T* in, const std::uint32_t* random, T* values,
                 void* codes, int bytes, std::int64_t n, LoopCounts* counts) {
  constexpr int kLoops = SourceBits<U>::kWide ? static_cast<int>(kAligned) : static_cast<int>(kRoundingLoops);
  static constexpr auto kBlocks = blocks_of<U>(std::make_integer_sequence<int, kLoops>());
  kBlocks[static_cast<std::size_t>(loop)](spec, in, random, values, codes, bytes, n, counts);
}
template void round_block(int, const RoundingSpec<std::uint32_t>&, const float*, const std::uint32_t*, float*, void*,
                          int, std::int64_t, LoopCounts*);
template void round_block(int, const RoundingSpec<std::uint64_t>&, const double*, const std::uint32_t*, double*, void*,
                          int, std::int64_t, LoopCounts*);

void count_exponents(const float* in, std::int64_t n, std::uint64_t* bins) {
  vectorized([=] { exponent_loop(in, n, bins); });
}

}  // namespace gradual::detail
