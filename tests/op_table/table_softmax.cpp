// softmax, log_softmax and their fused backwards: a line at a time.
#include "../support/gradients.h"
#include "samples.h"

namespace gradual::test {
namespace {

// Applies f(values, sizes) to each line of x (and of a second array) along dim; f gives values and
// magnitudes.
using Line = std::vector<double>;
template <class F> Array along(const Array& x, const Array* second, int dim, F f) {
  Array y = make_array(x.sizes, x.dtype);
  y.magnitude.resize(y.v.size());
  if (x.sizes.empty()) {
    const auto [value, size] = f(Line{x[0]}, Line{second ? (*second)[0] : 0});
    y[0] = value[0];
    y.mag(0) = size[0];
    return y;
  }
  if (dim < 0) dim += x.sizes.size();
  std::int64_t inner = 1;
  for (int i = dim + 1; i < x.sizes.size(); ++i) inner *= x.sizes[i];
  const std::int64_t n = x.sizes[dim];
  y.length = static_cast<double>(n) + 6;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    if (i / inner % n != 0) continue;
    Line a;
    Line b;
    for (std::int64_t k = 0; k < n; ++k) {
      a.push_back(x[i + k * inner]);
      b.push_back(second ? (*second)[i + k * inner] : 0);
    }
    const auto [value, size] = f(a, b);
    for (std::int64_t k = 0; k < n; ++k) {
      y[i + k * inner] = value[static_cast<std::size_t>(k)];
      y.mag(i + k * inner) = size[static_cast<std::size_t>(k)];
    }
  }
  return y;
}
using Lines = std::pair<Line, Line>;

Lines softmax_line(const Line& x, const Line&) {
  const double top = *std::max_element(x.begin(), x.end());
  double total = 0;
  for (double v : x) total += std::exp(v - top);
  Lines out;
  for (double v : x) {
    const double y = std::exp(v - top) / total;
    out.first.push_back(y);
    out.second.push_back(std::isinf(v) ? 0 : y * (1 + std::fabs(v - top)));
  }
  return out;
}
Lines log_softmax_line(const Line& x, const Line&) {
  const double top = *std::max_element(x.begin(), x.end());
  double total = 0;
  double spread = 0;
  for (double v : x) total += std::exp(v - top);
  for (double v : x) spread += std::exp(v - top) * std::fabs(v - top) / total;
  Lines out;
  for (double v : x) {
    out.first.push_back(v - top - std::log(total));
    out.second.push_back(std::fabs(v) + std::fabs(top) + std::log(total) + spread + 1);
  }
  return out;
}
// dx = y (dy - sum(dy y))
Lines softmax_backward_line(const Line& dy, const Line& y) {
  Sum s;
  for (std::size_t i = 0; i < y.size(); ++i) s.add(dy[i] * y[i]);
  Lines out;
  for (std::size_t i = 0; i < y.size(); ++i) {
    out.first.push_back(y[i] * (dy[i] - s.value));
    out.second.push_back(std::fabs(y[i]) * (std::fabs(dy[i]) + s.size));
  }
  return out;
}
// dx = dy - exp(y) sum(dy)
Lines log_softmax_backward_line(const Line& dy, const Line& y) {
  Sum s;
  for (double v : dy) s.add(v);
  Lines out;
  for (std::size_t i = 0; i < y.size(); ++i) {
    out.first.push_back(dy[i] - std::exp(y[i]) * s.value);
    out.second.push_back(std::fabs(dy[i]) + std::exp(y[i]) * (1 + std::fabs(y[i])) * s.size);
  }
  return out;
}

using LineFn = Lines (*)(const Line&, const Line&);

std::vector<Sample> line_samples(Draw& d, Tensor (*op)(const Tensor&, int, Loc), LineFn f) {
  std::vector<Sample> all;
  const auto add = [&](const Tensor& x, int dim, bool large = false, bool gradient = true) {
    all.push_back({"dim " + std::to_string(dim),
                   {x},
                   one([op, dim](const Tensor& t) { return op(t, dim, Loc::current()); }),
                   [f, dim](const Arrays& in) -> Arrays { return {along(in[0], nullptr, dim, f)}; },
                   large,
                   gradient});
  };
  add(d.uniform({4, 7}, -4, 4), 1);
  add(d.uniform({4, 7}, -4, 4), 0);
  add(d.uniform({2, 3, 5}, -4, 4), -2);
  add(d.uniform({11}, -4, 4), 0);
  add(d.uniform({}, -4, 4), 0);
  add(d.uniform({0, 5}, -4, 4), 1);
  add(d.uniform({5, 0}, -4, 4), 1);
  add(d.values({1000, 1001, -1000, 3}, {1, 4}), 1, false, false);
  add(d.values({-INFINITY, 1, 2, -INFINITY}, {1, 4}), 1, false, false);
  add(d.uniform({301, 257}, -4, 4), 1, true);
  add(d.uniform({257, 301}, -4, 4), 0, true);
  return all;
}

std::vector<Sample> line_backward_samples(Draw& d, Tensor (*op)(const Tensor&, const Tensor&, int), LineFn f,
                                          LineFn forward) {
  std::vector<Sample> all;
  const auto add = [&](const Shape& sizes, int dim, bool large = false) {
    const Array y = along(to_array(d.uniform(sizes, -2, 2)), nullptr, dim, forward);
    all.push_back({"dim " + std::to_string(dim),
                   {d.uniform(sizes, -2, 2), d.values(y.v, sizes)},
                   two([op, dim](const Tensor& dy, const Tensor& t) { return op(dy, t, dim); }),
                   [f, dim](const Arrays& in) -> Arrays { return {along(in[0], &in[1], dim, f)}; },
                   large});
  };
  add({4, 7}, 1);
  add({4, 7}, 0);
  add({2, 3, 5}, 1);
  add({11}, 0);
  add({}, 0);
  add({0, 5}, 1);
  add({301, 257}, 1, true);
  add({257, 301}, 0, true);
  return all;
}

}  // namespace

std::vector<Row> softmax_rows() {
  std::vector<Row> rows;
  const auto line = [&](OpId op, Tensor (*call)(const Tensor&, int, Loc), LineFn fn) {
    rows.push_back({.op = op,
                    .policy = "fp32",
                    .dtypes = kFloats,
                    .samples = [=](Draw& d) { return line_samples(d, call, fn); },
                    .ulps = 8});
    rows.back().refuses("dim", "dim 2 is out of range", [=] { call(ones({2, 3}), 2, Loc::current()); });
    rows.back().refuses("integers", "takes floating tensors",
                        [=] { call(ones({2}, {.dtype = DType::i64}), 0, Loc::current()); });
  };
  const auto backward = [&](OpId op, Tensor (*call)(const Tensor&, const Tensor&, int), LineFn fn, LineFn forward) {
    rows.push_back({.op = op,
                    .policy = "pass",
                    .dtypes = kFloats,
                    .samples = [=](Draw& d) { return line_backward_samples(d, call, fn, forward); },
                    .ulps = 8});
    rows.back().refuses("undefined", "needs a tensor", [=] { call(Tensor(), ones({2}), 0); });
    rows.back().refuses("shapes", std::string(to_string(op)), [=] { call(ones({2, 3}), ones({2, 4}), 0); });
  };
  line(OpId::softmax, softmax, softmax_line);
  backward(OpId::softmax_backward, softmax_backward, softmax_backward_line, softmax_line);
  line(OpId::log_softmax, log_softmax, log_softmax_line);
  backward(OpId::log_softmax_backward, log_softmax_backward, log_softmax_backward_line, log_softmax_line);
  for (Row& row : rows)
    if (to_string(row.op).ends_with("_backward"))
      row.no_gradient = "a fused backward: under create_graph the composed form runs in its place";
  return rows;
}

}  // namespace gradual::test
