// Attention: the composite, and the op that keeps no scores with its backward; plain loops over whole rows of scores.
#include "../support/gradients.h"
#include "samples.h"

namespace gradual::test {
namespace {

using Index = std::vector<std::int64_t>;

// softmax(q k^T scale + mask) v. Every intermediate of a half run is rounded to half but the softmax: the
// error of a score s (product, scaled q, sum) shows as a relative error of its weight.
Array attention_reference(const Arrays& in, bool causal, double scale) {
  const Array& q = in[0];
  const Array& k = in[1];
  const Array& v = in[2];
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
  add("causal", {2, 4, 3}, {2, 4, 3}, {2, 4, 3}, {}, {{.causal = true}});
  add("scale", {2, 3, 4}, {2, 3, 4}, {2, 3, 4}, {}, {{.scale = 0.25}});
  Draw f64 = d.with(DType::bool_);
  Array allowed = to_array(f64.mask({3, 5}));
  for (std::int64_t i = 0; i < 3; ++i) allowed[i * 5] = 1;  // a row that may attend to nothing has no softmax
  add("bool mask", {2, 3, 4}, {2, 5, 4}, {2, 5, 3}, f64.values(allowed.v, {3, 5}));
  add("added mask", {2, 3, 4}, {2, 5, 4}, {2, 5, 3}, d.uniform({2, 3, 5}, -2, 2));
  add("empty", {0, 3, 4}, {0, 3, 4}, {0, 3, 4}, {});
  add("large", {4, 70, 33}, {4, 70, 33}, {4, 70, 33}, {}, {{.causal = true}}, true);
  return all;
}

// q [heads, queries, size], k [heads, keys, size], v [heads, keys, values].
struct Heads {
  const Array& q;
  const Array& k;
  const Array& v;
  std::int64_t queries, keys, size, values, heads;
  double scale;
  bool causal;
  Heads(const Array& qs, const Array& ks, const Array& vs, const AttentionAttrs& a) : q(qs), k(ks), v(vs) {
    const int n = q.sizes.size();
    queries = q.sizes[n - 2];
    size = q.sizes[n - 1];
    keys = k.sizes[n - 2];
    values = v.sizes[n - 1];
    heads = numel(q.sizes.first(n - 2));
    scale = attention_scale(a, size);
    causal = a.causal;
  }
  bool sees(std::int64_t query, std::int64_t key) const { return !causal || key <= query; }
  // Of a query and a key, both counted through all heads.
  Sum score(std::int64_t query, std::int64_t key) const {
    Sum s;
    for (std::int64_t e = 0; e < size; ++e) s.add(q[query * size + e] * k[key * size + e] * scale);
    return s;
  }
  double length() const { return static_cast<double>(keys + queries + size + values); }
};

Array sums_like(const Shape& sizes, DType dtype, double length) {
  Array a = make_array(sizes, dtype);
  a.magnitude.resize(a.v.size());
  a.length = length;
  return a;
}
void put(Array& a, std::int64_t i, const Sum& s) {
  a[i] = s.value;
  a.mag(i) = s.size;
}

Arrays forward(const Array& q, const Array& k, const Array& v, const AttentionAttrs& attrs) {
  const Heads h(q, k, v, attrs);
  Shape sizes = q.sizes;
  sizes[sizes.size() - 1] = h.values;
  Array y = sums_like(sizes, q.dtype, h.length());
  Array logsumexp = sums_like(q.sizes.first(q.sizes.size() - 1), statistics_of(q.dtype), h.length());
  for (std::int64_t row = 0; row < h.heads * h.queries; ++row) {
    const std::int64_t first = row / h.queries * h.keys;
    std::vector<double> scores;
    double top = -INFINITY;
    double rough = 0;
    double total = 0;
    for (std::int64_t j = 0; j < h.keys && h.sees(row % h.queries, j); ++j) {
      const Sum s = h.score(row, first + j);
      scores.push_back(s.value);
      top = std::max(top, s.value);
      rough = std::max(rough, s.size + std::fabs(s.value));
    }
    for (const double s : scores) total += std::exp(s - top);
    put(logsumexp, row, {top + std::log(total), std::fabs(top) + rough + std::fabs(std::log(total)) + 1});
    for (std::int64_t f = 0; f < h.values; ++f) {
      Sum sum;
      for (std::size_t j = 0; j < scores.size(); ++j) {
        const double term =
            std::exp(scores[j] - top) / total * v[(first + static_cast<std::int64_t>(j)) * h.values + f];
        sum.add(term, std::fabs(term) * (1 + 4 * rough));
      }
      put(y, row * h.values + f, sum);
    }
  }
  return {y, logsumexp};
}

// in: dy, q, k, v, y, logsumexp.
Arrays backward(const Arrays& in, const AttentionAttrs& attrs) {
  const Array& dy = in[0];
  const Array& y = in[4];
  const Array& logsumexp = in[5];
  const Heads h(in[1], in[2], in[3], attrs);
  const auto zeros_like = [&](const Array& a) { return sums_like(a.sizes, h.q.dtype, h.length()); };
  Array dq = zeros_like(h.q);
  Array dk = zeros_like(h.k);
  Array dv = zeros_like(h.v);
  const auto add = [](Array& to, std::int64_t i, double term, double size) {
    to[i] += term;
    to.mag(i) += size;
  };
  for (std::int64_t row = 0; row < h.heads * h.queries; ++row) {
    const std::int64_t first = row / h.queries * h.keys;
    Sum along;
    for (std::int64_t f = 0; f < h.values; ++f) along.add(dy[row * h.values + f] * y[row * h.values + f]);
    for (std::int64_t j = 0; j < h.keys && h.sees(row % h.queries, j); ++j) {
      const std::int64_t key = first + j;
      const Sum s = h.score(row, key);
      const double p = std::exp(s.value - logsumexp[row]);
      const double rough = 1 + 4 * (s.size + std::fabs(s.value) + std::fabs(logsumexp[row]));
      Sum dp;
      for (std::int64_t f = 0; f < h.values; ++f) dp.add(dy[row * h.values + f] * h.v[key * h.values + f]);
      const double ds = p * (dp.value - along.value) * h.scale;
      const double size = p * (dp.size + along.size) * h.scale * rough;
      for (std::int64_t f = 0; f < h.values; ++f) {
        const double term = p * dy[row * h.values + f];
        add(dv, key * h.values + f, term, std::fabs(term) * rough);
      }
      for (std::int64_t e = 0; e < h.size; ++e) {
        add(dq, row * h.size + e, ds * h.k[key * h.size + e], std::fabs(size * h.k[key * h.size + e]));
        add(dk, key * h.size + e, ds * h.q[row * h.size + e], std::fabs(size * h.q[row * h.size + e]));
      }
    }
  }
  return {dq, dk, dv};
}

struct Case {
  const char* label;
  Shape q, k, v;
  AttentionAttrs attrs{};
  bool large = false;
};
// Heads in whole vectors of eight are those that a GPU's library takes.
const Case kCases[] = {{"plain", {3, 4}, {5, 4}, {5, 3}},
                       {"batch and heads", {2, 2, 4, 3}, {2, 2, 4, 3}, {2, 2, 4, 3}},
                       {"causal", {2, 4, 3}, {2, 4, 3}, {2, 4, 3}, {{.causal = true}}},
                       {"scale", {2, 3, 4}, {2, 3, 4}, {2, 3, 4}, {{.scale = 0.25}}},
                       {"heads of eight", {2, 2, 5, 8}, {2, 2, 5, 8}, {2, 2, 5, 8}, {{.causal = true}}},
                       {"more keys than queries", {2, 4, 16}, {2, 9, 16}, {2, 9, 8}},
                       {"fewer keys than queries", {2, 9, 8}, {2, 4, 8}, {2, 4, 16}, {{.causal = true}}},
                       {"one of each", {1, 1, 8}, {1, 1, 8}, {1, 1, 8}},
                       {"no heads", {0, 3, 4}, {0, 3, 4}, {0, 3, 4}},
                       {"no queries", {2, 0, 8}, {2, 3, 8}, {2, 3, 8}},
                       {"large", {4, 70, 40}, {4, 150, 40}, {4, 150, 24}, {{.causal = true}}, true},
                       {"several blocks", {2, 150, 64}, {2, 170, 64}, {2, 170, 72}, {}, true}};

std::vector<Sample> forward_samples(Draw& d) {
  std::vector<Sample> all;
  for (const Case& c : kCases)
    all.push_back({c.label,
                   {d.uniform(c.q, -2, 2), d.uniform(c.k, -2, 2), d.uniform(c.v, -2, 2)},
                   [attrs = c.attrs](const Tensors& t) -> Tensors {
                     const Outputs o = flash_attention(t[0], t[1], t[2], attrs);
                     return {o[0], o[1]};
                   },
                   [attrs = c.attrs](const Arrays& a) { return forward(a[0], a[1], a[2], attrs); },
                   c.large});
  return all;
}

std::vector<Sample> backward_samples(Draw& d) {
  std::vector<Sample> all;
  for (const Case& c : kCases) {
    Tensors in{d.uniform(c.q, -2, 2), d.uniform(c.k, -2, 2), d.uniform(c.v, -2, 2)};
    const Arrays made = forward(to_array(in[0]), to_array(in[1]), to_array(in[2]), c.attrs);
    const Tensor dy = d.uniform(made[0].sizes, -2, 2);
    Draw statistics = d.with(statistics_of(d.dtype));
    all.push_back(
        {c.label,
         {dy, in[0], in[1], in[2], d.values(made[0].v, made[0].sizes), statistics.values(made[1].v, made[1].sizes)},
         [attrs = c.attrs](const Tensors& t) -> Tensors {
           const Outputs o = flash_attention_backward(t[0], t[1], t[2], t[3], t[4], t[5], attrs);
           return {o[0], o[1], o[2]};
         },
         [attrs = c.attrs](const Arrays& a) { return backward(a, attrs); },
         c.large});
  }
  return all;
}

}  // namespace

std::vector<Row> attention_rows() {
  const auto f = [](const Shape& s) { return ones(s); };
  const auto call = [](const Tensor& q, const Tensor& k, const Tensor& v, AttentionAttrs attrs = {}) {
    flash_attention(q, k, v, attrs);
  };
  std::vector<Row> rows;
  rows.push_back({.op = OpId::scaled_dot_product_attention,
                  .policy = "lower",
                  .dtypes = kFloats,
                  .samples = attention_samples,
                  .roundings = 2,
                  .ulps = 16,
                  .no_scalar = "[.., L, E]"});
  rows.back().refuses("1-d", "q, k and v must be", [=] { scaled_dot_product_attention(f({4}), f({3, 4}), f({3, 4})); });
  rows.back().refuses("head size", "inner dimensions 4 and 5 differ", [=] {
    scaled_dot_product_attention(f({3, 4}), f({3, 5}), f({3, 4}));
  });
  rows.push_back({.op = OpId::flash_attention,
                  .policy = "pass",
                  .dtypes = {DType::f64, DType::f32, DType::f16, DType::bf16},
                  .samples = forward_samples,
                  .roundings = 2,
                  .ulps = 16,
                  .differentiable_outputs = 1,
                  .no_scalar = "[.., L, E]"});
  rows.back().refuses("1-d", "must be [.., L, E], [.., S, E] and [.., S, F]", [=] { call(f({4}), f({4}), f({4})); });
  rows.back().refuses("head size", "given [3, 4], [3, 5] and [3, 4]", [=] { call(f({3, 4}), f({3, 5}), f({3, 4})); });
  rows.back().refuses("heads", "given [2, 3, 4], [1, 3, 4]", [=] { call(f({2, 3, 4}), f({1, 3, 4}), f({1, 3, 4})); });
  rows.back().refuses("dropout", "no dropout here", [=] { call(f({3, 4}), f({3, 4}), f({3, 4}), {{.dropout = 0.5}}); });
  rows.push_back({.op = OpId::flash_attention_backward,
                  .policy = "pass",
                  .dtypes = {DType::f64, DType::f32, DType::f16, DType::bf16},
                  .samples = backward_samples,
                  .roundings = 2,
                  .ulps = 16,
                  .no_gradient = "a fused backward: under create_graph the composed form runs in its place",
                  .no_scalar = "[.., L, E]"});
  rows.back().refuses("undefined", "needs a gradient", [=] {
    flash_attention_backward(Tensor(), f({3, 4}), f({3, 4}), f({3, 4}), f({3, 4}), f({3}), {});
  });
  rows.back().refuses("logsumexp", "the logsumexp must be [3]", [=] {
    flash_attention_backward(f({3, 4}), f({3, 4}), f({3, 4}), f({3, 4}), f({3, 4}), f({4}), {});
  });
  return rows;
}

}  // namespace gradual::test
