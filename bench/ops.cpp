// The cost of recording, and the kernels that matter most.
#include <benchmark/benchmark.h>
#include <gradual/autograd/grad_mode.h>
#include <gradual/core/formats/convert.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/quantize/quantizer.h>

namespace {

using namespace gradual;

void rate(benchmark::State& state, double per_iteration, const char* unit) {
  state.counters[unit] =
      benchmark::Counter(per_iteration * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

// An 8-element multiply that records a node, and the destruction of both.
void mul8_record(benchmark::State& state) {
  const Tensor a = ones({8}).set_requires_grad();
  const Tensor b = ones({8});
  for (auto _ : state) benchmark::DoNotOptimize(mul(a, b));
}
BENCHMARK(mul8_record)->Name("op/mul8_record");

// The same and its backward into the leaf, whose gradient is dropped each time.
void mul8_forward_backward(benchmark::State& state) {
  const Tensor a = ones({8}).set_requires_grad();
  const Tensor b = ones({8});
  const Tensor g = ones({8});
  for (auto _ : state) {
    mul(a, b).backward(g);
    a.zero_grad();
  }
}
BENCHMARK(mul8_forward_backward)->Name("op/mul8_forward_backward");

void matmul_square(benchmark::State& state, std::int64_t n, DType dtype) {
  const NoGrad off;
  const Tensor a = randn({n, n}).to(dtype);
  const Tensor b = randn({n, n}).to(dtype);
  for (auto _ : state) benchmark::DoNotOptimize(matmul(a, b));
  rate(state, 2.0 * static_cast<double>(n * n * n), "GFLOP/s");
}
BENCHMARK_CAPTURE(matmul_square, f32, 512, DType::f32)->Name("op/matmul_512_f32");
BENCHMARK_CAPTURE(matmul_square, bf16, 512, DType::bf16)->Name("op/matmul_512_bf16");

void cast_to(benchmark::State& state, DType to) {
  const std::int64_t n = 16 << 20;
  const NoGrad off;
  const Tensor x = randn({n});
  const Tensor y = empty({n}, {.dtype = to});
  for (auto _ : state) {
    convert(DType::f32, x.raw(), to, y.raw(), n);
    benchmark::ClobberMemory();
  }
  rate(state, static_cast<double>(n) * static_cast<double>(4 + size_of(to)), "GB/s");
}
BENCHMARK_CAPTURE(cast_to, f32, DType::f32)->Name("op/copy_f32_16Mi");
BENCHMARK_CAPTURE(cast_to, f16, DType::f16)->Name("op/cast_f32_f16_16Mi");
BENCHMARK_CAPTURE(cast_to, bf16, DType::bf16)->Name("op/cast_f32_bf16_16Mi");
BENCHMARK_CAPTURE(cast_to, e4m3, DType::f8e4m3fn)->Name("op/cast_f32_f8e4m3fn_16Mi");

// A residual plus dropout of a branch, with backward: as one op, and as two.
void dropped_sum(benchmark::State& state, std::int64_t n, DType dtype, bool fused) {
  const Tensor branch = randn({n}).to(dtype).set_requires_grad();
  const Tensor dy = randn({n});
  const Tensor residual = randn({n}).set_requires_grad();
  for (auto _ : state) {
    Tensor x = branch * 1;
    const Tensor y = fused ? dropout_add(std::move(x), residual, 0.1) : residual + dropout(x, 0.1);
    y.backward(dy);
    branch.zero_grad();
    residual.zero_grad();
  }
}
BENCHMARK_CAPTURE(dropped_sum, apart, 128 * 512, DType::f32, false)->Name("op/dropout_and_add_64Ki_f32");
BENCHMARK_CAPTURE(dropped_sum, fused, 128 * 512, DType::f32, true)->Name("op/dropout_add_64Ki_f32");
BENCHMARK_CAPTURE(dropped_sum, apart_bf16, 128 * 512, DType::bf16, false)->Name("op/dropout_and_add_64Ki_bf16");
BENCHMARK_CAPTURE(dropped_sum, fused_bf16, 128 * 512, DType::bf16, true)->Name("op/dropout_add_64Ki_bf16");
BENCHMARK_CAPTURE(dropped_sum, small, 512, DType::f32, false)->Name("op/dropout_and_add_512_f32");
BENCHMARK_CAPTURE(dropped_sum, small_fused, 512, DType::f32, true)->Name("op/dropout_add_512_f32");

// One scale per tensor from its amax; the fixed cost of the call on few elements.
void fake_quantized(benchmark::State& state, std::int64_t n, const Scaling& scaling) {
  const NoGrad off;
  const Tensor x = randn({n});
  const Quantizer q{.format = format("e4m3fn"), .scaling = scaling};
  AmaxHistory history;
  for (auto _ : state) {
    benchmark::DoNotOptimize(quantize_operand(x, q, {.history = &history}));
    if (const auto* delayed = std::get_if<DelayedScale>(&scaling)) history.advance(*delayed, q.format);
  }
}
BENCHMARK_CAPTURE(fake_quantized, current, 256, TensorScale{})->Name("op/quantize_256_current");
BENCHMARK_CAPTURE(fake_quantized, delayed, 256, DelayedScale{})->Name("op/quantize_256_delayed");
BENCHMARK_CAPTURE(fake_quantized, nvfp4, 256, Nvfp4Blocks{})->Name("op/quantize_256_nvfp4");

void elementwise(benchmark::State& state, Tensor (*op)(const Tensor&, Loc)) {
  const NoGrad off;
  const Tensor x = rand({1 << 20});
  for (auto _ : state) benchmark::DoNotOptimize(op(x, Loc::current()));
  rate(state, 8.0 * static_cast<double>(x.numel()), "GB/s");
}
BENCHMARK_CAPTURE(elementwise, exp, gradual::exp)->Name("op/exp_1Mi");
BENCHMARK_CAPTURE(elementwise, tanh, gradual::tanh)->Name("op/tanh_1Mi");
BENCHMARK_CAPTURE(elementwise, relu, gradual::relu)->Name("op/relu_1Mi");

}  // namespace
