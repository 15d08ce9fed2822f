#include <array>
#include <string>
#include <vector>

#include "accumulation.h"

using namespace accumulation;

// conv2d and its gradients from their definitions: each output's pairs of factors, zeros included.
namespace {

struct Conv {
  ConvAttrs a;
  Shape x, w, y;
  std::int64_t group_of_output(std::int64_t o) const { return o / (w[0] / a.groups); }
};
double pixel(const Tensor& t, std::int64_t n, std::int64_t c, std::int64_t y, std::int64_t x) {
  const Shape& s = t.sizes();
  return y < 0 || x < 0 || y >= s[2] || x >= s[3] ? 0 : at(t, ((n * s[1] + c) * s[2] + y) * s[3] + x);
}
// Indices of element i of a tensor of four dims.
std::array<std::int64_t, 4> indices(const Shape& s, std::int64_t i) {
  return {i / (s[1] * s[2] * s[3]), i / (s[2] * s[3]) % s[1], i / s[3] % s[2], i % s[3]};
}

double forward_of(const Accumulator& how, const Conv& c, const Tensor& x, const Tensor& w, std::int64_t i) {
  std::vector<double> a, b;
  const auto [n, o, oy, ox] = indices(c.y, i);
  for (std::int64_t k = 0; k < c.w[1] * c.w[2] * c.w[3]; ++k) {
    const std::int64_t channel = k % c.w[1];
    const std::int64_t ky = k / c.w[1] / c.w[3];
    const std::int64_t kx = k / c.w[1] % c.w[3];
    a.push_back(pixel(x, n, c.group_of_output(o) * c.w[1] + channel,
                      oy * c.a.stride[0] + ky * c.a.dilation[0] - c.a.padding[0],
                      ox * c.a.stride[1] + kx * c.a.dilation[1] - c.a.padding[1]));
    b.push_back(pixel(w, o, channel, ky, kx));
  }
  return dot(how, a, b);
}

double input_gradient_of(const Accumulator& how, const Conv& c, const Tensor& dy, const Tensor& w, std::int64_t i) {
  std::vector<double> a, b;
  const auto [n, channel, y, x] = indices(c.x, i);
  const std::int64_t group = channel / c.w[1];
  const std::int64_t outputs = c.w[0] / c.a.groups;
  for (std::int64_t ky = c.w[2] - 1; ky >= 0; --ky) {
    for (std::int64_t kx = c.w[3] - 1; kx >= 0; --kx) {
      for (std::int64_t o = group * outputs; o < (group + 1) * outputs; ++o) {
        const std::int64_t sy = y + c.a.padding[0] - ky * c.a.dilation[0];
        const std::int64_t sx = x + c.a.padding[1] - kx * c.a.dilation[1];
        const bool hit = sy >= 0 && sx >= 0 && sy % c.a.stride[0] == 0 && sx % c.a.stride[1] == 0;
        a.push_back(hit ? pixel(dy, n, o, sy / c.a.stride[0], sx / c.a.stride[1]) : 0);
        b.push_back(pixel(w, o, channel % c.w[1], ky, kx));
      }
    }
  }
  return dot(how, a, b);
}

double weight_gradient_of(const Accumulator& how, const Conv& c, const Tensor& dy, const Tensor& x, std::int64_t i) {
  std::vector<double> a, b;
  const auto [o, channel, ky, kx] = indices(c.w, i);
  for (std::int64_t k = 0; k < c.y[0] * c.y[2] * c.y[3]; ++k) {
    const std::int64_t n = k % c.y[0];
    const std::int64_t oy = k / c.y[0] / c.y[3];
    const std::int64_t ox = k / c.y[0] % c.y[3];
    a.push_back(pixel(dy, n, o, oy, ox));
    b.push_back(pixel(x, n, c.group_of_output(o) * c.w[1] + channel,
                      oy * c.a.stride[0] + ky * c.a.dilation[0] - c.a.padding[0],
                      ox * c.a.stride[1] + kx * c.a.dilation[1] - c.a.padding[1]));
  }
  return dot(how, a, b);
}

}  // namespace

TEST_CASE("convolutions are the products of their windows, with channels and samples innermost") {
  const Conv cases[] = {
      {{{.padding = 1}}, {3, 4, 6, 7}, {5, 4, 3, 3}, {}},
      {{{.stride = {2, 3}, .padding = {2, 0}, .dilation = {2, 1}, .groups = 2}}, {2, 4, 9, 8}, {6, 2, 3, 2}, {}},
      {{{.stride = 3, .padding = 2, .groups = 4}}, {2, 4, 7, 7}, {4, 1, 2, 2}, {}},
      {{{.padding = 1}}, {2, 3, 5, 5}, {4, 3, 1, 1}, {}}};  // padded by more than the kernel reaches
  for (Conv c : cases) {
    const Tensor x = numbers(c.x, 11, 2, 11);
    const Tensor w = numbers(c.w, 11, 2, 12);
    const Tensor bias = numbers({c.w[0]}, 11, 2, 13);
    c.y = conv2d(x, w, {}, c.a).sizes();
    const Tensor dy = numbers(c.y, 11, 2, 14);
    ConvAttrs to_x = c.a;
    ConvAttrs to_w = c.a;
    to_x.size = {c.x[2], c.x[3]};
    to_w.size = {c.w[2], c.w[3]};
    for (const std::string name : {"f32", "fp16-acc", "hopper-fp8-14bit/promote=8", "bf16-acc/chunk=5"}) {
      const Accumulator how = accumulator(name);
      const AccumulatorScope scope(how);
      const auto biased = [&](std::int64_t i) {
        const double total = forward_of(how, c, x, w, i);
        return rounded(fixed(total) + fixed(at(bias, indices(c.y, i)[1])), Format::ieee(8, 23),
                       RoundingMode::nearest_even);
      };
      CHECK(differing(conv2d(x, w, {}, c.a), [&](auto i) { return forward_of(how, c, x, w, i); }) == 0);
      CHECK(differing(conv2d(x, w, bias, c.a), biased) == 0);
      CHECK(differing(conv2d_backward_input(dy, w, to_x),
                      [&](auto i) { return input_gradient_of(how, c, dy, w, i); }) == 0);
      CHECK(differing(conv2d_backward_weight(dy, x, to_w),
                      [&](auto i) { return weight_gradient_of(how, c, dy, x, i); }) == 0);
    }
  }
}

TEST_CASE("convolutions of every dtype and layout under an accumulator") {
  const Tensor x = numbers({2, 4, 6, 6}, 3, 1, 15);
  const Tensor w = numbers({4, 4, 3, 3}, 3, 1, 16);
  const AccumulatorScope scope(accumulator("e8m9/chunk=16"));
  const Tensor y = conv2d(x, w, {}, {.padding = 1});
  for (const DType d : {DType::f16, DType::bf16, DType::f8e5m2}) {
    const Tensor narrow_x = x.to(d);
    const Tensor narrow_w = w.to(d);
    const Tensor wide = conv2d(narrow_x.to(DType::f32), narrow_w.to(DType::f32), {}, {.padding = 1});
    const Tensor got = conv2d(narrow_x, narrow_w, {}, {.padding = 1});
    CHECK(same_bits(got, wide.to(got.dtype())));
  }
  const Tensor last = channels_last(x);
  const Tensor z = conv2d(last, w, {}, {.padding = 1});
  CHECK(same_bits(z, y));
}
