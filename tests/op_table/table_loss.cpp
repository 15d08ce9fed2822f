// Losses, dropout and embedding.
#include <gradual/core/support/philox.h>
#include "../support/gradients.h"
#include "samples.h"

namespace gradual::test {
namespace {

const char* text(Reduction r) { return r == Reduction::none ? "none" : r == Reduction::mean ? "mean" : "sum"; }

// Terms to a loss.
Array reduced(Array terms, Reduction r) {
  if (r == Reduction::none) return terms;
  Array y = make_array({}, terms.dtype);
  y.magnitude = {0};
  y.length = static_cast<double>(terms.numel()) + terms.length;
  const double n = r == Reduction::mean ? static_cast<double>(terms.numel()) : 1;
  for (std::int64_t i = 0; i < terms.numel(); ++i) {
    y[0] += terms[i] / n;
    y.mag(0) += terms.mag(i) / n;
  }
  if (terms.numel() == 0 && r == Reduction::mean) y[0] = NAN;
  return y;
}

// What a pairwise loss adds up for an input and a target, and the size of its terms.
using TermFn = ValueAndSize (*)(double x, double y);
using LossOp = Tensor (*)(const Tensor&, const Tensor&, Reduction, Loc);

struct Loss {
  OpId op;
  const char* policy;
  LossOp call;
  TermFn term;
  double low, high;    // of the input
  double low2, high2;  // of the target
  double roundings;    // one half for each op the composite rounds after
  double ulps;
};

std::vector<Sample> loss_samples(Draw& d, const Loss& l) {
  std::vector<Sample> all;
  for (const Reduction r : {Reduction::mean, Reduction::sum, Reduction::none}) {
    for (const Shape& sizes : {Shape{4, 5}, Shape{2, 3, 4}, Shape{}, Shape{0, 3}, Shape{301, 257}}) {
      Array x = to_array(d.uniform(sizes, l.low, l.high));
      const Array y = to_array(d.uniform(sizes, l.low2, l.high2));
      for (std::int64_t i = 0; i < x.numel(); ++i)  // away from the kink of |x - y|
        if (l.op == OpId::l1_loss && std::fabs(x[i] - y[i]) < 0.1) x[i] += 0.5;
      // a sum of that many terms leaves the range of f16
      if (sizes == Shape{301, 257} && r == Reduction::sum && d.dtype == DType::f16) continue;
      all.push_back(
          {text(r),
           {d.values(x.v, sizes), d.values(y.v, sizes)},
           two([call = l.call, r](const Tensor& a, const Tensor& b) { return call(a, b, r, Loc::current()); }),
           [term = l.term, r](const Arrays& in) -> Arrays {
             Array terms = make_array(in[0].sizes, in[0].dtype);
             terms.magnitude.resize(terms.v.size());
             for (std::int64_t i = 0; i < terms.numel(); ++i)
               std::tie(terms[i], terms.mag(i)) = term(in[0][i], in[1][i]);
             return {reduced(terms, r)};
           },
           sizes == Shape{301, 257}});
    }
  }
  return all;
}

ValueAndSize mse_term(double x, double y) { return {(x - y) * (x - y), (x - y) * (x - y)}; }
ValueAndSize l1_term(double x, double y) { return {std::fabs(x - y), std::fabs(x - y)}; }
ValueAndSize bce_term(double p, double y) {
  const double a = y * std::max(-100.0, std::log(p));
  const double b = (1 - y) * std::max(-100.0, std::log1p(-p));
  return {-a - b, std::fabs(a) + std::fabs(b)};
}
ValueAndSize bce_logits_term(double x, double y) {
  const double a = x * (1 - y);
  const double b = std::log1p(std::exp(-std::fabs(x))) + std::max(-x, 0.0);
  return {a + b, std::fabs(a) + b};
}

Row loss(const Loss& l) {
  return {.op = l.op,
          .policy = l.policy,
          .dtypes = kFloats,
          .samples = [l](Draw& d) { return loss_samples(d, l); },
          .roundings = l.roundings,
          .ulps = l.ulps,
          .bad = {{"shapes",
                   [l] {
                     l.call(ones({2, 3}), ones({3}), Reduction::mean, Loc::current());
                   },
                   "input and target must have the same shape"},
                  {"integers",
                   [l] {
                     const Tensor i = ones({2}, {.dtype = DType::i64});
                     l.call(i, i, Reduction::mean, Loc::current());
                   },
                   "takes floating tensors"}}};
}

struct Entropy {
  Array loss, log_probabilities;
};

// -sum over classes of target log p, the target being one-hot mixed with the uniform distribution (Szegedy et
// al. 2016).
Entropy entropy(const Array& x, const Array& classes, const CrossEntropyAttrs& a) {
  const std::int64_t n = x.sizes[0];
  const std::int64_t c = x.sizes[1];
  Entropy out{make_array({n}, x.dtype), make_array(x.sizes, x.dtype)};
  out.loss.magnitude.resize(out.loss.v.size());
  out.log_probabilities.magnitude.resize(x.v.size());
  out.loss.length = static_cast<double>(c) + 6;
  out.log_probabilities.length = static_cast<double>(c) + 6;
  double counted = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    double top = -INFINITY;
    double total = 0;
    for (std::int64_t k = 0; k < c; ++k) top = std::max(top, x[i * c + k]);
    for (std::int64_t k = 0; k < c; ++k) total += std::exp(x[i * c + k] - top);
    const bool ignored = classes[i] == static_cast<double>(a.ignore_index);
    counted += ignored ? 0 : 1;
    for (std::int64_t k = 0; k < c; ++k) {
      const double v = x[i * c + k];
      const double y = v - top - std::log(total);
      const double size = std::fabs(v) + 2 * std::fabs(top) + std::log(total) + 1;
      out.log_probabilities[i * c + k] = y;
      out.log_probabilities.mag(i * c + k) = size;
      if (ignored) continue;
      const double hit = static_cast<double>(k) == classes[i] ? 1 - a.label_smoothing : 0;
      const double target = hit + a.label_smoothing / static_cast<double>(c);
      out.loss[i] -= target * y;
      out.loss.mag(i) += target * size;
    }
  }
  const auto r = a.reduction;
  if (r != Reduction::none) {
    out.loss = reduced(out.loss, Reduction::sum);
    if (r == Reduction::mean) {
      out.loss[0] /= counted;
      out.loss.mag(0) /= counted;
    }
  }
  return out;
}

const std::vector<CrossEntropyAttrs>& entropy_attrs() {
  using enum Reduction;
  static const std::vector<CrossEntropyAttrs> all{{{mean, 0, -100}}, {{mean, 0, 2}},   {{mean, 0.1, -100}},
                                                  {{sum, 0.2, 0}},   {{none, 0.1, 1}}, {{mean, 1, -100}}};
  return all;
}
std::string label(const CrossEntropyAttrs& a) {
  return "ignore " + std::to_string(a.ignore_index) + " smoothing " + std::to_string(a.label_smoothing) + " " +
         text(a.reduction);
}

std::vector<Sample> cross_entropy_samples(Draw& d) {
  std::vector<Sample> all;
  for (const CrossEntropyAttrs& a : entropy_attrs())
    for (const Shape& x : {Shape{6, 4}, Shape{1, 3}, Shape{0, 3}, Shape{801, 130}}) {
      const bool mean_of_nothing = x[0] == 0 && a.reduction == Reduction::mean;
      const Call call = [a](const Tensors& t) -> Tensors {
        const Tensor* in[] = {&t[0], &t[1]};
        const Outputs o = dispatch(OpId::cross_entropy, TensorRefs(in, 2), a, SourceLocation::current());
        return {o[0], o[1]};
      };
      all.push_back({label(a),
                     {d.uniform(x, -4, 4), d.index({x[0]}, x[1])},
                     call,
                     [a](const Arrays& in) -> Arrays {
                       const Entropy e = entropy(in[0], in[1], a);
                       return {e.loss, e.log_probabilities};
                     },
                     x[0] == 801,
                     !mean_of_nothing});
      if (x[0] == 1) {  // one row that counts, so that the mean exists
        const std::int64_t other = a.ignore_index == 0 ? 1 : 0;
        all.back().inputs[1] = d.with(DType::i64).values({static_cast<double>(other)}, {1});
      }
    }
  return all;
}

std::vector<Sample> cross_entropy_backward_samples(Draw& d) {
  std::vector<Sample> all;
  for (const CrossEntropyAttrs& a : entropy_attrs())
    for (const Shape& x : {Shape{6, 4}, Shape{0, 3}, Shape{801, 130}}) {
      const Tensor classes = d.index({x[0]}, x[1]);
      const Array logits = to_array(d.uniform(x, -4, 4));
      const Array log_p = entropy(logits, to_array(classes), a).log_probabilities;
      all.push_back(
          {label(a),
           {d.uniform(a.reduction == Reduction::none ? Shape{x[0]} : Shape{}, 0.5, 2), d.values(log_p.v, x), classes},
           [a](const Tensors& t) -> Tensors { return {cross_entropy_backward(t[0], t[1], t[2], a)}; },
           [a](const Arrays& in) -> Arrays {
             const Array& y = in[1];
             const std::int64_t c = y.sizes[1];
             double counted = 0;
             for (double k : in[2].v) counted += k != static_cast<double>(a.ignore_index) ? 1 : 0;
             Array dx = make_array(y.sizes, y.dtype);
             dx.magnitude.resize(dx.v.size());
             for (std::int64_t i = 0; i < dx.numel(); ++i) {
               if (in[2][i / c] == static_cast<double>(a.ignore_index)) continue;
               const double dy =
                   in[0][a.reduction == Reduction::none ? i / c : 0] / (a.reduction == Reduction::mean ? counted : 1);
               const double hit = static_cast<double>(i % c) == in[2][i / c] ? 1 - a.label_smoothing : 0;
               const double target = hit + a.label_smoothing / static_cast<double>(c);
               const double p = std::exp(y[i]);
               dx[i] = dy * (p - target);
               dx.mag(i) = std::fabs(dy) * (p * (1 + std::fabs(y[i])) + target);
             }
             return {dx};
           },
           x[0] == 801});
    }
  return all;
}

std::vector<Sample> dropout_add_samples(Draw& d) {
  std::vector<Sample> all;
  for (const double p : {0.25, 0.0, 1.0})
    for (const Shape& sizes : {Shape{4, 9}, Shape{2, 3, 4, 5}, Shape{}, Shape{0, 3}, Shape{301, 257}}) {
      all.push_back({"p " + std::to_string(p),
                     {d.uniform(sizes, 0.5, 3), d.uniform(sizes, 0.5, 3)},
                     [p](const Tensors& in) -> Tensors {
                       Generator g(7);
                       return {dropout_add(in[0], in[1], p, g)};
                     },
                     [p](const Arrays& in) -> Arrays {
                       Array y = in[1];
                       for (std::int64_t i = 0; i < y.numel(); ++i) {
                         const std::uint32_t word = philox_word(7, 0, static_cast<std::uint64_t>(i));
                         if (static_cast<double>(uniform01(word)) >= p) y[i] += in[0][i] / (1 - p);
                       }
                       return {y};
                     }});
      all.back().large = numel(sizes) > 10000;
    }
  return all;
}

std::vector<Sample> dropout_samples(Draw& d) {
  std::vector<Sample> all;
  for (const double p : {0.5, 0.1, 0.0, 1.0})
    for (const Shape& sizes : {Shape{4, 9}, Shape{2, 3, 4, 5}, Shape{}, Shape{0, 3}, Shape{301, 257}}) {
      all.push_back({"p " + std::to_string(p),
                     {d.uniform(sizes, 0.5, 3)},
                     one([p](const Tensor& x) {
                       Generator g(7);
                       return dropout(x, p, g);
                     }),
                     [p](const Arrays& in) -> Arrays {  // element i stays where word i of the stream says at least p
                       Array y = in[0];
                       for (std::int64_t i = 0; i < y.numel(); ++i) {
                         const std::uint32_t word = philox_word(7, 0, static_cast<std::uint64_t>(i));
                         y[i] = static_cast<double>(uniform01(word)) >= p ? y[i] / (1 - p) : 0;
                       }
                       return {y};
                     },
                     sizes == Shape{301, 257}});
    }
  return all;
}

std::vector<Sample> embedding_samples(Draw& d) {
  std::vector<Sample> all;
  for (const Shape& sizes : {Shape{5}, Shape{2, 3}, Shape{}, Shape{0, 4}, Shape{701, 19}}) {
    const bool large = sizes == Shape{701, 19};
    all.push_back({"indices " + to_string(sizes),
                   {d.uniform({large ? 97 : 7, large ? 33 : 3}, -2, 2), d.index(sizes, large ? 97 : 7)},
                   two([](const Tensor& w, const Tensor& i) { return embedding(w, i); }),
                   [](const Arrays& in) -> Arrays {
                     const std::int64_t n = in[0].sizes[1];
                     Shape out = in[1].sizes;
                     out.push_back(n);
                     Array y = make_array(out, in[0].dtype);
                     for (std::int64_t i = 0; i < y.numel(); ++i)
                       y[i] = in[0][static_cast<std::int64_t>(in[1][i / n]) * n + i % n];
                     return {y};
                   },
                   large});
  }
  return all;
}

}  // namespace

std::vector<Row> loss_rows() {
  const auto f = [](const Shape& s) { return ones(s); };
  const auto classes = [](const Shape& s, double v) { return full(s, v, {.dtype = DType::i64}); };
  std::vector<Row> rows;
  rows.push_back({.op = OpId::cross_entropy,
                  .policy = "fp32",
                  .dtypes = kFloats,
                  .samples = cross_entropy_samples,
                  .ulps = 8,
                  .differentiable_outputs = 1,
                  .no_scalar = "rows of classes"});
  rows.back().refuses("class", "cross_entropy", [=] { cross_entropy(f({2, 3}), classes({2}, 3)); });
  rows.back().refuses("negative class", "cross_entropy", [=] { cross_entropy(f({2, 3}), classes({2}, -1)); });
  rows.back().refuses("index dtype", "classes must be i64, given f32", [=] { cross_entropy(f({2, 3}), f({2})); });
  rows.back().refuses("batch", "classes must be [2], given [3]", [=] { cross_entropy(f({2, 3}), classes({3}, 0)); });
  rows.back().refuses("smoothing", "label_smoothing must be 0 to 1", [=] {
    cross_entropy(f({2, 3}), classes({2}, 0), {.label_smoothing = 1.5});
  });
  rows.push_back({.op = OpId::cross_entropy_backward,
                  .policy = "pass",
                  .dtypes = kFloats,
                  .samples = cross_entropy_backward_samples,
                  .ulps = 8,
                  .no_gradient = "a fused backward: under create_graph the composed form runs in its place"});
  rows.back().refuses("class", "cross_entropy_backward", [=] {
    cross_entropy_backward(f({}), f({2, 3}), classes({2}, 3), {});
  });
  rows.back().refuses("undefined", "cross_entropy_backward",
                      [=] { cross_entropy_backward(f({}), Tensor(), classes({2}, 0), {}); });
  // roundings: sub doubled by the square, square, mean; sub, mean; logs, products, 1 - y, sum, mean; the same
  // with logits
  rows.push_back(loss({OpId::mse_loss, "fp32", mse_loss, mse_term, -2, 2, -2, 2, 2, 4}));
  rows.push_back(loss({OpId::l1_loss, "fp32", l1_loss, l1_term, -2, 2, -2, 2, 1, 4}));
  rows.push_back(loss({OpId::bce_loss, "banned", bce_loss, bce_term, 0.1, 0.9, 0.1, 0.9, 3, 8}));
  rows.push_back(
      loss({OpId::bce_with_logits_loss, "fp32", bce_with_logits_loss, bce_logits_term, -4, 4, 0.1, 0.9, 2.5, 8}));
  rows.push_back({.op = OpId::dropout, .policy = "pass", .dtypes = kFloats, .samples = dropout_samples, .ulps = 2});
  rows.back().refuses("p", "dropout: p is 1.5", [=] { dropout(f({2}), 1.5); });
  rows.back().refuses("NaN", "dropout: p is", [=] { dropout(f({2}), NAN); });
  rows.push_back({.op = OpId::dropout_add,
                  .policy = "pass",
                  .dtypes = kFloats,
                  .samples = dropout_add_samples,
                  .roundings = 1,
                  .ulps = 3});
  rows.back().refuses("p", "dropout_add: p is -1", [=] { dropout_add(f({2}), f({2}), -1); });
  rows.back().refuses("a number", "dropout_add: x is a number", [=] { dropout_add(2, f({2}), 0.5); });
  rows.back().refuses("undefined", "needs a residual", [=] { dropout_add(f({2}), {}, 0.5); });
  rows.back().refuses("sizes", "the residual must be [2, 3], given [3]", [=] { dropout_add(f({2, 3}), f({3}), 0.5); });
  rows.back().refuses("dtype", "takes f64, f32", [=] { dropout_add(f({2}), zeros({2}, {.dtype = DType::i64}), 0.5); });
  rows.push_back(
      {.op = OpId::embedding, .policy = "pass", .dtypes = kAll, .samples = embedding_samples, .roundings = 0});
  rows.back().refuses("weight", "weight must be [entries, size]", [=] { embedding(f({3}), classes({2}, 0)); });
  rows.back().refuses("index", "3", [=] { embedding(f({3, 2}), classes({2}, 3)); });
  rows.back().refuses("negative index", "-1", [=] { embedding(f({3, 2}), classes({2}, -1)); });
  rows.back().refuses("index dtype", "index must be i64", [=] { embedding(f({3, 2}), f({2})); });
  return rows;
}

}  // namespace gradual::test
