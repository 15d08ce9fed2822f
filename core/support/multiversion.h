// Inner loops compiled for several instruction sets in one binary. Compiled into kernels only; not a public header.
#pragma once

#include "cpu_isa.h"

namespace gradual {
namespace detail {

// The instruction set that the compiler may assume. With -march=native on a processor with AVX-512, loops are compiled
// once.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
inline constexpr CpuIsa kBuiltFor = CpuIsa::avx512;
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
inline constexpr CpuIsa kBuiltFor = CpuIsa::avx2;
#else
inline constexpr CpuIsa kBuiltFor = CpuIsa::baseline;
#endif

// Sanitizers find in one version of a loop what they find in all, and take minutes longer to compile three.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kManyVersions = false;
#else
inline constexpr bool kManyVersions = kBuiltFor < CpuIsa::avx512;
#endif

// Meaningful if cpu_isa() is avx512 or more.
bool has_avx512_bf16();

// The target attribute applies to this function alone, so no inline function of the rest of the program uses
// instructions that some processors lack. flatten inlines everything that f calls, and the compiler vectorises it for
// this target.
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

// Runs f() with the instructions of cpu_isa(). All give the same bits, because the compiler fuses no operations
// (-ffp-contract=off). f is a lambda around a loop. It should capture numbers by value: a captured reference might
// alias the loop's stores. Functions of other source files that f calls run as they were compiled.
template <class F> auto vectorized(F f) {
  if constexpr (detail::kManyVersions) {
    const CpuIsa isa = cpu_isa();
    if (isa >= CpuIsa::avx512) return detail::run_avx512(f);
    if (detail::kBuiltFor < CpuIsa::avx2 && isa == CpuIsa::avx2) return detail::run_avx2(f);
  }
  return f();
}

}  // namespace gradual
