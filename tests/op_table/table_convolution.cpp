// Convolutions and their gradients: naive loops over doubles.
#include "samples.h"

namespace gradual::test {
namespace {

struct ConvShape {
  const char* label;
  Shape x, weight;
  ConvAttrs attrs;
  bool bias = true;
  bool large = false;
};

const std::vector<ConvShape>& conv_shapes() {
  static const std::vector<ConvShape> all{
      {"3x3 pad 1", {2, 3, 5, 6}, {4, 3, 3, 3}, {{.padding = {1, 1}}}},
      {"no padding", {2, 2, 5, 4}, {3, 2, 3, 2}, {}},
      {"stride", {2, 2, 7, 6}, {3, 2, 3, 3}, {{.stride = {2, 3}, .padding = {1, 0}}}},
      {"dilation", {1, 2, 7, 8}, {2, 2, 3, 3}, {{.padding = {2, 1}, .dilation = {2, 3}}}},
      {"groups", {2, 4, 4, 5}, {6, 2, 3, 3}, {{.padding = {1, 1}, .groups = 2}}},
      {"depthwise", {2, 3, 4, 4}, {3, 1, 3, 3}, {{.stride = {2, 2}, .padding = {1, 1}, .groups = 3}}},
      {"1x1", {2, 3, 3, 4}, {5, 3, 1, 1}, {}, false},
      {"1x1 stride", {2, 3, 5, 5}, {2, 3, 1, 1}, {{.stride = {2, 2}}}, false},
      {"whole image", {2, 3, 3, 4}, {5, 3, 3, 4}, {}},
      {"empty batch", {0, 2, 4, 4}, {3, 2, 3, 3}, {}},
      {"large", {5, 8, 19, 23}, {16, 8, 3, 3}, {{.padding = {1, 1}}}, true, true},
      {"large groups", {4, 8, 18, 17}, {8, 2, 3, 3}, {{.stride = {2, 1}, .padding = {1, 1}, .groups = 4}}, true, true},
  };
  return all;
}

Shape conv_output(const Shape& x, const Shape& w, const ConvAttrs& a) {
  Shape y{x[0], w[0], 0, 0};
  for (int i = 0; i < 2; ++i)
    y[2 + i] = (x[2 + i] + 2 * a.padding[i] - a.dilation[i] * (w[2 + i] - 1) - 1) / a.stride[i] + 1;
  return y;
}

// Calls f(position in x, in weight, in y) for every product of the convolution's definition.
template <class F> void for_each_product(const Shape& x, const Shape& w, const ConvAttrs& a, F f) {
  const Shape y = conv_output(x, w, a);
  const std::int64_t per_group = w[0] / a.groups;
  for (std::int64_t i = 0; i < numel(y); ++i) {
    const std::int64_t column = i % y[3];
    const std::int64_t row = i / y[3] % y[2];
    const std::int64_t o = i / y[3] / y[2] % y[1];
    const std::int64_t n = i / y[3] / y[2] / y[1];
    for (std::int64_t c = 0; c < w[1]; ++c)
      for (std::int64_t u = 0; u < w[2]; ++u)
        for (std::int64_t v = 0; v < w[3]; ++v) {
          const std::int64_t h = row * a.stride[0] - a.padding[0] + u * a.dilation[0];
          const std::int64_t k = column * a.stride[1] - a.padding[1] + v * a.dilation[1];
          if (h < 0 || h >= x[2] || k < 0 || k >= x[3]) continue;
          const std::int64_t channel = o / per_group * w[1] + c;
          f(((n * x[1] + channel) * x[2] + h) * x[3] + k, ((o * w[1] + c) * w[2] + u) * w[3] + v, i);
        }
  }
}

// The sums of products of one factor with another, added up at the third position.
Array sum_of_products(const Shape& sizes, DType dtype, double length) {
  Array out = make_array(sizes, dtype);
  out.magnitude.resize(out.v.size());
  out.length = length;
  return out;
}
void add_product(Array& out, std::int64_t at, double a, double b) {
  out[at] += a * b;
  out.mag(at) += std::fabs(a * b);
}

std::vector<Sample> conv_samples(Draw& d) {
  std::vector<Sample> all;
  for (const ConvShape& s : conv_shapes()) {
    const ConvAttrs a = s.attrs;
    Tensors in{d.uniform(s.x, -1, 1), d.uniform(s.weight, -1, 1)};
    if (s.bias) in.push_back(d.uniform({s.weight[0]}, -1, 1));
    all.push_back({s.label, in,
                   [a](const Tensors& t) -> Tensors { return {conv2d(t[0], t[1], t.size() > 2 ? t[2] : Tensor(), a)}; },
                   [a](const Arrays& t) -> Arrays {
                     const Shape sizes = conv_output(t[0].sizes, t[1].sizes, a);
                     Array y = sum_of_products(sizes, contracted(t[0].dtype),
                                               static_cast<double>(t[1].numel() / t[1].sizes[0] + 1));
                     if (t.size() > 2)
                       for (std::int64_t i = 0; i < y.numel(); ++i)
                         add_product(y, i, t[2][i / (sizes[2] * sizes[3]) % sizes[1]], 1);
                     for_each_product(t[0].sizes, t[1].sizes, a, [&](std::int64_t x, std::int64_t w, std::int64_t o) {
                       add_product(y, o, t[0][x], t[1][w]);
                     });
                     return {y};
                   },
                   s.large});
  }
  return all;
}

std::vector<Sample> conv_backward_samples(Draw& d, bool to_input) {
  std::vector<Sample> all;
  for (const ConvShape& s : conv_shapes()) {
    ConvAttrs a = s.attrs;
    for (int i = 0; i < 2; ++i) a.size[i] = to_input ? s.x[2 + i] : s.weight[2 + i];
    const Shape y = conv_output(s.x, s.weight, a);
    const Shape xs = s.x;
    const Shape ws = s.weight;
    all.push_back({s.label,
                   {d.uniform(y, -1, 1), d.uniform(to_input ? ws : xs, -1, 1)},
                   two([a, to_input](const Tensor& dy, const Tensor& other) {
                     return to_input ? conv2d_backward_input(dy, other, a) : conv2d_backward_weight(dy, other, a);
                   }),
                   [a, xs, ws, y, to_input](const Arrays& t) -> Arrays {
                     const double length = static_cast<double>(to_input ? ws[0] * ws[2] * ws[3] : y[0] * y[2] * y[3]);
                     Array g = sum_of_products(to_input ? xs : ws, contracted(t[0].dtype), length);
                     for_each_product(xs, ws, a, [&](std::int64_t x, std::int64_t w, std::int64_t o) {
                       add_product(g, to_input ? x : w, t[0][o], t[1][to_input ? w : x]);
                     });
                     return {g};
                   },
                   s.large});
  }
  return all;
}

}  // namespace

std::vector<Row> convolution_rows() {
  const auto f = [](const Shape& s) { return ones(s); };
  std::vector<Row> rows;
  rows.push_back({.op = OpId::conv2d,
                  .policy = "lower",
                  .dtypes = kContracted,
                  .samples = conv_samples,
                  .no_scalar = "[N, C, H, W]"});
  rows.back().refuses("3-d", "input 0 must be 4-d", [=] { conv2d(f({3, 5, 5}), f({2, 3, 3, 3})); });
  rows.back().refuses("channels", "4 input channels", [=] { conv2d(f({1, 4, 5, 5}), f({2, 3, 3, 3})); });
  rows.back().refuses("groups", "groups", [=] { conv2d(f({1, 4, 5, 5}), f({3, 2, 3, 3}), {}, {.groups = 2}); });
  rows.back().refuses("no groups", "groups must be at least 1", [=] {
    conv2d(f({1, 4, 5, 5}), f({3, 4, 3, 3}), {}, {.groups = 0});
  });
  rows.back().refuses("stride", "stride and dilation must be at least 1", [=] {
    conv2d(f({1, 3, 5, 5}), f({2, 3, 3, 3}), {}, {.stride = 0});
  });
  rows.back().refuses("kernel", "larger than the padded input", [=] { conv2d(f({1, 3, 2, 5}), f({2, 3, 3, 3})); });
  rows.back().refuses("bias", "bias must be [2]", [=] { conv2d(f({1, 3, 5, 5}), f({2, 3, 3, 3}), f({3})); });
  for (const bool to_input : {true, false}) {
    const auto call = to_input ? [](const Tensor& a, const Tensor& b) { return conv2d_backward_input(a, b, {}); }
                               : [](const Tensor& a, const Tensor& b) { return conv2d_backward_weight(a, b, {}); };
    rows.push_back({.op = to_input ? OpId::conv2d_backward_input : OpId::conv2d_backward_weight,
                    .policy = to_input ? "lower" : "pass",
                    .dtypes = kContracted,
                    .samples = [to_input](Draw& d) { return conv_backward_samples(d, to_input); },
                    .no_scalar = "[N, C, H, W]"});
    rows.back().refuses("3-d", "input 0 must be 4-d", [=] { call(f({3, 5, 5}), f({2, 3, 3, 3})); });
    rows.back().refuses("undefined", "conv2d_backward", [=] { call(f({1, 3, 5, 5}), Tensor()); });
  }
  return rows;
}

}  // namespace gradual::test
