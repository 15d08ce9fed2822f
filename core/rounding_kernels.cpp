#include "rounding_kernels.h"

namespace gradual::detail {
namespace {

template <RoundingMode mode, bool count>
[[gnu::always_inline]] inline void round_loop(const RoundingKernels::Spec& spec, const float* __restrict in,
                                              const std::uint32_t* __restrict random, float* out, std::int64_t n,
                                              LoopCounts* counts) {
  const RoundingKernels::Spec s = spec;
  LoopCounts sums;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t word = mode == RoundingMode::stochastic ? random[i] : 0;
    out[i] = std::bit_cast<float>(round_bits<mode, count>(std::bit_cast<std::uint32_t>(in[i]), word, s, sums));
  }
  if constexpr (count) *counts = sums;
}

template <class Code>
[[gnu::always_inline]] inline void code_loop(const CodeSpec& spec, const float* __restrict in, void* out,
                                             std::int64_t n) {
  const CodeSpec s = spec;
  auto* __restrict codes = static_cast<Code*>(out);
  for (std::int64_t i = 0; i < n; ++i) codes[i] = static_cast<Code>(code_of(std::bit_cast<std::uint32_t>(in[i]), s));
}

// The same loops for each instruction set: the compiler vectorises them anew.
template <RoundingMode mode>
void values_portable(const RoundingKernels::Spec& spec, const float* in, const std::uint32_t* random, float* out,
                     std::int64_t n, LoopCounts* counts) {
  if (counts) round_loop<mode, true>(spec, in, random, out, n, counts);
  else round_loop<mode, false>(spec, in, random, out, n, counts);
}
template <class Code> void codes_portable(const CodeSpec& spec, const float* in, void* out, std::int64_t n) {
  code_loop<Code>(spec, in, out, n);
}
constinit const RoundingKernels kPortable = {
    {values_portable<RoundingMode::nearest_even>, values_portable<RoundingMode::nearest_away>,
     values_portable<RoundingMode::toward_zero>, values_portable<RoundingMode::up>, values_portable<RoundingMode::down>,
     values_portable<RoundingMode::to_odd>, values_portable<RoundingMode::stochastic>},
    {codes_portable<std::uint8_t>, codes_portable<std::uint16_t>, codes_portable<std::uint32_t>}};

#if defined(__x86_64__)
template <RoundingMode mode>
[[gnu::target("avx2")]] void values_avx2(const RoundingKernels::Spec& spec, const float* in,
                                         const std::uint32_t* random, float* out, std::int64_t n, LoopCounts* counts) {
  if (counts) round_loop<mode, true>(spec, in, random, out, n, counts);
  else round_loop<mode, false>(spec, in, random, out, n, counts);
}
template <class Code>
[[gnu::target("avx2")]] void codes_avx2(const CodeSpec& spec, const float* in, void* out, std::int64_t n) {
  code_loop<Code>(spec, in, out, n);
}
constinit const RoundingKernels kAvx2 = {
    {values_avx2<RoundingMode::nearest_even>, values_avx2<RoundingMode::nearest_away>,
     values_avx2<RoundingMode::toward_zero>, values_avx2<RoundingMode::up>, values_avx2<RoundingMode::down>,
     values_avx2<RoundingMode::to_odd>, values_avx2<RoundingMode::stochastic>},
    {codes_avx2<std::uint8_t>, codes_avx2<std::uint16_t>, codes_avx2<std::uint32_t>}};

template <RoundingMode mode>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]] void values_avx512(
    const RoundingKernels::Spec& spec, const float* in, const std::uint32_t* random, float* out, std::int64_t n,
    LoopCounts* counts) {
  if (counts) round_loop<mode, true>(spec, in, random, out, n, counts);
  else round_loop<mode, false>(spec, in, random, out, n, counts);
}
template <class Code>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]] void codes_avx512(const CodeSpec& spec,
                                                                                                const float* in,
                                                                                                void* out,
                                                                                                std::int64_t n) {
  code_loop<Code>(spec, in, out, n);
}
constinit const RoundingKernels kAvx512 = {
    {values_avx512<RoundingMode::nearest_even>, values_avx512<RoundingMode::nearest_away>,
     values_avx512<RoundingMode::toward_zero>, values_avx512<RoundingMode::up>, values_avx512<RoundingMode::down>,
     values_avx512<RoundingMode::to_odd>, values_avx512<RoundingMode::stochastic>},
    {codes_avx512<std::uint8_t>, codes_avx512<std::uint16_t>, codes_avx512<std::uint32_t>}};

#endif

}  // namespace

const RoundingKernels& rounding_kernels([[maybe_unused]] ConversionPath path) {
#if defined(__x86_64__)
  if (path == ConversionPath::avx512) return kAvx512;
  if (path == ConversionPath::avx2) return kAvx2;
#endif
  return kPortable;
}

}  // namespace gradual::detail
