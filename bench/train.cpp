// A whole training step: forward, backward, update.
#include <benchmark/benchmark.h>
#include <gradual/core/ops/ops.h>
#include <gradual/lab/models.h>
#include <gradual/nn/activation.h>
#include <gradual/nn/linear.h>
#include <gradual/nn/sequential.h>
#include <gradual/optim/adam.h>
#include <gradual/optim/sgd.h>

namespace {

using namespace gradual;

template <class Optimizer>
void train(benchmark::State& state, nn::Module& model, Optimizer& optimizer, const Tensor& x, std::int64_t classes) {
  const Tensor y = randint(0, classes, {x.size(0)});
  for (auto _ : state) {
    cross_entropy(model(x), y).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
}

void mlp(benchmark::State& state, std::int64_t in, std::int64_t hidden, std::int64_t batch) {
  nn::Sequential model{nn::Linear(in, hidden), nn::ReLU(), nn::Linear(hidden, hidden), nn::ReLU(),
                       nn::Linear(hidden, 10)};
  optim::SGD optimizer(model.parameters(), {.lr = 0.01, .momentum = 0.9});
  train(state, model, optimizer, randn({batch, in}), 10);
}
BENCHMARK_CAPTURE(mlp, small, 64, 128, 32)->Name("train/mlp_small_step")->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(mlp, medium, 784, 512, 128)->Name("train/mlp_medium_step")->Unit(benchmark::kMicrosecond);

void cnn(benchmark::State& state, std::int64_t size, std::int64_t batch) {
  const auto model = lab::make_cnn(1, size, size, 10);
  optim::AdamW optimizer(model->parameters(), {.lr = 1e-3});
  train(state, *model, optimizer, randn({batch, 1, size, size}), 10);
}
BENCHMARK_CAPTURE(cnn, digits, 8, 64)->Name("train/cnn_8x8_step")->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(cnn, mnist, 28, 64)->Name("train/cnn_28x28_step")->Unit(benchmark::kMicrosecond);

}  // namespace
