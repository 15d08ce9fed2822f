// Products of matrices, and linear with what it may end in: naive loops over doubles.
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
                     const std::int64_t n = t[0].sizes[0];
                     const std::int64_t o = t[0].sizes[1];
                     Array turned = make_array({o, n}, t[0].dtype);
                     Array sums = make_array({o}, t[0].dtype);
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

}  // namespace

std::vector<Row> contraction_rows() {
  const auto f = [](const Shape& s) { return ones(s); };
  const std::string no_scalar = "needs at least one dim";
  std::vector<Row> rows;
  rows.push_back({.op = OpId::matmul,
                  .policy = "lower",
                  .dtypes = kContracted,
                  .samples = matmul_samples,
                  .no_scalar = no_scalar});
  rows.back().refuses("inner",
                      "matmul: [32, 784] f32 x [512, 784] f32: inner dimensions 784 and 512 differ; did you mean", [=] {
                        matmul(f({32, 784}), f({512, 784}));
                      });
  rows.back().refuses("0-d", "a 0-d tensor has no matrix product", [=] { matmul(f({}), f({3})); });
  rows.back().refuses("batch", "do not broadcast", [=] { matmul(f({2, 3, 4}), f({3, 4, 5})); });
  rows.back().refuses("integers", "takes floating tensors", [=] {
    matmul(ones({2, 2}, {.dtype = DType::i64}), f({2, 2}).to(DType::i64));
  });
  rows.back().refuses("undefined", "two tensors", [=] { matmul(f({2, 2}), Tensor()); });
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
                    .no_scalar = no_scalar});
    rows.back().refuses("inner", "last size must be the weight's second, 6", [=] { call(f({5, 7}), f({3, 6})); });
    rows.back().refuses("weight", "input 1 must be 2-d", [=] { call(f({5, 7}), f({7})); });
    rows.back().refuses("bias", "bias must be [3], given [4]", [=] { call(f({5, 7}), f({3, 7}), f({4})); });
  }
  rows.push_back({.op = OpId::linear_backward_weight,
                  .policy = "pass",
                  .dtypes = kFloats,
                  .samples = linear_backward_weight_samples,
                  .no_scalar = "[N, out] and [N, in]"});
  rows.back().refuses("rows", "5 rows of gradients for 4 inputs", [=] {
    call_row(OpId::linear_backward_weight, {}, f({5, 7}), f({4, 3}));
  });
  rows.back().refuses("3-d", "input 0 must be 2-d", [=] {
    call_row(OpId::linear_backward_weight, {}, f({2, 5, 7}), f({5, 3}));
  });
  return rows;
}

}  // namespace gradual::test
