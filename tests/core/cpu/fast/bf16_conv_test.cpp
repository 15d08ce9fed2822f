// Our convolutions of few channels in bf16: as f64's, rounded once, where numbers are small integers and every sum is exact.
#include <doctest/doctest.h>
#include <gradual/core/formats/accumulator.h>
#include <gradual/core/formats/cast_counts.h>
#include <gradual/core/ops/dispatch.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/support/threads.h>

#include <cstring>
#include <vector>

#include "../../../../core/cpu/fast/bf16_conv.h"
#include "support/products.h"

using namespace gradual;

namespace {

struct Case {
  Shape x, w;
  std::int64_t stride[2] = {1, 1}, padding[2] = {0, 0}, dilation[2] = {1, 1};
  ConvAttrs attrs() const {
    ConvAttrs a;
    a.stride = {stride[0], stride[1]}, a.padding = {padding[0], padding[1]}, a.dilation = {dilation[0], dilation[1]};
    a.size = {w[2], w[3]};
    return a;
  }
};

// A first layer; more images than parts, no multiple of them; an image in several chunks, the last of fewer rows; strides; one
// tap; windows of 31 numbers and of 32; dilation and padding beyond the taps; fewer windows than a tile has.
const std::vector<Case> kCases = {
    {{3, 1, 28, 28}, {32, 1, 3, 3}, {1, 1}, {1, 1}},
    {{37, 3, 9, 7}, {17, 3, 3, 3}, {1, 1}, {1, 1}},
    {{2, 1, 83, 70}, {5, 1, 5, 5}, {1, 1}, {2, 2}},
    {{4, 3, 17, 20}, {16, 3, 3, 3}, {2, 3}, {1, 0}},
    {{5, 7, 11, 10}, {9, 7, 1, 1}},
    {{2, 1, 40, 6}, {3, 1, 31, 1}},
    {{2, 2, 20, 9}, {3, 2, 16, 1}, {1, 2}, {3, 0}},
    {{3, 2, 8, 9}, {33, 2, 2, 3}, {1, 1}, {3, 4}, {2, 3}},
    {{1, 1, 2, 2}, {1, 1, 2, 2}},
};

Tensor integers(const Shape& sizes, std::uint64_t seed) {
  Generator g(seed);
  return randint(-4, 5, sizes, {.dtype = DType::i64}, g).to(DType::bf16);
}
Tensor wide(const Tensor& t) { return t.defined() ? t.to(DType::f64) : t; }
bool same_bits(const Tensor& a, const Tensor& b) { return std::memcmp(a.raw(), b.raw(), a.nbytes()) == 0; }
bool fits(const Case& c, bool bias) { return numel(c.w) / c.w[0] + (bias ? 1 : 0) <= 32; }

// By our kernel, or an undefined tensor where it is not the way.
Tensor run(OpId op, const ConvAttrs& a, const Tensor& first, const Tensor& second, const Tensor& third,
           const Shape& sizes, DType dtype = DType::bf16) {
  const Tensor* const operands[] = {&first, &second, &third};
  const Attrs attrs = a;
  const OpCall call{op, TensorRefs(operands, op == OpId::conv2d ? 3 : 2), &attrs, Loc::current()};
  Outputs out{{full(sizes, -7, {.dtype = dtype})}};
  const Tensor before = clone(out[0]);
  if (cpu::bf16_shallow_convolution(call, out)) return out[0];
  CHECK(same_bits(out[0], before));
  return {};
}

}  // namespace

TEST_CASE("our shallow bf16 convolutions and their gradients are exact in integers, in every shape") {
  testing::for_each_bf16_kernel([] {
    for (const Case& c : kCases) {
      CAPTURE(to_string(c.x));
      CAPTURE(to_string(c.w));
      const Tensor x = integers(c.x, 1), w = integers(c.w, 2);
      for (const bool with_bias : {false, true}) {
        const Tensor bias = with_bias ? integers({c.w[0]}, 3) : Tensor();
        const Tensor want =
            conv2d(wide(x), wide(w), wide(bias),
                   {.stride = c.attrs().stride, .padding = c.attrs().padding, .dilation = c.attrs().dilation});
        const Tensor y = run(OpId::conv2d, c.attrs(), x, w, bias, want.sizes());
        REQUIRE(y.defined() == fits(c, with_bias));
        if (y.defined()) CHECK(y.to_vector<double>() == want.to(DType::bf16).to_vector<double>());
        if (with_bias) continue;
        const Tensor dy = integers(want.sizes(), 4);
        const Tensor dw = run(OpId::conv2d_backward_weight, c.attrs(), dy, x, {}, c.w);
        const Tensor want_dw = call_row(OpId::conv2d_backward_weight, c.attrs(), wide(dy), wide(x))[0];
        REQUIRE(dw.defined());
        CHECK(dw.to_vector<double>() == want_dw.to(DType::bf16).to_vector<double>());
      }
    }
  });
}

TEST_CASE("our shallow bf16 convolutions: the same bits on any number of threads and where rounding is counted") {
  testing::for_each_bf16_kernel([] {
    const Case c{{70, 3, 31, 33}, {16, 3, 3, 3}, {1, 1}, {1, 1}};
    Generator g(5);
    const auto draw = [&](const Shape& s) { return randn(s, {}, g).to(DType::bf16); };
    const Tensor x = draw(c.x), w = draw(c.w), bias = draw({16}), dy = draw({70, 16, 31, 33});
    const auto on = [&](int threads) {
      const ThreadsScope scope(threads);
      return std::vector<Tensor>{run(OpId::conv2d, c.attrs(), x, w, bias, dy.sizes()),
                                 run(OpId::conv2d_backward_weight, c.attrs(), dy, x, {}, c.w)};
    };
    const std::vector<Tensor> one = on(1), five = on(5);
    for (std::size_t i = 0; i < one.size(); ++i) CHECK(same_bits(one[i], five[i]));

    CastCounts counts;
    const CountScope scope(&counts);
    const std::vector<Tensor> counted = on(2);
    for (std::size_t i = 0; i < one.size(); ++i) CHECK(same_bits(one[i], counted[i]));
    CHECK(counts.elements == static_cast<std::uint64_t>(one[0].numel() + one[1].numel()));
  });
}

TEST_CASE("our shallow bf16 convolutions decline what they do not compute") {
  testing::for_each_bf16_kernel([] {
    const Case c = kCases[1];
    const Tensor x = integers(c.x, 1), w = integers(c.w, 2);
    const Shape y{37, 17, 9, 7};
    const auto taken = [&](const Tensor& images, const Tensor& weights, const Tensor& bias, ConvAttrs a,
                           DType dtype = DType::bf16) {
      return run(OpId::conv2d, a, images, weights, bias, y, dtype).defined();
    };
    CHECK(taken(x, w, {}, c.attrs()));
    CHECK_FALSE(taken(x.to(DType::f32), w.to(DType::f32), {}, c.attrs(), DType::f32));
    CHECK_FALSE(taken(x, w, {}, c.attrs(), DType::f32));
    CHECK_FALSE(taken(x, w, zeros({17}), c.attrs()));
    CHECK_FALSE(taken(clone(x.transpose(2, 3)).transpose(2, 3), w, {}, c.attrs()));
    CHECK_FALSE(taken(integers({37, 4, 9, 7}, 1), integers({17, 4, 3, 3}, 2), {}, c.attrs()));
    ConvAttrs grouped = c.attrs();
    grouped.groups = 3;
    CHECK_FALSE(taken(x, w, {}, grouped));
    {
      const AccumulatorScope scope(accumulator("fp16-acc"));
      CHECK_FALSE(taken(x, w, {}, c.attrs()));
    }
  });
}
