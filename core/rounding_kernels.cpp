#include "rounding_kernels.h"

#include <utility>

namespace gradual::detail {
namespace {

using Spec = RoundingKernels::Spec;

template <int loop, bool codes, bool count, bool ordinary, class Out>
[[gnu::always_inline]] inline void round_loop(const Spec& spec, const float* __restrict in,
                                              const std::uint32_t* __restrict random, Out* out, std::int64_t n,
                                              LoopCounts* counts) {
  const Spec s = spec;
  LoopCounts sums;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t word = loop == static_cast<int>(RoundingMode::stochastic) ? random[i] : 0;
    const auto bits = round_bits<loop, codes, count, ordinary>(std::bit_cast<std::uint32_t>(in[i]), word, s, sums);
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

template <int loop, bool codes, class Out>
[[gnu::always_inline]] inline void round_loop(const Spec& s, const float* in, const std::uint32_t* random, Out* out,
                                              std::int64_t n, LoopCounts* counts) {
  LoopCounts unused;
  if constexpr (loop >= kAligned) {  // the others are not worth more forms
    if (s.ordinary != 0 && largest_magnitude(in, n) <= s.ordinary) {
      if (counts) return round_loop<loop, codes, true, true>(s, in, random, out, n, counts);
      return round_loop<loop, codes, false, true>(s, in, random, out, n, nullptr);
    }
  }
  round_loop<loop, codes, true, false>(s, in, random, out, n, counts ? counts : &unused);
}

template <class Code>
[[gnu::always_inline]] inline void narrow(const std::uint32_t* __restrict in, void* out, std::int64_t n) {
  auto* __restrict to = static_cast<Code*>(out);
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<Code>(in[i]);
}

template <int loop>
[[gnu::always_inline]] inline void code_loop(const Spec& s, const float* in, const std::uint32_t* random, void* out,
                                             int bytes, std::int64_t n, LoopCounts* counts) {
  alignas(64) std::uint32_t codes[kRoundingBlock];
  round_loop<loop, true>(s, in, random, codes, n, counts);
  if (bytes == 1) narrow<std::uint8_t>(codes, out, n);
  else if (bytes == 2) narrow<std::uint16_t>(codes, out, n);
  else narrow<std::uint32_t>(codes, out, n);
}

// The same loops for each instruction set: the compiler vectorises them anew.
struct Portable {
  template <int loop>
  static void values(const Spec& s, const float* in, const std::uint32_t* random, float* out, std::int64_t n,
                     LoopCounts* counts) {
    round_loop<loop, false>(s, in, random, out, n, counts);
  }
  template <int loop>
  static void codes(const Spec& s, const float* in, const std::uint32_t* random, void* out, int bytes, std::int64_t n,
                    LoopCounts* counts) {
    code_loop<loop>(s, in, random, out, bytes, n, counts);
  }
};

#if defined(__x86_64__)
struct Avx2 {
  template <int loop>
  [[gnu::target("avx2")]] static void values(const Spec& s, const float* in, const std::uint32_t* random, float* out,
                                             std::int64_t n, LoopCounts* counts) {
    round_loop<loop, false>(s, in, random, out, n, counts);
  }
  template <int loop>
  [[gnu::target("avx2")]] static void codes(const Spec& s, const float* in, const std::uint32_t* random, void* out,
                                            int bytes, std::int64_t n, LoopCounts* counts) {
    code_loop<loop>(s, in, random, out, bytes, n, counts);
  }
};

struct Avx512 {
  template <int loop>
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]] static void values(
      const Spec& s, const float* in, const std::uint32_t* random, float* out, std::int64_t n, LoopCounts* counts) {
    round_loop<loop, false>(s, in, random, out, n, counts);
  }
  template <int loop>
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]] static void codes(
      const Spec& s, const float* in, const std::uint32_t* random, void* out, int bytes, std::int64_t n,
      LoopCounts* counts) {
    code_loop<loop>(s, in, random, out, bytes, n, counts);
  }
};
#endif

template <class Path, int... loops> constexpr RoundingKernels table(std::integer_sequence<int, loops...>) {
  return {{&Path::template values<loops>...}, {&Path::template codes<loops>...}};
}
template <class Path>
constinit const RoundingKernels kKernels = table<Path>(std::make_integer_sequence<int, kRoundingLoops>());

}  // namespace

const RoundingKernels& rounding_kernels([[maybe_unused]] ConversionPath path) {
#if defined(__x86_64__)
  if (path == ConversionPath::avx512) return kKernels<Avx512>;
  if (path == ConversionPath::avx2) return kKernels<Avx2>;
#endif
  return kKernels<Portable>;
}

}  // namespace gradual::detail
