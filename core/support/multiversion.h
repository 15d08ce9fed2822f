// Inner loops compiled for several instruction sets in one binary. Compiled into kernels only; not a public header.
#pragma once

#include "cpu_isa.h"

namespace gradual {
namespace detail {

// What the compiler was told to take for granted: with -march=native on a processor with AVX-512 nothing is left to
// choose, and loops are compiled once.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
inline constexpr CpuIsa kBuiltFor = CpuIsa::avx512;
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
inline constexpr CpuIsa kBuiltFor = CpuIsa::avx2;
#else
inline constexpr CpuIsa kBuiltFor = CpuIsa::baseline;
#endif

// Beside cpu_isa() of avx512 or more.
bool has_avx512_bf16();

// The attribute belongs to the function alone, so no inline function of the rest of the program is compiled for more
// than every processor has; flatten inlines all that f calls, which is then vectorised for this function's target.
#if defined(__x86_64__)
template <class F> [[gnu::target("avx2,fma,f16c"), gnu::flatten, gnu::noinline]] auto run_avx2(F f) { return f(); }
template <class F>
[[gnu::target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"), gnu::flatten, gnu::noinline]] auto run_avx512(F f) {
  return f();
}
#else
template <class F> auto run_avx2(F f) { return f(); }
template <class F> auto run_avx512(F f) { return f(); }
#endif

}  // namespace detail

// f() by the instructions of cpu_isa(), with the same bits by each: no fused operation is formed of others
// (-ffp-contract=off). f is a lambda around a loop and should hold numbers by value, for a loop must expect its stores to
// change what lies behind references. What f calls in other source files runs as it was compiled.
template <class F> auto vectorized(F f) {
  if constexpr (detail::kBuiltFor < CpuIsa::avx512) {
    const CpuIsa isa = cpu_isa();
    if (isa >= CpuIsa::avx512) return detail::run_avx512(f);
    if (detail::kBuiltFor < CpuIsa::avx2 && isa == CpuIsa::avx2) return detail::run_avx2(f);
  }
  return f();
}

}  // namespace gradual
