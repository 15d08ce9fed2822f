#include "peaks.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "../../core/support/cpu_isa.h"
#include "../../core/tensor/tensor.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace compare {
namespace {

constexpr std::int64_t kIterations = 1 << 20;
constexpr std::int64_t kTileIterations = 1 << 16;
constexpr std::int64_t kElements = 16 << 20;  // 64 MiB of f32
constexpr int kChains = 16;                   // independent sums: enough to hide the latency of an addition

// One way to reach a peak: its step, and the work of a step.
struct Way {
  std::string how;
  double work = 0;
  std::function<void()> step;
};

volatile float sink;  // so that no sum is dropped

// `flop` returns any of its sums; every thread runs it once per step.
Way on_all(std::string how, int threads, double flop, float (*chains)()) {
  return {std::move(how), flop * threads, [=] {
            float sum = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : sum)
            for (int t = 0; t < threads; ++t) sum += chains();
            sink = sum;
          }};
}

#if defined(__x86_64__)
// Different sums; otherwise the compiler would merge them.
template <class V, int kCount> [[gnu::always_inline]] inline void begin(V (&sums)[kCount]) {
  for (int i = 0; i < kCount; ++i) sums[i] = V{} + static_cast<float>(i);
}
// Both are inlined into functions with the target's instructions.
template <class V, int kCount> [[gnu::always_inline]] inline float total(V (&sums)[kCount]) {
  for (int i = 1; i < kCount; ++i) sums[0] += sums[i];
  return sums[0][0];
}

__attribute__((target("avx512f"))) float fma_512() {
  const __m512 a = _mm512_set1_ps(0.5F);
  const __m512 b = _mm512_set1_ps(1);
  __m512 sums[kChains];
  begin(sums);
  for (std::int64_t i = 0; i < kIterations; ++i)
#pragma GCC unroll 16
    for (__m512& s : sums) s = _mm512_fmadd_ps(s, a, b);
  return total(sums);
}

__attribute__((target("avx2,fma"))) float fma_256() {
  const __m256 a = _mm256_set1_ps(0.5F);
  const __m256 b = _mm256_set1_ps(1);
  constexpr int kFew = 12;  // there are 16 registers
  __m256 sums[kFew];
  begin(sums);
  for (std::int64_t i = 0; i < kIterations; ++i)
#pragma GCC unroll 12
    for (__m256& s : sums) s = _mm256_fmadd_ps(s, a, b);
  return total(sums);
}

__attribute__((target("avx512f,avx512bf16"))) float dot_bf16() {
  // ones
  const __m512bh a = (__m512bh)_mm512_set1_epi16(0x3f80);
  const __m512bh b = a;
  __m512 sums[kChains];
  begin(sums);
  for (std::int64_t i = 0; i < kIterations; ++i)
#pragma GCC unroll 16
    for (__m512& s : sums) s = _mm512_dpbf16_ps(s, a, b);
  return total(sums);
}

// Four tiles of sums, 16 x 32 by 32 x 16 numbers at a time; all are ones.
float tiles_bf16() {
  struct alignas(64) {
    unsigned char palette = 1;
    unsigned char start = 0;
    unsigned char reserved[14] = {};
    std::uint16_t bytes[16] = {64, 64, 64, 64, 64, 64};
    unsigned char rows[16] = {16, 16, 16, 16, 16, 16};
  } configuration;
  alignas(64) std::uint16_t ones[512];
  std::fill_n(ones, 512, std::uint16_t{0x3f80});
  alignas(64) float sums[256];
  asm volatile("ldtilecfg %0\n\ttileloadd (%1,%2,1), %%tmm4\n\ttileloadd (%1,%2,1), %%tmm5" ::"m"(configuration),
               "r"(ones), "r"(64L)
               : "memory");
  for (std::int64_t i = 0; i < kTileIterations; ++i)
    asm volatile(
        "tdpbf16ps %tmm5, %tmm4, %tmm0\n\ttdpbf16ps %tmm5, %tmm4, %tmm1\n\t"
        "tdpbf16ps %tmm5, %tmm4, %tmm2\n\ttdpbf16ps %tmm5, %tmm4, %tmm3");
  asm volatile("tilestored %%tmm0, (%0,%1,1)\n\ttilerelease" ::"r"(sums), "r"(64L) : "memory");
  return sums[0];
}

// Writes around the caches; n is a multiple of 64.
__attribute__((target("avx512f"))) void copy_512(float* to, const float* a, const float*, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 16) _mm512_stream_ps(to + i, _mm512_loadu_ps(a + i));
  _mm_sfence();
}
__attribute__((target("avx"))) void copy_256(float* to, const float* a, const float*, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 8) _mm256_stream_ps(to + i, _mm256_loadu_ps(a + i));
  _mm_sfence();
}
__attribute__((target("avx512f"))) void add_512(float* to, const float* a, const float* b, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 16)
    _mm512_stream_ps(to + i, _mm512_add_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i)));
  _mm_sfence();
}
__attribute__((target("avx"))) void add_256(float* to, const float* a, const float* b, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 8)
    _mm256_stream_ps(to + i, _mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i)));
  _mm_sfence();
}
#endif

void copy_plain(float* to, const float* a, const float*, std::int64_t n) {
  std::memcpy(to, a, static_cast<std::size_t>(n) * sizeof(float));
}
void add_plain(float* to, const float* a, const float* b, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = a[i] + b[i];
}

// `move` touches so many arrays, of which it writes one.
Way streaming(std::string how, int threads, int arrays,
              void (*move)(float*, const float*, const float*, std::int64_t)) {
  // Uses the library's memory, whose arrays have the same kind of pages.
  const auto array = [] { return gradual::zeros({kElements}); };
  return {std::move(how), 4.0 * arrays * kElements, [threads, move, to = array(), a = array(), b = array()] {
            const std::int64_t part = kElements / threads / 64 * 64;
#pragma omp parallel for num_threads(threads) schedule(static)
            for (int t = 0; t < threads; ++t) {
              const std::int64_t at = t * part;
              const std::int64_t n = t + 1 < threads ? part : kElements - at;
              move(to.data<float>() + at, a.data<float>() + at, b.data<float>() + at, n);
            }
          }};
}

std::vector<Way> ways(const std::string& of, int threads) {
  std::vector<Way> all;
  if (of == "stream") all.push_back(streaming("a copy by memcpy", threads, 2, copy_plain));
  if (of == "stream_add") all.push_back(streaming("an addition", threads, 3, add_plain));
#if defined(__x86_64__)
  const bool avx512 = __builtin_cpu_supports("avx512f");
  const auto flop = [](int chains, int a_chain) { return 1.0 * kIterations * chains * a_chain; };
  const bool avx = __builtin_cpu_supports("avx");
  if (of == "stream" && avx512) all.push_back(streaming("a copy, AVX-512 streaming stores", threads, 2, copy_512));
  if (of == "stream" && avx) all.push_back(streaming("a copy, AVX streaming stores", threads, 2, copy_256));
  if (of == "stream_add" && avx512)
    all.push_back(streaming("an addition, AVX-512 streaming stores", threads, 3, add_512));
  if (of == "stream_add" && avx) all.push_back(streaming("an addition, AVX streaming stores", threads, 3, add_256));
  if (of == "f32" && avx512) all.push_back(on_all("AVX-512 FMA", threads, flop(kChains, 32), fma_512));
  if (of == "f32" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    all.push_back(on_all("AVX2 FMA", threads, flop(12, 16), fma_256));
  if (of == "bf16" && avx512 && __builtin_cpu_supports("avx512bf16"))
    all.push_back(on_all("AVX512-BF16 dot product", threads, flop(kChains, 64), dot_bf16));
  if (of == "bf16" && gradual::cpu_isas().back() == gradual::CpuIsa::amx)
    all.push_back(on_all("AMX", threads, 4.0 * 2 * 16 * 16 * 32 * kTileIterations, tiles_bf16));
#endif
  return all;
}

struct Peak : Job {
  explicit Peak(Way w) : way(std::move(w)) {}
  void step() override { way.step(); }
  Json facts() const override { return {{"work", way.work}, {"how", way.how}}; }
  Way way;
};

double seconds(const Way& way) {
  const auto start = std::chrono::steady_clock::now();
  way.step();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::unique_ptr<Job> machine_peak(const std::string& of, int threads) {
  const std::vector<Way> all = ways(of, threads);
  const Way* best = nullptr;
  double best_rate = 0;
  for (const Way& way : all) {
    double fastest = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 5; ++i) fastest = std::min(fastest, seconds(way));
    if (way.work / fastest > best_rate) {
      best = &way;
      best_rate = way.work / fastest;
    }
  }
  if (!best) throw std::runtime_error("no way known to measure the peak of " + of + " on this CPU");
  return std::make_unique<Peak>(*best);
}

}  // namespace compare
