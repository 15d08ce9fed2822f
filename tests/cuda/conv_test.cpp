// What the op table does not ask of convolutions on a GPU: accumulators, TF32, counts, layouts of both operands.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include <gradual/core/accumulator.h>
#include <gradual/core/compute_mode.h>
#include <gradual/core/counts.h>
#include <gradual/core/memory.h>
#include <gradual/cuda/cuda.h>
#include <gradual/gradual.h>
#include "support/gpu.h"

namespace gradual {
namespace {

using namespace test;

Tensor channels_last(const Tensor& t) { return t.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}); }

// y = conv2d(x, w) and both gradients.
struct Case {
  Shape x, w;
  ConvAttrs attrs;
};
const Case kCases[] = {{{2, 8, 9, 7}, {16, 8, 3, 3}, {.padding = {1, 1}}},
                       {{3, 8, 8, 8}, {8, 4, 3, 3}, {.stride = {2, 1}, .padding = {0, 1}, .groups = 2}},
                       {{2, 6, 10, 11}, {6, 1, 3, 2}, {.padding = {2, 1}, .dilation = {2, 1}, .groups = 6}},
                       {{2, 8, 5, 5}, {1, 8, 1, 1}, {}}};

std::vector<Tensor> all_three(const Case& c, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& dy) {
  ConvAttrs by_x = c.attrs, by_w = c.attrs;
  for (int i = 0; i < 2; ++i) by_x.size[i] = c.x[2 + i], by_w.size[i] = c.w[2 + i];
  return {conv2d(x, w, bias, c.attrs), conv2d_backward_input(dy, w, by_x), conv2d_backward_weight(dy, x, by_w)};
}

void compare(const Case& c, DType dtype, bool x_last, bool dy_last, double eps) {
  const Tensor x = drawn(c.x, 1, dtype), w = drawn(c.w, 2, dtype), bias = drawn({c.w[0]}, 3, dtype);
  const Tensor dy = drawn(conv2d(x, w, {}, c.attrs).sizes(), 4, dtype);
  const auto laid_out = [](const Tensor& t, bool last) { return last ? channels_last(t) : t; };
  const std::vector<Tensor> here = all_three(c, laid_out(x, x_last), w, bias, laid_out(dy, dy_last));
  const std::vector<Tensor> gpu =
      all_three(c, laid_out(x.to(kGpu), x_last), w.to(kGpu), bias.to(kGpu), laid_out(dy.to(kGpu), dy_last));
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(gpu[i].strides() == here[i].strides());
    REQUIRE(gpu[i].dtype() == here[i].dtype());
    const std::vector<double> a = numbers(gpu[i]), b = numbers(here[i]);
    const double store = float_info(here[i].dtype()).epsilon;
    int wrong = 0;
    for (std::size_t k = 0; k < a.size(); ++k)
      wrong += !(std::fabs(a[k] - b[k]) <= (store + eps) * (4 + std::fabs(b[k])));
    CHECK_MESSAGE(wrong == 0, "output ", i, " in ", name(dtype), x_last ? " x last" : "", dy_last ? " dy last" : "");
  }
}

TEST_CASE("convolutions and their gradients in both layouts of either operand") {
  if (!have_gpu()) return;
  for (const Case& c : kCases)
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8e5m2})
      for (const bool x_last : {false, true})
        for (const bool dy_last : {false, true}) compare(c, dtype, x_last, dy_last, dtype == DType::f64 ? 1e-13 : 1e-4);
}

TEST_CASE("convolutions under TF32") {
  if (!have_gpu()) return;
  const Tensor x = drawn(kCases[0].x, 1), w = drawn(kCases[0].w, 2), gx = x.to(kGpu), gw = w.to(kGpu);
  const std::vector<double> plain = numbers(conv2d(gx, gw, {}, kCases[0].attrs));
  const MatmulPrecisionScope scope(MatmulPrecision::tf32);
  CHECK(numbers(conv2d(gx, gw, {}, kCases[0].attrs)) != plain);
  compare(kCases[0], DType::f32, false, false, 2e-2);
  compare(kCases[0], DType::f64, false, false, 1e-13);
}

TEST_CASE("convolutions under an accumulator have the CPU's bits") {
  if (!have_gpu()) return;
  for (const std::string name : {"fp16-acc", "bf16-acc/chunk=7", "hopper-fp8-14bit/promote=128"}) {
    const AccumulatorScope scope(accumulator(name));
    for (const Case& c : {kCases[0], kCases[1]}) {
      const Tensor x = drawn(c.x, 1, DType::bf16), w = drawn(c.w, 2, DType::bf16),
                   bias = drawn({c.w[0]}, 3, DType::bf16);
      const Tensor dy = drawn(conv2d(x, w, {}, c.attrs).sizes(), 4, DType::bf16);
      const std::vector<Tensor> here = all_three(c, x, w, bias, dy);
      const std::vector<Tensor> gpu = all_three(c, x.to(kGpu), w.to(kGpu), bias.to(kGpu), dy.to(kGpu));
      for (std::size_t i = 0; i < 3; ++i) CHECK(numbers(gpu[i]) == numbers(here[i]));
    }
  }
}

TEST_CASE("what rounding a convolution loses is counted") {
  if (!have_gpu()) return;
  const Tensor x = (drawn(kCases[0].x, 1) * 200).to(DType::f16), w = (drawn(kCases[0].w, 2) * 100).to(DType::f16);
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
  const Tensor x = drawn(c.x, 1, DType::bf16).to(kGpu), w = drawn(c.w, 2, DType::bf16).to(kGpu);
  const Tensor dy = conv2d(x, w, {}, c.attrs);
  const std::vector<Tensor> first = all_three(c, x, w, {}, dy);
  const std::int64_t before = memory_stats(kGpu).total.current;
  for (int n = 0; n < 3; ++n) {
    const std::vector<Tensor> again = all_three(c, x, w, {}, dy);
    for (std::size_t i = 0; i < 3; ++i) CHECK(numbers(again[i]) == numbers(first[i]));
  }
  CHECK(memory_stats(kGpu).total.current == before);
}

}  // namespace
}  // namespace gradual
