// The fast gradient of a convolution's weights: exact where numbers are small integers, whatever the shape, dtype and
// layout.
#include <doctest/doctest.h>
#include <gradual/core/ops/compute_mode.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/support/threads.h>

#include <cstring>
#include <string>
#include <vector>

#include "../../../../core/cpu/fast/f32_conv.h"
#include "support/cpu_isas.h"

using namespace gradual;

namespace {

struct Case {
  std::int64_t images, inputs, height, width, outputs, kernel[2];
  std::int64_t padding[2] = {0, 0};
  std::int64_t dilation[2] = {1, 1};
  std::int64_t groups = 1;
  ConvAttrs attrs() const {
    ConvAttrs a;
    a.padding = {padding[0], padding[1]};
    a.dilation = {dilation[0], dilation[1]};
    a.groups = groups;
    a.size = {kernel[0], kernel[1]};
    return a;
  }
  std::int64_t rows() const { return height + 2 * padding[0] - dilation[0] * (kernel[0] - 1); }
  std::int64_t cols() const { return width + 2 * padding[1] - dilation[1] * (kernel[1] - 1); }
};

// Several blocks of images, the last of fewer; bands of one image, the last of fewer rows; more outputs than a strip
// has, and than two; fewer than a vector's lanes left; more pixels than a sum takes at a time; padding beyond the taps;
// one tap; more blocks than parts, no multiple of them; one row; groups of several strips; more inputs than a copy has;
// nothing but padding.
const std::vector<Case> kCases = {
    {9, 3, 7, 6, 8, {3, 3}, {1, 1}},
    {70, 2, 4, 4, 17, {3, 3}, {1, 1}},
    {2, 5, 40, 33, 12, {3, 2}, {0, 1}},
    {1, 1, 70, 70, 33, {5, 5}, {2, 2}},
    {3, 4, 14, 14, 24, {3, 3}, {2, 3}, {2, 3}},
    {4, 6, 9, 8, 27, {3, 3}, {1, 1}, {1, 1}, 3},
    {5, 7, 11, 10, 9, {1, 1}},
    {2, 3, 5, 5, 16, {2, 2}, {4, 4}},
    {40, 2, 16, 15, 9, {3, 3}, {1, 1}},
    {3, 4, 1, 300, 34, {1, 5}, {0, 2}, {1, 1}, 2},
    {1, 200, 20, 60, 8, {1, 1}},
    {2, 3, 4, 0, 8, {3, 3}, {1, 2}},
};

Tensor integers(const Shape& sizes, DType dtype, std::uint64_t seed) {
  Generator g(seed);
  return randint(-4, 5, sizes, {.dtype = DType::i64}, g).to(dtype);
}

std::vector<double> expected(const Case& c, const Tensor& dy, const Tensor& x) {
  const std::vector<double> g = dy.to_vector<double>();
  const std::vector<double> v = x.to_vector<double>();
  const std::int64_t each = c.inputs / c.groups;
  const std::int64_t taps = c.kernel[0] * c.kernel[1];
  std::vector<double> dw(static_cast<std::size_t>(c.outputs * each * taps));
  for (std::int64_t n = 0; n < c.images; ++n)
    for (std::int64_t o = 0; o < c.outputs; ++o)
      for (std::int64_t p = 0; p < c.rows() * c.cols(); ++p)
        for (std::int64_t t = 0; t < each * taps; ++t) {
          const std::int64_t i = p / c.cols() + t % taps / c.kernel[1] * c.dilation[0] - c.padding[0];
          const std::int64_t j = p % c.cols() + t % c.kernel[1] * c.dilation[1] - c.padding[1];
          if (i < 0 || i >= c.height || j < 0 || j >= c.width) continue;
          const std::int64_t channel = o / (c.outputs / c.groups) * each + t / taps;
          dw[static_cast<std::size_t>(o * each * taps + t)] +=
              g[static_cast<std::size_t>((n * c.outputs + o) * c.rows() * c.cols() + p)] *
              v[static_cast<std::size_t>(((n * c.inputs + channel) * c.height + i) * c.width + j)];
        }
  return dw;
}

// By our kernel, or an undefined tensor where it is not the way.
Tensor gradient(const Case& c, const Tensor& dy, const Tensor& x, DType dtype) {
  const Tensor* const operands[] = {&dy, &x};
  const Attrs attrs = c.attrs();
  const OpCall call{OpId::conv2d_backward_weight, TensorRefs(operands, 2), &attrs, Loc::current()};
  Outputs out{{full({c.outputs, c.inputs / c.groups, c.kernel[0], c.kernel[1]}, -7, {.dtype = dtype})}};
  return cpu::f32_weight_gradient(call, out) ? out[0] : Tensor();
}

bool same_bits(const Tensor& a, const Tensor& b) { return std::memcmp(a.raw(), b.raw(), a.nbytes()) == 0; }

}  // namespace

TEST_CASE("our gradient of convolution weights is exact in integers, in every shape, dtype and layout") {
  int taken = 0;
  reference::for_each_isa([&](CpuIsa isa) {
    for (const Case& c : kCases) {
      std::vector<double> want, want_of_row;  // the same in each dtype
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        CAPTURE(to_string(isa));
        CAPTURE(c.images);
        CAPTURE(c.inputs);
        CAPTURE(c.height);
        CAPTURE(c.outputs);
        const Tensor x = integers({c.images, c.inputs, c.height, c.width}, dtype, 1);
        const Tensor dy = integers({c.images, c.outputs, c.rows(), c.cols()}, dtype, 2);
        const Tensor dw = gradient(c, dy, x, DType::f32);
        if (!dw.defined()) continue;
        ++taken;
        const Tensor row = integers({1, c.outputs, 1, 1}, dtype, 3).expand(dy.sizes());  // the gradient of a sum
        if (want.empty()) {
          want = expected(c, dy, x);
          want_of_row = expected(c, row.contiguous(), x);
        }
        CHECK(dw.to_vector<double>() == want);
        CHECK(same_bits(gradient(c, channels_last(dy), channels_last(x), DType::f32), dw));
        CHECK(gradient(c, row, x, DType::f32).to_vector<double>() == want_of_row);
        CHECK(same_bits(gradient(c, dy, x, dtype), dw.to(dtype)));
        const MatmulPrecisionScope tf32(MatmulPrecision::tf32);
        CHECK(same_bits(gradient(c, dy, x, DType::f32), dw));  // integers of three bits do not round
      }
    }
  });
  if (taken == 0) MESSAGE("skipped: no instruction set here has the kernel");
}

TEST_CASE("our gradient of convolution weights has fewer parts where they are large") {
  const Case c{8, 20000, 12, 12, 16, {1, 1}};
  const Tensor one = ones({1, 1, 1, 1});
  reference::for_each_isa([&](CpuIsa) {
    const Tensor dw = gradient(c, one.expand({8, 16, 12, 12}), one.expand({8, 20000, 12, 12}), DType::f32);
    if (!dw.defined()) return;
    CHECK(max(dw).item() == 8 * 12 * 12);
    CHECK(min(dw).item() == 8 * 12 * 12);
  });
}

TEST_CASE("our gradient of convolution weights rounds operands to TF32 where that is on, on every thread") {
  const Case c = kCases[3];
  Generator g(4);
  const Tensor x = randn({c.images, c.inputs, c.height, c.width}, {}, g);
  const Tensor dy = randn({c.images, c.outputs, c.rows(), c.cols()}, {}, g);
  reference::for_each_isa([&](CpuIsa) {
    if (!gradient(c, dy, x, DType::f32).defined()) return;
    Tensor rounded_x = clone(x);
    Tensor rounded_dy = clone(dy);
    for (Tensor* t : {&rounded_x, &rounded_dy})
      for (std::int64_t i = 0; i < t->numel(); ++i) t->data<float>()[i] = round_tf32(t->data<float>()[i]);
    const ThreadsScope threads(7);
    const Tensor want = gradient(c, rounded_dy, rounded_x, DType::f32);
    CHECK_FALSE(same_bits(want, gradient(c, dy, x, DType::f32)));
    const MatmulPrecisionScope tf32(MatmulPrecision::tf32);
    CHECK(same_bits(gradient(c, dy, x, DType::f32), want));
  });
}

TEST_CASE("our gradient of convolution weights has the same bits on any number of threads") {
  reference::for_each_isa([&](CpuIsa) {
    for (const Case& c : kCases) {
      Generator g(5);
      const Tensor x = randn({c.images, c.inputs, c.height, c.width}, {}, g);
      const Tensor dy = randn({c.images, c.outputs, c.rows(), c.cols()}, {}, g);
      const auto on = [&](int threads) {
        const ThreadsScope scope(threads);
        return gradient(c, dy, x, DType::f32);
      };
      const Tensor one = on(1);
      for (const int threads : {2, 3, 7})
        if (one.defined()) CHECK(same_bits(on(threads), one));
    }
  });
}

TEST_CASE("our gradient of convolution weights leaves strides and few outputs to others") {
  Case c = kCases[0];
  const Tensor x = ones({c.images, c.inputs, c.height, c.width});
  c.outputs = 7;
  CHECK_FALSE(gradient(c, ones({c.images, 7, c.rows(), c.cols()}), x, DType::f32).defined());
  const Tensor dy = ones({9, 8, 4, 3});
  const Tensor* const operands[] = {&dy, &x};
  ConvAttrs a = kCases[0].attrs();
  a.stride = 2;
  const Attrs attrs = a;
  Outputs out{{zeros({8, 3, 3, 3})}};
  CHECK_FALSE(
      cpu::f32_weight_gradient({OpId::conv2d_backward_weight, TensorRefs(operands, 2), &attrs, Loc::current()}, out));
}
