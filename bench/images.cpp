// The layers of an image model, at the sizes of the 28x28 cnn.
#include <benchmark/benchmark.h>
#include <gradual/autograd/grad_mode.h>
#include <gradual/core/ops/ops.h>

namespace {

using namespace gradual;

void gflops(benchmark::State& state, double per_iteration) {
  state.counters["GFLOP/s"] =
      benchmark::Counter(per_iteration * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

struct ConvCase {
  Tensor x, w, dy;
  ConvAttrs attrs;
  explicit ConvCase(DType dtype)
      : x(randn({64, 32, 14, 14}).to(dtype)),
        w(randn({64, 32, 3, 3}).to(dtype)),
        dy(randn({64, 64, 14, 14}).to(dtype)) {
    attrs.padding = 1;
  }
  ConvAttrs sized(const Tensor& t) const {
    ConvAttrs a = attrs;
    a.size = {t.size(2), t.size(3)};
    return a;
  }
  double flops() const { return 2.0 * static_cast<double>(dy.numel() * w.numel() / w.size(0)); }
};

void conv(benchmark::State& state, DType dtype) {
  const NoGrad off;
  const ConvCase c(dtype);
  for (auto _ : state) benchmark::DoNotOptimize(conv2d(c.x, c.w, {}, c.attrs));
  gflops(state, c.flops());
}
void conv_dx(benchmark::State& state, DType dtype) {
  const NoGrad off;
  const ConvCase c(dtype);
  for (auto _ : state) benchmark::DoNotOptimize(conv2d_backward_input(c.dy, c.w, c.sized(c.x)));
  gflops(state, c.flops());
}
void conv_dw(benchmark::State& state, DType dtype) {
  const NoGrad off;
  const ConvCase c(dtype);
  for (auto _ : state) benchmark::DoNotOptimize(conv2d_backward_weight(c.dy, c.x, c.sized(c.w)));
  gflops(state, c.flops());
}
BENCHMARK_CAPTURE(conv, f32, DType::f32)->Name("op/conv2d_f32")->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(conv, bf16, DType::bf16)->Name("op/conv2d_bf16")->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(conv_dx, f32, DType::f32)->Name("op/conv2d_backward_input_f32")->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(conv_dx, bf16, DType::bf16)->Name("op/conv2d_backward_input_bf16")->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(conv_dw, f32, DType::f32)->Name("op/conv2d_backward_weight_f32")->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(conv_dw, bf16, DType::bf16)->Name("op/conv2d_backward_weight_bf16")->Unit(benchmark::kMicrosecond);

// Forward and backward of a layer, on [64, 32, 28, 28].
template <class Layer> void layer(benchmark::State& state, DType dtype, const Layer& forward) {
  const Tensor x = randn({64, 32, 28, 28}).to(dtype).set_requires_grad();
  const Tensor dy = randn(forward(x).sizes()).to(dtype);
  for (auto _ : state) {
    forward(x).backward(dy);
    x.zero_grad();
  }
}
void normalize(benchmark::State& state, DType dtype) {
  const Tensor weight = ones({32}).set_requires_grad();
  const Tensor bias = zeros({32}).set_requires_grad();
  layer(state, dtype, [&](const Tensor& x) { return batch_norm(x, weight, bias, {}, {}, true).y; });
}
void pool(benchmark::State& state, DType dtype) {
  layer(state, dtype, [](const Tensor& x) { return max_pool2d(x, {.kernel = 2}); });
}
BENCHMARK_CAPTURE(normalize, f32, DType::f32)->Name("op/batch_norm_f32")->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(normalize, bf16, DType::bf16)->Name("op/batch_norm_bf16")->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(pool, f32, DType::f32)->Name("op/max_pool2d_f32")->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(pool, bf16, DType::bf16)->Name("op/max_pool2d_bf16")->Unit(benchmark::kMicrosecond);

}  // namespace
