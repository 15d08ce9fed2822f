// Pooling.
#include <limits>

#include "../support/gradients.h"
#include "samples.h"

namespace gradual::test {
namespace {

// [first, last) along one dim, inside the image and with padding counted.
struct Window {
  std::int64_t first, last, whole;
};
using WindowFn = std::function<Window(int dim, std::int64_t out)>;

WindowFn window_of(const Shape& x, const PoolAttrs& a) {
  return [x, a](int dim, std::int64_t out) -> Window {
    const std::int64_t start = out * a.stride[dim] - a.padding[dim];
    return {std::max<std::int64_t>(0, start), std::min(x[2 + dim], start + a.kernel[dim]), a.kernel[dim]};
  };
}
// floor(i * in / out) to ceil((i + 1) * in / out), as PyTorch divides the image.
WindowFn adaptive_window(const Shape& x, const PoolAttrs& a) {
  return [x, a](int dim, std::int64_t out) -> Window {
    const std::int64_t n = x[2 + dim];
    const std::int64_t first = out * n / a.size[dim];
    const std::int64_t last = ((out + 1) * n + a.size[dim] - 1) / a.size[dim];
    return {first, last, last - first};
  };
}
Shape pooled(const Shape& x, const PoolAttrs& a, bool adaptive) {
  Shape y = x;
  for (int i = 0; i < 2; ++i)
    y[2 + i] = adaptive ? a.size[i] : (x[2 + i] + 2 * a.padding[i] - a.kernel[i]) / a.stride[i] + 1;
  return y;
}

// Calls f(position in x, position in y, 1 / elements of the window) for every element of every window.
template <class F> void for_each_in_window(const Shape& x, const Shape& y, const WindowFn& window, F f) {
  for (std::int64_t i = 0; i < numel(y); ++i) {
    const Window h = window(0, i / y[3] % y[2]);
    const Window w = window(1, i % y[3]);
    const std::int64_t plane = i / (y[2] * y[3]) * x[2] * x[3];
    for (std::int64_t r = h.first; r < h.last; ++r)
      for (std::int64_t c = w.first; c < w.last; ++c)
        f(plane + r * x[3] + c, i, 1 / static_cast<double>(h.whole * w.whole));
  }
}

struct PoolShape {
  const char* label;
  Shape x;
  PoolAttrs attrs;
  bool large = false;
};

std::vector<PoolShape> pool_shapes() {
  return {{"2x2", {2, 3, 4, 6}, {{.kernel = {2, 2}, .stride = {2, 2}}}},
          {"overlap", {2, 2, 5, 5}, {{.kernel = {3, 3}, .stride = {1, 2}, .padding = {1, 1}}}},
          {"rest", {1, 2, 7, 5}, {{.kernel = {2, 3}, .stride = {3, 2}, .padding = {1, 0}}}},
          {"whole", {2, 2, 3, 4}, {{.kernel = {3, 4}, .stride = {1, 1}}}},
          {"empty", {0, 2, 4, 4}, {{.kernel = {2, 2}, .stride = {2, 2}}}},
          {"large", {8, 16, 31, 33}, {{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}}, true}};
}
std::vector<PoolShape> adaptive_shapes() {
  return {{"1x1", {2, 3, 4, 5}, {{}, {1, 1}}},    {"uneven", {2, 2, 5, 7}, {{}, {3, 4}}},
          {"larger", {1, 2, 3, 2}, {{}, {4, 3}}}, {"empty", {0, 2, 4, 4}, {{}, {2, 2}}},
          {"same", {2, 2, 3, 4}, {{}, {3, 4}}},   {"large", {8, 16, 31, 33}, {{}, {7, 5}}, true}};
}

// The extreme of each window and where in its plane it lies; the first of equals in row-major order, NaN
// wins.
Arrays max_reference(const Array& x, const PoolAttrs& a) {
  const Shape sizes = pooled(x.sizes, a, false);
  Array y = make_array(sizes, x.dtype);
  Array at = make_array(sizes, DType::i64);
  std::vector<bool> seen(y.v.size());
  for_each_in_window(x.sizes, sizes, window_of(x.sizes, a), [&](std::int64_t from, std::int64_t to, double) {
    const bool first = !seen[static_cast<std::size_t>(to)];
    if (!first && !(x[from] > y[to] || (std::isnan(x[from]) && !std::isnan(y[to])))) return;
    seen[static_cast<std::size_t>(to)] = true;
    y[to] = x[from];
    at[to] = static_cast<double>(from % (x.sizes[2] * x.sizes[3]));
  });
  return {y, at};
}

std::vector<Sample> max_pool_samples(Draw& d) {
  std::vector<Sample> all;
  for (const PoolShape& s : pool_shapes()) {
    const PoolAttrs a = s.attrs;
    const Call call = [a](const Tensors& in) -> Tensors {
      const auto [y, at] = max_pool2d_with_indices(in[0], a);
      return {y, at};
    };
    const Reference ref = [a](const Arrays& in) { return max_reference(in[0], a); };
    all.push_back({s.label, {s.large ? d.uniform(s.x, -3, 3) : d.distinct(s.x)}, call, ref, s.large});
    if (s.x[0] > 0 && !s.large) {
      all.push_back({std::string(s.label) + " equals", {d.with(DType::u8).mask(s.x)}, call, ref, false, false});
      Array coarse = to_array(all.back().inputs[0]);
      coarse[0] = s.x[2] == 4 ? NAN : -1;
      all.back().inputs[0] = d.values(coarse.v, s.x);
    }
  }
  return all;
}

// The indices of a real max_pool2d, as the reference finds them.
Tensor indices_for(Draw& d, const PoolShape& s) {
  const Array x = to_array(d.uniform(s.x, -3, 3));
  const Array at = max_reference(x, s.attrs)[1];
  return d.with(DType::i64).values(at.v, at.sizes);
}

std::vector<Sample> max_backward_samples(Draw& d) {
  std::vector<Sample> all;
  for (const PoolShape& s : pool_shapes()) {
    PoolAttrs a = s.attrs;
    a.size[0] = s.x[2];
    a.size[1] = s.x[3];
    const Tensor at = indices_for(d, s);
    all.push_back({s.label,
                   {d.uniform(at.sizes(), -2, 2), at},
                   two([a](const Tensor& dy, const Tensor& i) { return max_pool2d_backward(dy, i, a); }),
                   [x = s.x](const Arrays& in) -> Arrays {
                     Array dx = make_array(x, in[0].dtype);
                     dx.magnitude.resize(dx.v.size());
                     dx.length = 9;
                     const std::int64_t plane = in[0].sizes[2] * in[0].sizes[3];
                     for (std::int64_t i = 0; i < in[0].numel(); ++i) {
                       const std::int64_t to = i / plane * x[2] * x[3] + static_cast<std::int64_t>(in[1][i]);
                       dx[to] += in[0][i];
                       dx.mag(to) += std::fabs(in[0][i]);
                     }
                     return {dx};
                   },
                   s.large});
  }
  return all;
}

// Average pooling and its adjoint, plain and adaptive.
std::vector<Sample> average_samples(Draw& d, bool adaptive, bool backward) {
  std::vector<Sample> all;
  for (const PoolShape& s : adaptive ? adaptive_shapes() : pool_shapes()) {
    PoolAttrs a = s.attrs;
    const Shape x = s.x;
    const Shape y = pooled(x, a, adaptive);
    const WindowFn window = adaptive ? adaptive_window(x, a) : window_of(x, a);
    if (backward) {
      a.size[0] = x[2];
      a.size[1] = x[3];
    }
    const Call call = one([=](const Tensor& t) {
      if (adaptive) return backward ? adaptive_avg_pool2d_backward(t, a) : adaptive_avg_pool2d(t, a.size[0], a.size[1]);
      return backward ? avg_pool2d_backward(t, a) : avg_pool2d(t, a);
    });
    all.push_back({s.label,
                   {d.uniform(backward ? y : x, -2, 2)},
                   call,
                   [=](const Arrays& in) -> Arrays {
                     Array out = make_array(backward ? x : y, in[0].dtype);
                     out.magnitude.resize(out.v.size());
                     for_each_in_window(x, y, window, [&](std::int64_t i, std::int64_t o, double weight) {
                       const std::int64_t to = backward ? i : o;
                       out[to] += in[0][backward ? o : i] * weight;
                       out.mag(to) += std::fabs(in[0][backward ? o : i] * weight);
                       out.length = std::max(out.length, 1 / weight);
                     });
                     return {out};
                   },
                   s.large});
  }
  return all;
}

}  // namespace

std::vector<Row> pooling_rows() {
  const std::string four = "[N, C, H, W]";
  const PoolAttrs two_by_two{{.kernel = {2, 2}, .stride = {2, 2}}, {4, 4}};
  const auto f = [](const Shape& s) { return ones(s); };
  const auto index = [](const Shape& s, double v) { return full(s, v, {.dtype = DType::i64}); };
  std::vector<Row> rows;
  rows.push_back({.op = OpId::max_pool2d,
                  .policy = "pass",
                  .dtypes = kFloats,
                  .samples = max_pool_samples,
                  .roundings = 0,
                  .differentiable_outputs = 1,
                  .no_scalar = four});
  rows.back().refuses("3-d", "input 0 must be 4-d, given [3, 4, 4]", [=] { max_pool2d(f({3, 4, 4})); });
  rows.back().refuses("kernel", "larger than the padded", [=] { max_pool2d(f({1, 1, 2, 2}), {.kernel = 3}); });
  rows.back().refuses("kernel 0", "must be at least 1", [=] { max_pool2d(f({1, 1, 2, 2}), {.kernel = 0}); });
  rows.back().refuses("padding", "padding", [=] { max_pool2d(f({1, 1, 4, 4}), {.kernel = 2, .padding = 2}); });
  rows.push_back({.op = OpId::max_pool2d_backward,
                  .policy = "pass",
                  .dtypes = kFloats,
                  .samples = max_backward_samples,
                  .no_scalar = four});
  rows.back().refuses("index", "max_pool2d_backward", [=] {
    max_pool2d_backward(f({1, 1, 2, 2}), index({1, 1, 2, 2}, 16), two_by_two);
  });
  rows.back().refuses("index shape", "max_pool2d_backward", [=] {
    max_pool2d_backward(f({1, 1, 2, 2}), index({1, 1, 2, 1}, 0), two_by_two);
  });
  rows.back().refuses("undefined", "max_pool2d_backward", [=] {
    max_pool2d_backward(f({1, 1, 2, 2}), Tensor(), two_by_two);
  });
  for (const bool adaptive : {false, true})
    for (const bool backward : {false, true}) {
      const OpId op = adaptive ? (backward ? OpId::adaptive_avg_pool2d_backward : OpId::adaptive_avg_pool2d)
                               : (backward ? OpId::avg_pool2d_backward : OpId::avg_pool2d);
      Row row{.op = op,
              .policy = "pass",
              .dtypes = kFloats,
              .samples = [=](Draw& d) { return average_samples(d, adaptive, backward); },
              .ulps = 2,
              .no_scalar = four};
      if (backward) {
        row.refuses("3-d", "input 0 must be 4-d", [=] {
          const Tensor dy = ones({1, 2, 2});
          adaptive ? adaptive_avg_pool2d_backward(dy, two_by_two) : avg_pool2d_backward(dy, two_by_two);
        });
      } else if (adaptive) {
        row.refuses("size", "output size must be at least 1 x 1", [=] { adaptive_avg_pool2d(f({1, 1, 2, 2}), 0, 1); });
        row.refuses("no pixels", "no pixels", [=] { adaptive_avg_pool2d(f({1, 1, 0, 2}), 1, 1); });
      } else {
        row.refuses("kernel", "larger than the padded", [=] { avg_pool2d(f({1, 1, 2, 2}), {.kernel = 3}); });
        row.refuses("padding", "padding", [=] { avg_pool2d(f({1, 1, 4, 4}), {.kernel = 2, .padding = 2}); });
      }
      rows.push_back(row);
    }
  return rows;
}

}  // namespace gradual::test
