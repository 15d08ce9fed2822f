// Attention in blocks (amp/attention.h) as loops over numbers, with the library's order of sums, for tests of its bits.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "../../core/ops/ops.h"
#include "support.h"

namespace gradual::attention_test {

using Row = std::vector<float>;
using Matrix = std::vector<Row>;

inline Matrix matrix_of(const Tensor& t) {
  Matrix m;
  for (std::int64_t i = 0; i < t.size(0); ++i) m.push_back(t.select(0, i).to_vector<float>());
  return m;
}
inline Tensor tensor_of(const Row& row) { return from_data(row, {static_cast<std::int64_t>(row.size())}); }
inline Matrix turned(const Matrix& m) {
  Matrix t(m[0].size(), Row(m.size()));
  for (std::size_t i = 0; i < m.size(); ++i)
    for (std::size_t j = 0; j < m[0].size(); ++j) t[j][i] = m[i][j];
  return t;
}

// A change of each row of a matrix; empty: none.
using RowChange = std::function<Row(const Row& row)>;
inline Matrix rows(const RowChange& change, const Matrix& m) {
  Matrix changed;
  for (const Row& row : m) changed.push_back(change ? change(row) : row);
  return changed;
}
inline Matrix columns(const RowChange& change, const Matrix& m) { return turned(rows(change, turned(m))); }

// f32 sums in order, by fused multiply-adds.
inline float dot(const Row& a, const Row& b) {
  float sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum = std::fma(a[i], b[i], sum);
  return sum;
}
// a b^T
inline Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c;
  for (const Row& row : a) {
    c.emplace_back();
    for (const Row& other : b) c.back().push_back(dot(row, other));
  }
  return c;
}

// What is rounded, row by row along the contracted axis. `turn` comes before the rounding in products over the head.
struct LoopRounding {
  RowChange q = {};
  RowChange k = {};
  RowChange v = {};
  RowChange p = {};
  RowChange d_o = {};
  RowChange d_p = {};
  RowChange d_s = {};
  RowChange o = {};
  RowChange turn_scores = {};     // of q and k in Q K^T
  RowChange turn_gradients = {};  // of dO and V in dO V^T, and of O
};
inline RowChange after(const RowChange& first, const RowChange& second) {
  return [=](const Row& row) {
    const Row turned_row = first ? first(row) : row;
    return second ? second(turned_row) : turned_row;
  };
}

struct LoopResult {
  Matrix y, dq, dk, dv;
};

inline float exp_of(float x) { return exp(full({}, x)).item<float>(); }
inline float sum_of(const Row& row) { return sum(tensor_of(row).reshape({1, -1}), {-1}).item<float>(); }

// One head and one block of keys.
inline LoopResult attention_by_loops(const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& dy,
                                     const LoopRounding& by) {
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(q[0].size())));
  Matrix s = product(rows(after(by.turn_scores, by.q), q), rows(after(by.turn_scores, by.k), k));
  Matrix p = s;
  Row sums;
  Row logsumexp;
  for (std::size_t i = 0; i < s.size(); ++i) {
    float most = -HUGE_VALF;
    for (float& score : s[i]) {
      score *= scale;
      most = std::fmax(most, score);
    }
    for (std::size_t j = 0; j < s[i].size(); ++j) p[i][j] = exp_of(s[i][j] - most);
    sums.push_back(sum_of(p[i]));
    logsumexp.push_back(most + log(full({}, sums.back())).item<float>());
  }
  LoopResult r;
  r.y = product(rows(by.p, p), turned(columns(by.v, v)));
  for (std::size_t i = 0; i < r.y.size(); ++i)
    for (float& number : r.y[i]) number /= sums[i];
  r.y = rows(by.o, r.y);

  for (std::size_t i = 0; i < s.size(); ++i)
    for (std::size_t j = 0; j < s[i].size(); ++j) p[i][j] = exp_of(s[i][j] - logsumexp[i]);
  const Matrix dy_of_head = rows(after(by.turn_gradients, by.d_o), dy);
  r.dv = product(turned(columns(by.p, p)), turned(columns(by.d_o, dy)));
  const Matrix dp = rows(by.d_p, product(dy_of_head, rows(after(by.turn_gradients, by.v), v)));
  const Matrix y = rows(by.turn_gradients, r.y);
  Matrix ds = p;
  for (std::size_t i = 0; i < ds.size(); ++i) {
    Row terms;
    for (std::size_t e = 0; e < y[i].size(); ++e) terms.push_back(dy_of_head[i][e] * y[i][e]);
    const float delta = sum_of(terms);
    for (std::size_t j = 0; j < ds[i].size(); ++j) ds[i][j] = p[i][j] * (dp[i][j] - delta);
  }
  r.dq = product(rows(by.d_s, ds), turned(columns(by.k, k)));
  r.dk = product(turned(columns(by.d_s, ds)), turned(columns(by.q, q)));
  for (Matrix* gradient : {&r.dq, &r.dk})
    for (Row& row : *gradient)
      for (float& number : row) number *= scale;
  return r;
}

}  // namespace gradual::attention_test
