// Rounding against the machine's memory: bytes read and written per second, all threads, compared with a copy.
#include <benchmark/benchmark.h>
#include <gradual/autograd/grad_mode.h>
#include <gradual/core/quantize/quantizer.h>
#include <gradual/core/support/threads.h>

#include <algorithm>
#include <thread>

namespace {

using namespace gradual;

constexpr std::int64_t kElements = 64 << 20;

int cores() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

void rate(benchmark::State& state, double bytes) {
  state.counters["GB/s"] =
      benchmark::Counter(bytes * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

// Numbers of many exponents, like gradients.
const Tensor& source() {
  static const Tensor x = [] {
    Generator g(1);
    return randn({kElements}, {}, g);
  }();
  return x;
}

void stream(benchmark::State& state) {
  const int threads = cores();
  const float* in = source().data<float>();
  const Tensor copy = empty({kElements});
  auto* out = copy.data<float>();
  for (auto _ : state) {
#pragma omp parallel for num_threads(threads)
    for (std::int64_t i = 0; i < kElements; ++i) out[i] = in[i];
    benchmark::ClobberMemory();
  }
  rate(state, 8.0 * kElements);
}
BENCHMARK(stream)->Name("cast/stream_rw")->UseRealTime();

enum class Stats { none, counts, counts_histogram };

template <class F> void cast(benchmark::State& state, Stats wanted, int bytes, const F& f) {
  const NoGrad off;
  const ThreadsScope scope(cores());  // whatever --threads says
  const Tensor& x = source();
  CastCounts counts;
  ExponentHistogram exponents;
  const CastStats stats{wanted == Stats::none ? nullptr : &counts,
                        wanted == Stats::counts_histogram ? &exponents : nullptr};
  for (auto _ : state) benchmark::DoNotOptimize(f(x, stats));
  rate(state, (4.0 + bytes) * kElements);
}

void to_codes(benchmark::State& state, const char* name, Stats wanted) {
  const Format f = format(name);
  cast(state, wanted, f.storage_bits() / 8,
       [&](const Tensor& x, CastStats stats) { return quantize(x, f, {}, Overflow::ieee, {}, stats); });
}
void emulated(benchmark::State& state, const char* name, Stats wanted) {
  const Format f = format(name);
  cast(state, wanted, 4,
       [&](const Tensor& x, CastStats stats) { return fake_quantize(x, f, {}, Overflow::ieee, {}, stats); });
}

const bool registered = [] {
  struct Row {
    std::string name;
    void (*run)(benchmark::State&, const char*, Stats);
    const char* format;
  };
  const Row rows[] = {{"cast/f32_to_f16", to_codes, "fp16"},
                      {"cast/f32_to_bf16", to_codes, "bf16"},
                      {"cast/f32_to_e4m3fn", to_codes, "e4m3fn"},
                      {"cast/f32_to_e5m2", to_codes, "e5m2"},
                      {"cast/f32_to_e5m10_emulated", emulated, "e5m10"}};
  const std::pair<const char*, Stats> kinds[] = {
      {"", Stats::none}, {"_counts", Stats::counts}, {"_counts_histogram", Stats::counts_histogram}};
  for (const Row& row : rows)
    for (const auto& [suffix, wanted] : kinds)
      benchmark::RegisterBenchmark((row.name + suffix).c_str(), row.run, row.format, wanted)->UseRealTime();
  return true;
}();

}  // namespace
