// What the op table does not ask of convolutions on a GPU: accumulators, TF32, counts, layouts of both operands.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gradual/core/formats/accumulator.h>
#include <gradual/core/formats/cast_counts.h>
#include <gradual/core/ops/compute_mode.h>
#include <gradual/core/tensor/memory.h>
#include <gradual/cuda/cuda.h>
#include <gradual/cuda/runtime/graph.h>
#include <gradual/gradual.h>
#include <gradual/lab/models.h>
#include "support/gpu.h"

namespace gradual {
namespace {

using namespace test;

// y = conv2d(x, w) and both gradients.
struct Case {
  Shape x, w;
  ConvAttrs attrs;
};
const Case kCases[] = {{{2, 8, 9, 7}, {16, 8, 3, 3}, {{.padding = {1, 1}}}},
                       {{3, 8, 8, 8}, {8, 4, 3, 3}, {{.stride = {2, 1}, .padding = {0, 1}, .groups = 2}}},
                       {{2, 6, 10, 11}, {6, 1, 3, 2}, {{.padding = {2, 1}, .dilation = {2, 1}, .groups = 6}}},
                       {{2, 8, 5, 5}, {1, 8, 1, 1}, {}}};

std::vector<Tensor> all_three(const Case& c, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& dy) {
  ConvAttrs by_x = c.attrs;
  ConvAttrs by_w = c.attrs;
  for (int i = 0; i < 2; ++i) {
    by_x.size[i] = c.x[2 + i];
    by_w.size[i] = c.w[2 + i];
  }
  return {conv2d(x, w, bias, c.attrs), conv2d_backward_input(dy, w, by_x), conv2d_backward_weight(dy, x, by_w)};
}

void compare(const Case& c, DType dtype, bool x_last, bool dy_last, double eps) {
  const Tensor x = drawn(c.x, 1, dtype);
  const Tensor w = drawn(c.w, 2, dtype);
  const Tensor bias = drawn({c.w[0]}, 3, dtype);
  const Tensor dy = drawn(conv2d(x, w, {}, c.attrs).sizes(), 4, dtype);
  const auto laid_out = [](const Tensor& t, bool last) { return last ? channels_last(t) : t; };
  const std::vector<Tensor> here = all_three(c, laid_out(x, x_last), w, bias, laid_out(dy, dy_last));
  const std::vector<Tensor> gpu =
      all_three(c, laid_out(x.to(kGpu), x_last), w.to(kGpu), bias.to(kGpu), laid_out(dy.to(kGpu), dy_last));
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(gpu[i].strides() == here[i].strides());
    REQUIRE(gpu[i].dtype() == here[i].dtype());
    const std::vector<double> a = numbers(gpu[i]);
    const std::vector<double> b = numbers(here[i]);
    const double store = float_info(here[i].dtype()).epsilon;
    int wrong = 0;
    for (std::size_t k = 0; k < a.size(); ++k)
      wrong += !(std::fabs(a[k] - b[k]) <= (store + eps) * (4 + std::fabs(b[k])));
    CHECK_MESSAGE(wrong == 0, "output ", i, " in ", to_string(dtype), x_last ? " x last" : "",
                  dy_last ? " dy last" : "");
  }
}

TEST_CASE("convolutions and their gradients in both layouts of either operand") {
  if (!have_gpu()) return;
  for (const Case& c : kCases)
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8e5m2})
      for (const bool x_last : {false, true})
        for (const bool dy_last : {false, true}) compare(c, dtype, x_last, dy_last, dtype == DType::f64 ? 1e-13 : 1e-4);
}

// A library that is allowed TF32 need not use it for so little; tests/emulator shows that it is allowed.
TEST_CASE("convolutions under TF32") {
  if (!have_gpu()) return;
  const MatmulPrecisionScope scope(MatmulPrecision::tf32);
  compare(kCases[0], DType::f32, false, false, 2e-2);
  compare(kCases[0], DType::f64, false, false, 1e-13);
}

TEST_CASE("convolutions under an accumulator have the CPU's bits") {
  if (!have_gpu()) return;
  for (const std::string name : {"fp16-acc", "bf16-acc/chunk=7", "hopper-fp8-14bit/promote=128"}) {
    const AccumulatorScope scope(accumulator(name));
    for (const Case& c : {kCases[0], kCases[1]}) {
      const Tensor x = drawn(c.x, 1, DType::bf16);
      const Tensor w = drawn(c.w, 2, DType::bf16);
      const Tensor bias = drawn({c.w[0]}, 3, DType::bf16);
      const Tensor dy = drawn(conv2d(x, w, {}, c.attrs).sizes(), 4, DType::bf16);
      const std::vector<Tensor> here = all_three(c, x, w, bias, dy);
      const std::vector<Tensor> gpu = all_three(c, x.to(kGpu), w.to(kGpu), bias.to(kGpu), dy.to(kGpu));
      for (std::size_t i = 0; i < 3; ++i) CHECK(numbers(gpu[i]) == numbers(here[i]));
    }
  }
}

TEST_CASE("what rounding a convolution loses is counted") {
  if (!have_gpu()) return;
  const Tensor x = (drawn(kCases[0].x, 1) * 200).to(DType::f16);
  const Tensor w = (drawn(kCases[0].w, 2) * 100).to(DType::f16);
  CastCounts there, here;
  {
    const CountScope scope(&there);
    conv2d(channels_last(x.to(kGpu)), w.to(kGpu), {}, kCases[0].attrs);
  }
  {
    const CountScope scope(&here);
    conv2d(x, w, {}, kCases[0].attrs);
  }
  CHECK(there.overflow > 0);
  CHECK(there.overflow == here.overflow);
  CHECK(there.elements == here.elements);
}

TEST_CASE("convolutions give the same bits twice and keep no memory") {
  if (!have_gpu()) return;
  const Case& c = kCases[0];
  const Tensor x = drawn(c.x, 1, DType::bf16).to(kGpu);
  const Tensor w = drawn(c.w, 2, DType::bf16).to(kGpu);
  const Tensor dy = conv2d(x, w, {}, c.attrs);
  const std::vector<Tensor> first = all_three(c, x, w, {}, dy);
  const std::int64_t before = memory_stats(kGpu).total.current;
  for (int n = 0; n < 3; ++n) {
    const std::vector<Tensor> again = all_three(c, x, w, {}, dy);
    for (std::size_t i = 0; i < 3; ++i) CHECK(numbers(again[i]) == numbers(first[i]));
  }
  CHECK(memory_stats(kGpu).total.current == before);
}

// Layers as CNNs have them: strides, groups, one channel in, one by one.
const Case kOrdinary[] = {{{2, 3, 9, 7}, {16, 3, 3, 3}, {{.padding = {1, 1}}}},
                          {{2, 1, 8, 8}, {4, 1, 5, 5}, {{.padding = {2, 2}}}},
                          {{3, 8, 8, 8}, {8, 1, 3, 3}, {{.stride = {2, 2}, .padding = {1, 1}, .groups = 8}}},
                          {{2, 16, 5, 5}, {8, 16, 1, 1}, {{.stride = {2, 2}}}},
                          {{2, 8, 9, 9}, {8, 8, 3, 3}, {{.padding = {2, 2}, .dilation = {2, 2}}}}};

TEST_CASE("the library computes ordinary convolutions in every dtype and layout, our kernel if it is switched off") {
  if (!have_gpu()) return;
  for (const Case& c : kOrdinary)
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
      for (const bool last : {false, true}) {
        CAPTURE(to_string(c.w));
        CAPTURE(to_string(dtype));
        CAPTURE(last);
        const auto placed = [&](const Tensor& t) { return last ? channels_last(t.to(kGpu)) : t.to(kGpu); };
        const Tensor x = placed(drawn(c.x, 1, dtype));
        const Tensor w = drawn(c.w, 2, dtype).to(kGpu);
        const Tensor bias = drawn({c.w[0]}, 3, dtype).to(kGpu);
        const Tensor dy = placed(conv2d(x, w, {}, c.attrs));
        std::vector<Tensor> library, ours;
        const std::vector<std::string> names = kernels_of([&] { library = all_three(c, x, w, bias, dy); });
        CHECK_FALSE(any_has(names, "PlainConvolution"));
        for (const char* call : {"cuDNN convolution", "cuDNN convolution, gradient of the input",
                                 "cuDNN convolution, gradient of the weight"})
          CHECK_MESSAGE(std::count(names.begin(), names.end(), call) == 1, call);
        const cuda::LibraryKernelsScope off(false);
        const std::vector<std::string> plain = kernels_of([&] { ours = all_three(c, x, w, bias, dy); });
        CHECK(any_has(plain, "PlainConvolution"));
        CHECK_FALSE(any_has(plain, "cudnn"));
        const double eps = float_info(dtype).epsilon + (dtype == DType::f64 ? 1e-13 : 1e-4);
        for (std::size_t i = 0; i < 3; ++i) {
          const std::vector<double> a = numbers(library[i]);
          const std::vector<double> b = numbers(ours[i]);
          int wrong = 0;
          for (std::size_t k = 0; k < a.size(); ++k) wrong += !(std::fabs(a[k] - b[k]) <= eps * (4 + std::fabs(b[k])));
          CHECK(wrong == 0);
        }
      }
}

TEST_CASE("what the library refuses is computed another way") {
  if (!have_gpu()) return;
  // Sizes of their own: how a size is done is remembered.
  const Case c{{2, 8, 7, 6}, {16, 4, 3, 3}, {{.padding = {1, 1}, .groups = 2}}};
  for (const char* what : {"channels_last", "narrow", "channels_last,narrow", "convolution"}) {
    CAPTURE(what);
    Case own = c;
    own.x[0] += static_cast<std::int64_t>(std::string(what).size());
    const CudnnRefuses refusal(what);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
      for (const bool last : {false, true}) compare(own, dtype, last, last, 1e-4);
  }
}

TEST_CASE("a recorded step of a convolutional network has the bits of the step itself") {
  if (!have_gpu()) return;
  manual_seed(3);
  const auto model = lab::make_cnn(1, 8, 8, 10);
  model->to(kGpu);
  const Tensor x = drawn({4, 1, 8, 8}, 1).to(kGpu);
  const Tensor classes = from_data(std::vector<std::int64_t>{1, 5, 0, 9}, {4}).to(kGpu);
  Tensor loss;
  const auto step = [&] {
    model->zero_grad();
    loss = cross_entropy((*model)(x), classes);
    loss.backward();
  };
  const auto gradients = [&] {
    std::vector<std::vector<double>> all;
    for (const Tensor& p : model->parameters()) all.push_back(numbers(p.grad()));
    return all;
  };
  step();
  const auto want = gradients();
  cuda::Graph graph;
  graph.capture(step);
  x.copy_(drawn({4, 1, 8, 8}, 2).to(kGpu));
  graph.replay();
  CHECK(gradients() != want);
  x.copy_(drawn({4, 1, 8, 8}, 1).to(kGpu));
  graph.replay();
  CHECK(gradients() == want);
}

}  // namespace
}  // namespace gradual
