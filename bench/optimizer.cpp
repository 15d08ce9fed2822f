// Whole optimizer steps against the machine's memory: bytes read and written per second, compared with a copy; and the
// cost of a step on few bytes.
#include <benchmark/benchmark.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/support/threads.h>
#include <gradual/optim/adam.h>
#include <gradual/optim/grad_scaler.h>
#include <gradual/optim/sgd.h>

#include <algorithm>
#include <memory>
#include <thread>

namespace {

using namespace gradual;
using namespace gradual::optim;

void rate(benchmark::State& state, double bytes) {
  state.counters["GB/s"] =
      benchmark::Counter(bytes * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

// Parameters with gradients of their dtype.
std::vector<Tensor> parameters(const std::vector<Shape>& shapes, DType dtype) {
  Generator g(1);
  std::vector<Tensor> all;
  for (const Shape& s : shapes) {
    all.push_back(randn(s, {}, g).to(dtype).set_requires_grad());
    all.back().set_grad(randn(s, {}, g).to(dtype));
  }
  return all;
}
// 8 Mi elements in 40 tensors, half of them as small as biases are.
std::vector<Shape> many() {
  std::vector<Shape> shapes;
  for (int layer = 0; layer < 20; ++layer) shapes.insert(shapes.end(), {{647, 648}, {648}});
  return shapes;
}
double numel_of(const std::vector<Tensor>& all) {
  double n = 0;
  for (const Tensor& t : all) n += static_cast<double>(t.numel());
  return n;
}

using Make = std::unique_ptr<Optimizer> (*)(const std::vector<Tensor>&);
std::unique_ptr<Optimizer> adamw_masters(const std::vector<Tensor>& params) {
  return std::make_unique<AdamW>(params, AdamWOptions{.precision = {.update = LowPrecisionUpdate::masters}});
}
std::unique_ptr<Optimizer> adam(const std::vector<Tensor>& params) { return std::make_unique<Adam>(params); }
std::unique_ptr<Optimizer> sgd(const std::vector<Tensor>& params) {
  return std::make_unique<SGD>(params, SGDOptions{.lr = 1e-3, .momentum = 0.9});
}

struct Row {
  const char* name;
  Make make;
  DType dtype;
  int bytes;    // read and written for each element
  bool scaled;  // with a GradScaler, whose check for Inf and NaN reads the gradients once more
};
constexpr Row kRows[] = {{"optim/adamw_masters_bf16", adamw_masters, DType::bf16, 28, false},
                         {"optim/adamw_masters_bf16_scaler", adamw_masters, DType::bf16, 30, true},
                         {"optim/adam_f32", adam, DType::f32, 28, false},
                         {"optim/sgd_momentum_f32", sgd, DType::f32, 20, false}};

void steps(benchmark::State& state, const Row& row, int threads) {
  const ThreadsScope scope(threads);  // whatever --threads says
  const std::vector<Tensor> params = parameters(many(), row.dtype);
  const auto optimizer = row.make(params);
  GradScaler scaler({.init_scale = 1, .growth_interval = 1 << 30, .enabled = row.scaled});
  const Tensor scaled = scaler.scale(ones({}));
  for (auto _ : state) {
    scaler.step(*optimizer);
    scaler.update();
  }
  rate(state, row.bytes * numel_of(params));
}

// The rate of memory: for a copy, as in cast/stream_rw, and for numbers that are written in place, as in a step.
void stream(benchmark::State& state, int threads, bool in_place) {
  constexpr std::int64_t kElements = 64 << 20;
  const Tensor x = ones({kElements});
  const Tensor y = zeros({kElements});
  auto* out = y.data<float>();
  const float* in = x.data<float>();
  for (auto _ : state) {
    if (in_place) {
#pragma omp parallel for num_threads(threads)
      for (std::int64_t i = 0; i < kElements; ++i) out[i] *= 1.5F;
    } else {
#pragma omp parallel for num_threads(threads)
      for (std::int64_t i = 0; i < kElements; ++i) out[i] = in[i];
    }
    benchmark::ClobberMemory();
  }
  rate(state, 8.0 * kElements);
}

// The parameters of train/mlp_small_step.
void small(benchmark::State& state) {
  const std::vector<Tensor> params = parameters({{128, 64}, {128}, {128, 128}, {128}, {10, 128}, {10}}, DType::f32);
  const auto optimizer = sgd(params);
  for (auto _ : state) optimizer->step();
}
BENCHMARK(small)->Name("optim/mlp_small_sgd_momentum");

// Six parameters of eight elements: the fixed cost of a step.
void tiny(benchmark::State& state, Make make) {
  const auto optimizer = make(parameters(std::vector<Shape>(6, {8}), DType::f32));
  for (auto _ : state) optimizer->step();
}
BENCHMARK_CAPTURE(tiny, sgd, sgd)->Name("optim/six_tiny_sgd_momentum");
BENCHMARK_CAPTURE(tiny, adam, adam)->Name("optim/six_tiny_adam");

const bool registered = [] {
  const int all = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  for (const int threads : {1, all}) {
    const std::string suffix = threads == 1 ? "/1_thread" : "/all_threads";
    benchmark::RegisterBenchmark(("optim/stream_rw" + suffix).c_str(), stream, threads, false)->UseRealTime();
    benchmark::RegisterBenchmark(("optim/stream_in_place" + suffix).c_str(), stream, threads, true)->UseRealTime();
    for (const Row& row : kRows)
      benchmark::RegisterBenchmark((row.name + suffix).c_str(), steps, row, threads)->UseRealTime();
    if (all == 1) break;
  }
  return true;
}();

}  // namespace
