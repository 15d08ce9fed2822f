// Batch, layer and RMS norm and their fused backwards, from the formulas of the papers (Ioffe and Szegedy 2015, Ba et
// al. 2016, Zhang and Sennrich 2019).
#include "../support/gradients.h"
#include "samples.h"

namespace gradual::test {
namespace {

constexpr double kEps = 1e-3;

// x as [outer, C, inner] for batch norm, or [rows, D] for layer and RMS norm: the elements that share
// statistics.
struct Groups {
  std::int64_t count = 0;                               // statistics
  std::function<std::int64_t(std::int64_t)> statistic;  // of element i
  std::function<std::int64_t(std::int64_t)> parameter;  // weight and bias of element i
  double size = 0;                                      // elements that share a statistic
};

Groups channel_groups(const Shape& x) {
  std::int64_t inner = 1;
  for (int i = 2; i < x.size(); ++i) inner *= x[i];
  const std::int64_t channels = x[1];
  const auto channel = [=](std::int64_t i) { return i / inner % channels; };
  return {channels, channel, channel, static_cast<double>(x[0] * inner)};
}
Groups row_groups(const Shape& x, int dims) {
  std::int64_t d = 1;
  std::int64_t rows = 1;
  for (int i = 0; i < x.size(); ++i) (i < x.size() - dims ? rows : d) *= x[i];
  return {rows, [=](std::int64_t i) { return i / std::max<std::int64_t>(1, d); }, [=](std::int64_t i) { return i % d; },
          static_cast<double>(d)};
}
Shape leading(const Shape& x, int dims) {
  Shape s;
  for (int i = 0; i < x.size() - dims; ++i) s.push_back(x[i]);
  return s;
}
Shape trailing(const Shape& x, int dims) {
  Shape s;
  for (int i = x.size() - dims; i < x.size(); ++i) s.push_back(x[i]);
  return s;
}

// The mean of f(i) over each group, and of |f(i)|.
template <class F> Array group_means(const Array& x, const Groups& g, const Shape& sizes, F f) {
  Array m = make_array(sizes, statistics_of(x.dtype));
  m.magnitude.resize(m.v.size());
  m.length = g.size + 2;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    m[g.statistic(i)] += f(i) / g.size;
    m.mag(g.statistic(i)) += std::fabs(f(i)) / g.size;
  }
  return m;
}

double parameter(const Arrays& in, std::size_t at, const Groups& g, std::int64_t i, double absent) {
  return in.size() > at && in[at].defined ? in[at][g.parameter(i)] : absent;
}

// y, mean and 1/sqrt(var + eps); given statistics (mean, var) are used instead of x's own. Without a center:
// RMS norm.
Arrays norm_reference(const Arrays& in, const Groups& g, const Shape& stats, bool center, bool has_bias,
                      const Array* mean_given = nullptr, const Array* var_given = nullptr) {
  const Array& x = in[0];
  Array m = group_means(x, g, stats, [&](std::int64_t i) { return x[i]; });
  Array v = group_means(x, g, stats, [&](std::int64_t i) {
    const double c = center ? x[i] - m[g.statistic(i)] : x[i];
    return c * c;
  });
  const Array size = m;  // of the terms of the mean
  if (mean_given) {
    m.v = mean_given->v;
    v.v = var_given->v;
  }
  Array y = make_array(x.sizes, x.dtype);
  y.magnitude.resize(y.v.size());
  y.length = g.size + 4;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const std::int64_t s = g.statistic(i);
    const double r = 1 / std::sqrt(v[s] + kEps);
    const double w = parameter(in, 1, g, i, 1);
    const double b = has_bias ? parameter(in, 2, g, i, 0) : 0;
    const double shift = center ? m[s] : 0;
    y[i] = (x[i] - shift) * r * w + b;
    y.mag(i) = (std::fabs(x[i]) + (center ? size.magnitude[static_cast<std::size_t>(s)] + std::fabs(m[s]) : 0)) * r *
                   std::fabs(w) +
               std::fabs(b);
  }
  Array r = v;
  for (std::int64_t s = 0; s < v.numel(); ++s) {
    r[s] = 1 / std::sqrt(v[s] + kEps);
    // Errors of the mean enter the variance through 2 |x - m| dm, and 1/sqrt halves relative errors.
    r.mag(s) = r[s] * (1 + size.magnitude[static_cast<std::size_t>(s)] / std::sqrt(v[s] + kEps));
  }
  if (!center) return {y, r};
  return {y, m, r};
}

// dx = r w-scaled (dy - mean(dy) - xhat mean(dy xhat)), dw = sum(dy xhat), db = sum(dy).
Arrays norm_backward_reference(const Array& dy, const Array& x, const Array& w, const Array* mean, const Array& r,
                               const Groups& g, const Shape& parameters, bool fixed_statistics) {
  const Arrays weight{{}, w};
  const auto xhat = [&](std::int64_t i) { return (x[i] - (mean ? (*mean)[g.statistic(i)] : 0)) * r[g.statistic(i)]; };
  const auto rough = [&](std::int64_t i) {
    return (std::fabs(x[i]) + (mean ? std::fabs((*mean)[g.statistic(i)]) : 0)) * r[g.statistic(i)];
  };
  const auto dxhat = [&](std::int64_t i) { return dy[i] * parameter(weight, 1, g, i, 1); };
  Groups flat = g;
  const Array a = group_means(x, flat, r.sizes, [&](std::int64_t i) { return dxhat(i); });
  const Array b = group_means(x, flat, r.sizes, [&](std::int64_t i) { return dxhat(i) * xhat(i); });
  const Array b_size = group_means(x, flat, r.sizes, [&](std::int64_t i) { return std::fabs(dxhat(i)) * rough(i); });
  Array dx = make_array(x.sizes, x.dtype);
  dx.magnitude.resize(dx.v.size());
  dx.length = g.size + 8;
  const DType parameter_dtype = w.defined ? w.dtype : statistics_of(x.dtype);
  Array dw = make_array(parameters, parameter_dtype);
  dw.magnitude.resize(dw.v.size());
  dw.length = static_cast<double>(x.numel()) / static_cast<double>(std::max<std::int64_t>(1, numel(parameters))) + 4;
  Array db = dw;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const std::int64_t s = g.statistic(i);
    const auto at = static_cast<std::size_t>(s);
    if (fixed_statistics) {
      dx[i] = r[s] * dxhat(i);
    } else {
      dx[i] = r[s] * (dxhat(i) - (mean ? a[s] : 0) - xhat(i) * b[s]);
    }
    dx.mag(i) = r[s] * (std::fabs(dxhat(i)) + (mean ? a.magnitude[at] : 0) + rough(i) * b_size[s]);
    dw[g.parameter(i)] += dy[i] * xhat(i);
    dw.mag(g.parameter(i)) += std::fabs(dy[i]) * rough(i);
    db[g.parameter(i)] += dy[i];
    db.mag(g.parameter(i)) += std::fabs(dy[i]);
  }
  if (!mean) return {dx, dw};
  return {dx, dw, db};
}

const std::vector<std::pair<Shape, bool>>& batch_shapes() {
  static const std::vector<std::pair<Shape, bool>> all{
      {{5, 3}, false}, {{2, 3, 4}, false}, {{3, 2, 3, 4}, false}, {{0, 3, 2, 2}, false}, {{7, 13, 21, 19}, true}};
  return all;
}

// Parameters of halves come as f32 and as halves.
std::vector<DType> parameter_dtypes(DType x) {
  if (x == DType::f16 || x == DType::bf16) return {DType::f32, x};
  return {x};
}

void cut_below_zero(Array& y) {
  for (double& v : y.v) v = std::max(v, 0.0);
}

std::vector<Sample> batch_norm_samples(Draw& d) {
  std::vector<Sample> all;
  for (const bool training : {true, false})
    for (const char* parameters_and : {"affine", "affine, relu", ""})
      for (const DType p : parameter_dtypes(d.dtype))
        for (const auto& [x, large] : batch_shapes()) {
          if (x[0] == 0 && training) continue;  // no statistics of nothing
          const std::string how = parameters_and;
          const bool affine = !how.empty();
          const bool relu = how == "affine, relu";
          Draw parameters = d.with(p);
          Draw running = d.with(statistics_of(d.dtype));
          const Shape c{x[1]};
          Tensors in{d.uniform(x, -1, 3), affine ? parameters.uniform(c, 0.5, 2) : Tensor(),
                     affine ? parameters.uniform(c, -1, 1) : Tensor()};
          if (!training) {
            in.push_back(running.uniform(c, -1, 1));
            in.push_back(running.uniform(c, 0.5, 2));
          }
          all.push_back({std::string(training ? "training " : "eval ") + how + " " + std::string(to_string(p)), in,
                         [training, relu](const Tensors& t) -> Tensors {
                           const BatchNormResult r = batch_norm(t[0], t[1], t[2], training ? Tensor() : t[3],
                                                                training ? Tensor() : t[4], training, kEps, relu);
                           return {r.y, r.mean, r.invstd};
                         },
                         [training, relu](const Arrays& a) -> Arrays {
                           const Groups g = channel_groups(a[0].sizes);
                           Arrays out = norm_reference(a, g, {a[0].sizes[1]}, true, true, training ? nullptr : &a[3],
                                                       training ? nullptr : &a[4]);
                           if (relu) cut_below_zero(out[0]);
                           return out;
                         },
                         large});
        }
  return all;
}

std::vector<Sample> batch_norm_backward_samples(Draw& d) {
  std::vector<Sample> all;
  for (const bool training : {true, false})
    for (const bool affine : {true, false})
      for (const bool relu : {false, true})
        for (const auto& [x, large] : batch_shapes()) {
          Draw statistics = d.with(statistics_of(d.dtype));
          const Shape c{x[1]};
          const NormAttrs attrs{.eps = kEps, .training = training, .relu = relu};
          all.push_back(
              {std::string(training ? "training" : "eval") + (affine ? " affine" : "") + (relu ? " relu" : ""),
               {d.uniform(x, -1, 1), d.uniform(x, -1, 3), affine ? statistics.uniform(c, 0.5, 2) : Tensor(),
                statistics.uniform(c, 0.5, 1.5), statistics.uniform(c, 0.5, 1.5),
                affine ? statistics.uniform(c, -1, 1) : Tensor()},
               [attrs](const Tensors& t) -> Tensors {
                 const Outputs o = batch_norm_backward(t[0], t[1], t[2], t[3], t[4], attrs, t[5]);
                 return {o[0], o[1], o[2]};
               },
               [training, relu](const Arrays& a) -> Arrays {
                 const Groups g = channel_groups(a[1].sizes);
                 Array dy = a[0];
                 for (std::int64_t i = 0; relu && i < dy.numel(); ++i) {
                   const std::int64_t at = g.parameter(i);
                   const double y = (a[1][i] - a[3][at]) * a[4][at] * parameter(a, 2, g, i, 1);
                   if (y + parameter(a, 5, g, i, 0) <= 0) dy[i] = 0;
                 }
                 return norm_backward_reference(dy, a[1], a[2], &a[3], a[4], g, {a[1].sizes[1]}, !training);
               },
               large});
        }
  return all;
}

struct RowShape {
  Shape x;
  int dims;
  bool large = false;
};
const std::vector<RowShape>& row_shapes() {
  static const std::vector<RowShape> all{{{4, 7}, 1},    {{2, 3, 4}, 1}, {{2, 3, 4}, 2},       {{9}, 1},
                                         {{3, 2, 4}, 3}, {{0, 5}, 1},    {{301, 257}, 1, true}};
  return all;
}

std::vector<Sample> layer_norm_samples(Draw& d) {
  std::vector<Sample> all;
  for (const bool affine : {true, false})
    for (const DType p : parameter_dtypes(d.dtype))
      for (const RowShape& s : row_shapes()) {
        Draw parameters = d.with(p);
        const Shape n = trailing(s.x, s.dims);
        const int dims = s.dims;
        all.push_back({std::string(affine ? "affine " : "plain ") + std::string(to_string(p)),
                       {d.uniform(s.x, -1, 3), affine ? parameters.uniform(n, 0.5, 2) : Tensor(),
                        affine ? parameters.uniform(n, -1, 1) : Tensor()},
                       [dims](const Tensors& t) -> Tensors {
                         const Tensor* in[] = {&t[0], &t[1], &t[2]};
                         const Outputs o = dispatch(OpId::layer_norm, TensorRefs(in, 3),
                                                    NormAttrs{.eps = kEps, .dims = dims}, SourceLocation::current());
                         return {o[0], o[1], o[2]};
                       },
                       [dims](const Arrays& a) -> Arrays {
                         return norm_reference(a, row_groups(a[0].sizes, dims), leading(a[0].sizes, dims), true, true);
                       },
                       s.large});
      }
  return all;
}

std::vector<Sample> rms_norm_samples(Draw& d) {
  std::vector<Sample> all;
  for (const bool affine : {true, false})
    for (const DType p : parameter_dtypes(d.dtype))
      for (const RowShape& s : row_shapes()) {
        Draw parameters = d.with(p);
        const int dims = s.dims;
        all.push_back({std::string(affine ? "affine " : "plain ") + std::string(to_string(p)),
                       {d.uniform(s.x, -1, 3), affine ? parameters.uniform(trailing(s.x, dims), 0.5, 2) : Tensor()},
                       [dims](const Tensors& t) -> Tensors {
                         const Tensor* in[] = {&t[0], &t[1]};
                         const Outputs o = dispatch(OpId::rms_norm, TensorRefs(in, 2),
                                                    NormAttrs{.eps = kEps, .dims = dims}, SourceLocation::current());
                         return {o[0], o[1]};
                       },
                       [dims](const Arrays& a) -> Arrays {
                         return norm_reference(a, row_groups(a[0].sizes, dims), leading(a[0].sizes, dims), false,
                                               false);
                       },
                       s.large});
      }
  return all;
}

std::vector<Sample> row_backward_samples(Draw& d, bool center) {
  std::vector<Sample> all;
  for (const bool affine : {true, false})
    for (const RowShape& s : row_shapes()) {
      Draw statistics = d.with(statistics_of(d.dtype));
      const NormAttrs attrs{.eps = kEps, .dims = s.dims};
      const int dims = s.dims;
      const Shape stats = leading(s.x, dims);
      Tensors in{d.uniform(s.x, -1, 1), d.uniform(s.x, -1, 3),
                 affine ? statistics.uniform(trailing(s.x, dims), 0.5, 2) : Tensor()};
      if (center) in.push_back(statistics.uniform(stats, 0.5, 1.5));
      in.push_back(statistics.uniform(stats, 0.5, 1.5));
      all.push_back({affine ? "affine" : "plain", in,
                     [attrs, center](const Tensors& t) -> Tensors {
                       if (center) {
                         const Outputs o = layer_norm_backward(t[0], t[1], t[2], t[3], t[4], attrs);
                         return {o[0], o[1], o[2]};
                       }
                       const Outputs o = rms_norm_backward(t[0], t[1], t[2], t[3], attrs);
                       return {o[0], o[1]};
                     },
                     [dims, center](const Arrays& a) -> Arrays {
                       return norm_backward_reference(a[0], a[1], a[2], center ? &a[3] : nullptr, a[center ? 4 : 3],
                                                      row_groups(a[1].sizes, dims), trailing(a[1].sizes, dims), false);
                     },
                     s.large});
    }
  return all;
}

}  // namespace

std::vector<Row> normalization_rows() {
  const auto f = [](const Shape& s) { return ones(s); };
  const std::string statistics = "needs dims to normalise";
  std::vector<Row> rows;
  rows.push_back({.op = OpId::batch_norm,
                  .policy = "pass",
                  .dtypes = kFloats,
                  .samples = batch_norm_samples,
                  .ulps = 4,
                  .differentiable_outputs = 1,
                  .constant_inputs = {3, 4},
                  .no_scalar = statistics});
  rows.back().refuses("1-d", "the input must be [N, C, ..]", [=] { batch_norm(f({3}), {}, {}, {}, {}, true); });
  rows.back().refuses("weight", "must be [3], given [4]", [=] { batch_norm(f({4, 3}), f({4}), {}, {}, {}, true); });
  rows.back().refuses("dtype", "parameters must be f32, given f16", [=] {
    batch_norm(f({4, 3}), f({3}).to(DType::f16), {}, {}, {}, true);
  });
  rows.back().refuses("one value", "more than one value", [=] { batch_norm(f({1, 3}), {}, {}, {}, {}, true); });
  rows.back().refuses("running", "running mean and var", [=] { batch_norm(f({4, 3}), {}, {}, {}, {}, false); });
  rows.push_back({.op = OpId::batch_norm_backward,
                  .policy = "pass",
                  .dtypes = kFloats,
                  .samples = batch_norm_backward_samples,
                  .ulps = 4,
                  .no_scalar = statistics});
  rows.back().refuses("undefined", "needs an input", [=] {
    batch_norm_backward(f({4, 3}), Tensor(), {}, f({3}), f({3}), {});
  });
  rows.back().refuses("bias", "bias must be [3], given [4]", [=] {
    batch_norm_backward(f({4, 3}), f({4, 3}), {}, f({3}), f({3}), {}, f({4}));
  });
  rows.push_back({.op = OpId::layer_norm,
                  .policy = "fp32",
                  .dtypes = kFloats,
                  .samples = layer_norm_samples,
                  .ulps = 4,
                  .differentiable_outputs = 1,
                  .no_scalar = statistics});
  rows.back().refuses("dims", "cannot normalise 3 trailing dims of [4, 3]", [=] { layer_norm(f({4, 3}), 3); });
  rows.back().refuses("weight", "weight and bias must be [3], given [4]", [=] { layer_norm(f({4, 3}), 1, f({4})); });
  rows.back().refuses("integers", "takes f64, f32", [=] { layer_norm(ones({4, 3}, {.dtype = DType::i64}), 1); });
  rows.push_back({.op = OpId::layer_norm_backward,
                  .policy = "pass",
                  .dtypes = kFloats,
                  .samples = [](Draw& d) { return row_backward_samples(d, true); },
                  .ulps = 4});
  rows.back().refuses("undefined", "needs an input", [=] {
    layer_norm_backward(f({4, 3}), Tensor(), {}, f({4}), f({4}), {});
  });
  rows.push_back({.op = OpId::rms_norm,
                  .policy = "fp32",
                  .dtypes = kFloats,
                  .samples = rms_norm_samples,
                  .ulps = 4,
                  .differentiable_outputs = 1,
                  .no_scalar = statistics});
  rows.back().refuses("dims", "cannot normalise 0 trailing dims", [=] { rms_norm(f({4, 3}), 0); });
  rows.back().refuses("weight", "must be [3], given [4]", [=] { rms_norm(f({4, 3}), 1, f({4})); });
  rows.push_back({.op = OpId::rms_norm_backward,
                  .policy = "pass",
                  .dtypes = kFloats,
                  .samples = [](Draw& d) { return row_backward_samples(d, false); },
                  .ulps = 4});
  rows.back().refuses("undefined", "needs an input", [=] { rms_norm_backward(f({4, 3}), Tensor(), {}, f({4}), {}); });
  for (Row& row : rows)
    if (to_string(row.op).ends_with("_backward"))
      row.no_gradient = "a fused backward: under create_graph the composed form runs in its place";
  return rows;
}

}  // namespace gradual::test
