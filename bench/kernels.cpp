// The library's own loops, one thread: 64 Ki numbers, which the second-level cache holds, and 16 Mi from memory.
#include <benchmark/benchmark.h>
#include <gradual/autograd/grad_mode.h>
#include <gradual/core/formats/convert.h>
#include <gradual/core/ops/ops.h>
#include <gradual/optim/adam.h>

#include <string>

namespace {

using namespace gradual;

constexpr std::int64_t kCached = 64 << 10;
constexpr std::int64_t kStreamed = 16 << 20;
constexpr std::int64_t kRow = 1024;

// Billions of elements per second.
void rate(benchmark::State& state, std::int64_t elements) {
  state.counters["Gelem/s"] = benchmark::Counter(
      static_cast<double>(elements) * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

Tensor numbers(std::int64_t n) {
  Generator g(1);
  return randn({n / kRow, kRow}, {}, g);
}

void cast(benchmark::State& state, DType to, std::int64_t n) {
  const Tensor x = numbers(n);
  const Tensor y = empty({n}, {.dtype = to});
  for (auto _ : state) {
    convert(DType::f32, x.raw(), to, y.raw(), n);
    benchmark::ClobberMemory();
  }
  rate(state, n);
}

void op(benchmark::State& state, Tensor (*f)(const Tensor&), std::int64_t n) {
  const NoGrad off;
  const Tensor x = numbers(n);
  for (auto _ : state) benchmark::DoNotOptimize(f(x));
  rate(state, n);
}

void adam(benchmark::State& state, std::int64_t n) {
  Tensor p = numbers(n).set_requires_grad();
  optim::Adam optimizer({p}, {.lr = 1e-6});
  (p * numbers(n)).sum().backward();
  for (auto _ : state) optimizer.step();
  rate(state, n);
}

template <class F, class... A> void add(const std::string& name, F run, A... arguments) {
  for (const std::int64_t n : {kCached, kStreamed})
    benchmark::RegisterBenchmark(("kernel/" + name + (n == kCached ? "_64Ki" : "_16Mi")).c_str(),
                                 [=](benchmark::State& state) { run(state, arguments..., n); });
}

const bool registered = [] {
  for (const DType d : {DType::f32, DType::f16, DType::bf16, DType::f8e4m3fn})
    add("cast_f32_" + std::string(to_string(d)), cast, d);
  using Op = Tensor (*)(const Tensor&);
  const std::pair<const char*, Op> ops[] = {{"exp", [](const Tensor& x) { return exp(x); }},
                                            {"tanh", [](const Tensor& x) { return tanh(x); }},
                                            {"relu", [](const Tensor& x) { return relu(x); }},
                                            {"add", [](const Tensor& x) { return x + x; }},
                                            {"sum", [](const Tensor& x) { return sum(x); }},
                                            {"sum_columns", [](const Tensor& x) { return sum(x, {0}); }},
                                            {"softmax", [](const Tensor& x) { return softmax(x, 1); }},
                                            {"layer_norm", [](const Tensor& x) { return layer_norm(x, 1); }}};
  for (const auto& [name, f] : ops) add(name, op, f);
  add("adam_step", adam);
  return true;
}();

}  // namespace
