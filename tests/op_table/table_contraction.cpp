// Contractions: naive loops over doubles.
#include "samples.h"

namespace gradual::test {
namespace {

using Index = std::vector<std::int64_t>;

Array matmul_reference(const Array& a0, const Array& b0) {
  Array a = a0;
  Array b = b0;
  if (a0.sizes.size() == 1) a.sizes = {1, a0.sizes[0]};
  if (b0.sizes.size() == 1) b.sizes = {b0.sizes[0], 1};
  const std::int64_t k = a.sizes.back();
  Shape ab = a.sizes;
  Shape bb = b.sizes;
  for (Shape* s : {&ab, &bb}) {
    s->erase(s->size() - 1);
    s->erase(s->size() - 1);
  }
  Shape sizes = broadcast_shapes(ab, bb, "reference");
  sizes.push_back(a.sizes[a.sizes.size() - 2]);
  sizes.push_back(b.sizes.back());
  Array y = tabulate_sums(sizes, contracted(a.dtype), static_cast<double>(k), [&](const Index& i) -> ValueAndSize {
    Index ia = i;
    Index ib = i;
    Sum s;
    for (std::int64_t l = 0; l < k; ++l) {
      ia.back() = l;
      ib[ib.size() - 2] = l;
      s.add(at_broadcast(a, ia) * at_broadcast(b, ib));
    }
    return s;
  });
  if (b0.sizes.size() == 1) y.sizes.erase(y.sizes.size() - 1);
  if (a0.sizes.size() == 1) y.sizes.erase(y.sizes.size() - (b0.sizes.size() == 1 ? 1 : 2));
  return y;
}

// The same for large matrices, where unflattening every index would take too long.
Array matrix_reference(const Array& a, const Array& b, bool b_transposed) {
  const std::int64_t m = a.sizes[0];
  const std::int64_t k = a.sizes[1];
  const std::int64_t n = b.sizes[b_transposed ? 0 : 1];
  Array y = make_array({m, n}, contracted(a.dtype));
  y.magnitude.resize(y.v.size());
  y.length = static_cast<double>(k);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      Sum s;
      for (std::int64_t l = 0; l < k; ++l) s.add(a[i * k + l] * (b_transposed ? b[j * k + l] : b[l * n + j]));
      y[i * n + j] = s.value;
      y.mag(i * n + j) = s.size;
    }
  return y;
}

std::vector<Sample> matmul_samples(Draw& d) {
  std::vector<Sample> all;
  const auto add = [&](const char* label, const Shape& a, const Shape& b) {
    all.push_back({label,
                   {d.uniform(a, -1, 1), d.uniform(b, -1, 1)},
                   two([](const Tensor& x, const Tensor& y) { return matmul(x, y); }),
                   [](const Arrays& in) -> Arrays { return {matmul_reference(in[0], in[1])}; }});
  };
  add("matrices", {5, 7}, {7, 3});
  add("odd sizes", {17, 33}, {33, 19});
  add("row", {1, 7}, {7, 5});
  add("column", {5, 7}, {7, 1});
  add("dot", {9}, {9});
  add("vector left", {4}, {4, 3});
  add("vector right", {3, 4}, {4});
  add("batch", {3, 2, 4}, {3, 4, 5});
  add("batch broadcast", {2, 1, 3, 4}, {3, 4, 2});
  add("batch with matrix", {2, 3, 4}, {4, 5});
  add("vector with batch", {4}, {2, 4, 3});
  add("k 1", {3, 1}, {1, 4});
  add("empty", {0, 3}, {3, 2});
  add("k 0", {2, 0}, {0, 3});
  add("batch 0", {0, 2, 3}, {0, 3, 2});
  all.push_back({"large",
                 {d.uniform({261, 130}, -1, 1), d.uniform({130, 271}, -1, 1)},
                 two([](const Tensor& x, const Tensor& y) { return matmul(x, y); }),
                 [](const Arrays& in) -> Arrays { return {matrix_reference(in[0], in[1], false)}; },
                 true});
  all.push_back({"large k",
                 {d.uniform({3, 20001}, -1, 1), d.uniform({20001, 5}, -1, 1)},
                 two([](const Tensor& x, const Tensor& y) { return matmul(x, y); }),
                 [](const Arrays& in) -> Arrays { return {matrix_reference(in[0], in[1], false)}; },
                 true});
  all.push_back({"large transposed",
                 {d.uniform({130, 261}, -1, 1), d.uniform({271, 130}, -1, 1)},
                 two([](const Tensor& x, const Tensor& y) { return matmul(x.t(), y.t()); }),
                 [](const Arrays& in) -> Arrays {
                   Array a = make_array({261, 130}, in[0].dtype);
                   for (std::int64_t i = 0; i < 261; ++i)
                     for (std::int64_t j = 0; j < 130; ++j) a[i * 130 + j] = in[0][j * 261 + i];
                   return {matrix_reference(a, in[1], true)};
                 },
                 true});
  return all;
}

Array linear_reference(const Arrays& in, bool relu) {
  const Array& x = in[0];
  const Array& w = in[1];
  Array flat = x;
  flat.sizes = {x.sizes.size() > 0 && x.sizes.back() > 0 ? x.numel() / x.sizes.back() : 0, x.sizes.back()};
  Array y = matrix_reference(flat, w, true);
  if (in.size() > 2 && in[2].defined) {
    for (std::int64_t i = 0; i < y.numel(); ++i) {
      const double b = in[2][i % w.sizes[0]];
      y[i] += b;
      y.mag(i) += std::fabs(b);
    }
    y.length += 1;
  }
  if (relu)
    for (double& v : y.v) v = std::max(v, 0.0);
  y.sizes = x.sizes;
  y.sizes[x.sizes.size() - 1] = w.sizes[0];
  return y;
}

// linear, or with what it may end in.
enum class Ending { none, relu, gelu, gelu_tanh };

Tensors call_linear(Ending ending, const Tensor& x, const Tensor& w, const Tensor& bias) {
  if (ending == Ending::none) return {linear(x, w, bias)};
  if (ending == Ending::relu) return {linear_relu(x, w, bias)};
  const Outputs both = call_row(OpId::linear_gelu, ending == Ending::gelu ? Gelu::exact : Gelu::tanh, x, w, bias);
  return {both[0], both[1]};
}

Arrays gelu_and_before(const Array& before, bool exact) {
  Array y = before;
  for (double& v : y.v)
    v *= exact ? 0.5 * std::erfc(-v / std::sqrt(2.0))
               : 0.5 + 0.5 * std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v));
  return {y, before};
}

std::vector<Sample> linear_samples(Draw& d, Ending ending) {
  std::vector<Sample> all;
  const auto add = [&](const char* label, const Shape& x, std::int64_t out, bool bias, bool large = false) {
    Tensors in{d.uniform(x, -1, 1), d.uniform({out, x.back()}, -1, 1)};
    if (bias) in.push_back(d.uniform({out}, -1, 1));
    all.push_back(
        {label, in,
         [ending](const Tensors& t) { return call_linear(ending, t[0], t[1], t.size() > 2 ? t[2] : Tensor()); },
         [ending](const Arrays& a) -> Arrays {
           const Array y = linear_reference(a, ending == Ending::relu);
           if (ending == Ending::none || ending == Ending::relu) return {y};
           return gelu_and_before(y, ending == Ending::gelu);
         },
         large});
  };
  add("2-d", {5, 7}, 3, true);
  add("no bias", {5, 7}, 3, false);
  add("1-d", {7}, 4, true);
  add("3-d", {2, 3, 4}, 5, true);
  add("one output", {6, 5}, 1, true);
  add("multiples of 8", {8, 16}, 24, true);
  add("empty", {0, 4}, 3, true);
  add("large", {270, 129}, 260, true, true);
  return all;
}

std::vector<Sample> linear_backward_weight_samples(Draw& d) {
  std::vector<Sample> all;
  const auto add = [&](const char* label, std::int64_t rows, std::int64_t out, std::int64_t in, bool large = false) {
    all.push_back({label,
                   {d.uniform({rows, out}, -1, 1), d.uniform({rows, in}, -1, 1)},
                   [](const Tensors& t) -> Tensors {
                     const Outputs both = call_row(OpId::linear_backward_weight, {}, t[0], t[1]);
                     return {both[0], both[1]};
                   },
                   [](const Arrays& t) -> Arrays {
                     const std::int64_t n = t[0].sizes[0], o = t[0].sizes[1];
                     Array turned = make_array({o, n}, t[0].dtype), sums = make_array({o}, t[0].dtype);
                     sums.magnitude.resize(sums.v.size());
                     sums.length = static_cast<double>(n);
                     for (std::int64_t i = 0; i < n * o; ++i) {
                       turned[i % o * n + i / o] = t[0][i];
                       sums[i % o] += t[0][i];
                       sums.mag(i % o) += std::fabs(t[0][i]);
                     }
                     return {matrix_reference(turned, t[1], false), sums};
                   },
                   large});
  };
  add("odd", 5, 7, 3);
  add("one row", 1, 4, 6);
  add("multiples of 8", 24, 8, 16);
  add("no rows", 0, 3, 2);
  add("no inputs", 3, 2, 0);
  add("large", 300, 140, 130, true);
  return all;
}

struct ConvShape {
  const char* label;
  Shape x, weight;
  ConvAttrs attrs;
  bool bias = true;
  bool large = false;
};

const std::vector<ConvShape>& conv_shapes() {
  static const std::vector<ConvShape> all{
      {"3x3 pad 1", {2, 3, 5, 6}, {4, 3, 3, 3}, {.padding = {1, 1}}},
      {"no padding", {2, 2, 5, 4}, {3, 2, 3, 2}, {}},
      {"stride", {2, 2, 7, 6}, {3, 2, 3, 3}, {.stride = {2, 3}, .padding = {1, 0}}},
      {"dilation", {1, 2, 7, 8}, {2, 2, 3, 3}, {.padding = {2, 1}, .dilation = {2, 3}}},
      {"groups", {2, 4, 4, 5}, {6, 2, 3, 3}, {.padding = {1, 1}, .groups = 2}},
      {"depthwise", {2, 3, 4, 4}, {3, 1, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}, .groups = 3}},
      {"1x1", {2, 3, 3, 4}, {5, 3, 1, 1}, {}, false},
      {"1x1 stride", {2, 3, 5, 5}, {2, 3, 1, 1}, {.stride = {2, 2}}, false},
      {"whole image", {2, 3, 3, 4}, {5, 3, 3, 4}, {}},
      {"empty batch", {0, 2, 4, 4}, {3, 2, 3, 3}, {}},
      {"large", {5, 8, 19, 23}, {16, 8, 3, 3}, {.padding = {1, 1}}, true, true},
      {"large groups", {4, 8, 18, 17}, {8, 2, 3, 3}, {.stride = {2, 1}, .padding = {1, 1}, .groups = 4}, true, true},
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

// softmax(q k^T scale + mask) v. Every intermediate of a half run is rounded to half but the softmax: the
// error of a score s (product, scaled q, sum) shows as a relative error of its weight.
Array attention_reference(const Arrays& in, bool causal, double scale) {
  const Array &q = in[0], &k = in[1], &v = in[2];
  const int last = q.sizes.size() - 1;
  const std::int64_t head = q.sizes[last];
  const std::int64_t keys = k.sizes[last - 1];
  if (scale == 0) scale = 1 / std::sqrt(static_cast<double>(head));
  Shape sizes = q.sizes;
  sizes[last] = v.sizes[last];
  return tabulate_sums(sizes, q.dtype, static_cast<double>(head + keys), [&](const Index& i) -> ValueAndSize {
    Index at = i;
    std::vector<double> score(static_cast<std::size_t>(keys), -INFINITY);
    double top = -INFINITY;
    double rough = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      const std::int64_t row = i[static_cast<std::size_t>(last - 1)];
      if (causal && j > row) continue;
      Sum s;
      for (std::int64_t e = 0; e < head; ++e) {
        Index iq = i;
        iq.back() = e;
        Index ik = iq;
        ik[static_cast<std::size_t>(last - 1)] = j;
        s.add(at_broadcast(q, iq) * at_broadcast(k, ik) * scale);
      }
      if (in.size() > 3) {
        Index im = i;
        im.back() = j;
        const double m = at_broadcast(in[3], im);
        if (in[3].dtype == DType::bool_ && m == 0) continue;
        if (in[3].dtype != DType::bool_) s.add(m);
      }
      score[static_cast<std::size_t>(j)] = s.value;
      top = std::max(top, s.value);
      rough = std::max(rough, s.size + std::fabs(s.value));
    }
    double total = 0;
    for (double s : score) total += std::exp(s - top);
    Sum y;
    for (std::int64_t j = 0; j < keys; ++j) {
      const double weight = std::exp(score[static_cast<std::size_t>(j)] - top) / total;
      at[static_cast<std::size_t>(last - 1)] = j;
      const double term = weight * at_broadcast(v, at);
      y.add(term, std::fabs(term) * (1 + 4 * rough));
    }
    return y;
  });
}

std::vector<Sample> attention_samples(Draw& d) {
  std::vector<Sample> all;
  const auto add = [&](const char* label, const Shape& q, const Shape& k, const Shape& v, const Tensor& mask,
                       AttentionAttrs attrs = {}, bool large = false) {
    Tensors in{d.uniform(q, -2, 2), d.uniform(k, -2, 2), d.uniform(v, -2, 2)};
    if (mask.defined()) in.push_back(mask);
    all.push_back({label, in,
                   [attrs](const Tensors& t) -> Tensors {
                     return {scaled_dot_product_attention(t[0], t[1], t[2], t.size() > 3 ? t[3] : Tensor(), attrs)};
                   },
                   [attrs](const Arrays& a) -> Arrays { return {attention_reference(a, attrs.causal, attrs.scale)}; },
                   large});
  };
  add("plain", {3, 4}, {5, 4}, {5, 3}, {});
  add("batch and heads", {2, 2, 4, 3}, {2, 2, 4, 3}, {2, 2, 4, 3}, {});
  add("causal", {2, 4, 3}, {2, 4, 3}, {2, 4, 3}, {}, {.causal = true});
  add("scale", {2, 3, 4}, {2, 3, 4}, {2, 3, 4}, {}, {.scale = 0.25});
  Draw f64 = d.with(DType::bool_);
  Array allowed = to_array(f64.mask({3, 5}));
  for (std::int64_t i = 0; i < 3; ++i) allowed[i * 5] = 1;  // a row that may attend to nothing has no softmax
  add("bool mask", {2, 3, 4}, {2, 5, 4}, {2, 5, 3}, f64.values(allowed.v, {3, 5}));
  add("added mask", {2, 3, 4}, {2, 5, 4}, {2, 5, 3}, d.uniform({2, 3, 5}, -2, 2));
  add("empty", {0, 3, 4}, {0, 3, 4}, {0, 3, 4}, {});
  add("large", {4, 70, 33}, {4, 70, 33}, {4, 70, 33}, {}, {.causal = true}, true);
  return all;
}

}  // namespace

std::vector<Row> contraction_rows() {
  const auto f = [](const Shape& s) { return ones(s); };
  const std::string no_scalar = "needs at least one dim";
  std::vector<Row> rows;
  rows.push_back({.op = OpId::matmul,
                  .policy = "lower",
                  .dtypes = kContracted,
                  .samples = matmul_samples,
                  .bad = {{"inner",
                           [=] {
                             matmul(f({32, 784}), f({512, 784}));
                           },
                           "matmul: [32, 784] f32 x [512, 784] f32: inner dimensions 784 and 512 differ; did you mean"},
                          {"0-d", [=] { matmul(f({}), f({3})); }, "a 0-d tensor has no matrix product"},
                          {"batch",
                           [=] {
                             matmul(f({2, 3, 4}), f({3, 4, 5}));
                           },
                           "do not broadcast"},
                          {"integers",
                           [=] {
                             matmul(ones({2, 2}, {.dtype = DType::i64}), f({2, 2}).to(DType::i64));
                           },
                           "takes floating tensors"},
                          {"undefined",
                           [=] {
                             matmul(f({2, 2}), Tensor());
                           },
                           "two tensors"}},
                  .no_scalar = no_scalar});
  for (const OpId op : {OpId::linear, OpId::linear_relu, OpId::linear_gelu}) {
    const bool gelu = op == OpId::linear_gelu;
    const Ending ending = gelu ? Ending::gelu : op == OpId::linear ? Ending::none : Ending::relu;
    const auto call = [=](const Tensor& x, const Tensor& w, const Tensor& bias = {}) {
      call_linear(ending, x, w, bias);
    };
    rows.push_back({.op = op,
                    .policy = "lower",
                    .dtypes = kContracted,
                    .samples =
                        [=](Draw& d) {
                          std::vector<Sample> all = linear_samples(d, ending);
                          if (gelu)
                            for (Sample& s : linear_samples(d, Ending::gelu_tanh)) all.push_back(std::move(s));
                          return all;
                        },
                    .roundings = gelu ? 2 : 0.5,  // what gelu is taken of is rounded
                    .ulps = gelu ? 8.0 : 0.0,
                    .bad = {{"inner",
                             [=] {
                               call(f({5, 7}), f({3, 6}));
                             },
                             "last size must be the weight's second, 6"},
                            {"weight",
                             [=] {
                               call(f({5, 7}), f({7}));
                             },
                             "input 1 must be 2-d"},
                            {"bias",
                             [=] {
                               call(f({5, 7}), f({3, 7}), f({4}));
                             },
                             "bias must be [3], given [4]"}},
                    .no_scalar = no_scalar});
  }
  rows.push_back({.op = OpId::linear_backward_weight,
                  .policy = "pass",
                  .dtypes = kFloats,
                  .samples = linear_backward_weight_samples,
                  .bad = {{"rows",
                           [=] {
                             call_row(OpId::linear_backward_weight, {}, f({5, 7}), f({4, 3}));
                           },
                           "5 rows of gradients for 4 inputs"},
                          {"3-d",
                           [=] {
                             call_row(OpId::linear_backward_weight, {}, f({2, 5, 7}), f({5, 3}));
                           },
                           "input 0 must be 2-d"}},
                  .no_scalar = "[N, out] and [N, in]"});
  rows.push_back({.op = OpId::conv2d,
                  .policy = "lower",
                  .dtypes = kContracted,
                  .samples = conv_samples,
                  .bad = {{"3-d",
                           [=] {
                             conv2d(f({3, 5, 5}), f({2, 3, 3, 3}));
                           },
                           "input 0 must be 4-d"},
                          {"channels",
                           [=] {
                             conv2d(f({1, 4, 5, 5}), f({2, 3, 3, 3}));
                           },
                           "4 input channels"},
                          {"groups",
                           [=] {
                             conv2d(f({1, 4, 5, 5}), f({3, 2, 3, 3}), {}, {.groups = 2});
                           },
                           "groups"},
                          {"no groups",
                           [=] {
                             conv2d(f({1, 4, 5, 5}), f({3, 4, 3, 3}), {}, {.groups = 0});
                           },
                           "groups must be at least 1"},
                          {"stride",
                           [=] {
                             conv2d(f({1, 3, 5, 5}), f({2, 3, 3, 3}), {}, {.stride = 0});
                           },
                           "stride and dilation must be at least 1"},
                          {"kernel",
                           [=] {
                             conv2d(f({1, 3, 2, 5}), f({2, 3, 3, 3}));
                           },
                           "larger than the padded input"},
                          {"bias",
                           [=] {
                             conv2d(f({1, 3, 5, 5}), f({2, 3, 3, 3}), f({3}));
                           },
                           "bias must be [2]"}},
                  .no_scalar = "[N, C, H, W]"});
  for (const bool to_input : {true, false}) {
    const auto call = to_input ? [](const Tensor& a, const Tensor& b) { return conv2d_backward_input(a, b, {}); }
                               : [](const Tensor& a, const Tensor& b) { return conv2d_backward_weight(a, b, {}); };
    rows.push_back({.op = to_input ? OpId::conv2d_backward_input : OpId::conv2d_backward_weight,
                    .policy = "pass",
                    .dtypes = kContracted,
                    .samples = [to_input](Draw& d) { return conv_backward_samples(d, to_input); },
                    .bad = {{"3-d",
                             [=] {
                               call(f({3, 5, 5}), f({2, 3, 3, 3}));
                             },
                             "input 0 must be 4-d"},
                            {"undefined",
                             [=] {
                               call(f({1, 3, 5, 5}), Tensor());
                             },
                             "conv2d_backward"}},
                    .no_scalar = "[N, C, H, W]"});
  }
  rows.push_back({.op = OpId::scaled_dot_product_attention,
                  .policy = "lower",
                  .dtypes = kFloats,
                  .samples = attention_samples,
                  .roundings = 2,
                  .ulps = 16,
                  .bad = {{"1-d",
                           [=] {
                             scaled_dot_product_attention(f({4}), f({3, 4}), f({3, 4}));
                           },
                           "q, k and v must be"},
                          {"head size",
                           [=] {
                             scaled_dot_product_attention(f({3, 4}), f({3, 5}), f({3, 4}));
                           },
                           "inner dimensions 4 and 5 differ"}},
                  .no_scalar = "[.., L, E]"});
  return rows;
}

}  // namespace gradual::test
