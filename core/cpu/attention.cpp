// Attention that keeps no scores (Dao et al. 2022): a query meets the keys a block at a time, with the softmax carried along
// (Milakov and Gimelshein 2018), and backward makes the probabilities again from the rows' logsumexp. The reference that a
// GPU's kernels are held to; products and sums are in the compute type, and the results are rounded once.
#include <algorithm>
#include <cmath>
#include <limits>

#include "../kernels/contraction_operand.h"
#include "../kernels/formulas.h"
#include "../kernels/loops.h"
#include "../support/multiversion.h"
#include "../support/parallel.h"
#include "kernels.h"
#include "rows.h"

namespace gradual::cpu {
namespace {

inline constexpr std::int64_t kKeys = 64;  // of a block
inline constexpr std::int64_t kGrain = 8;  // rows that a thread takes at a time

// q [heads, queries, size], k [heads, keys, size], v [heads, keys, values], row-major.
template <class T> struct Heads {
  Loaded<T> q_, k_, v_;
  const T *q, *k, *v;
  std::int64_t queries, keys, size, values, heads;
  bool causal;
  T scale;

  Heads(const AttentionAttrs& a, const Tensor& qs, const Tensor& ks, const Tensor& vs)
      : q_(qs, Loaded<T>::As::rows),
        k_(ks, Loaded<T>::As::rows),
        v_(vs, Loaded<T>::As::rows),
        q(q_.data()),
        k(k_.data()),
        v(v_.data()),
        queries(qs.size(-2)),
        keys(ks.size(-2)),
        size(qs.size(-1)),
        values(vs.size(-1)),
        heads(numel(qs.sizes().first(qs.dim() - 2))),
        causal(a.causal),
        scale(static_cast<T>(attention_scale(a, size))) {}
  // Keys that a query sees.
  std::int64_t seen(std::int64_t query) const { return causal ? std::min(query + 1, keys) : keys; }
};

template <class T> T dot(const T* a, const T* b, std::int64_t n) {
  return blocked_sum<T>(n, [=](std::int64_t i) { return a[i] * b[i]; });
}
template <class T> void add_times(T* to, const T* x, T factor, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += factor * x[i];
}

// y of one query, and the log of the sum of its scores' exponentials.
template <class T>
T attend(const T* q, const T* k, const T* v, std::int64_t seen, std::int64_t size, std::int64_t values, T scale, T* y) {
  constexpr T kLeast = -std::numeric_limits<T>::infinity();
  T top = kLeast, sum = 0, p[kKeys];
  std::fill_n(y, values, T{0});
  for (std::int64_t first = 0; first < seen; first += kKeys) {
    const std::int64_t n = std::min(kKeys, seen - first);
    T largest = top;
    for (std::int64_t j = 0; j < n; ++j) {
      p[j] = dot(q, k + (first + j) * size, size) * scale;
      largest = p[j] > largest ? p[j] : largest;
    }
    const T shift = largest == kLeast ? T{0} : largest;  // -Inf all over so far: exp(-Inf) is 0, and a NaN stays one
    const T earlier = math::exp(top - shift);
    sum *= earlier;
    for (std::int64_t f = 0; f < values; ++f) y[f] *= earlier;
    for (std::int64_t j = 0; j < n; ++j) {
      p[j] = math::exp(p[j] - shift);
      sum += p[j];
      add_times(y, v + (first + j) * values, p[j], values);
    }
    top = largest;
  }
  if (seen == 0) return kLeast;
  for (std::int64_t f = 0; f < values; ++f) y[f] /= sum;
  return top + math::log(sum);
}

template <class T> void forward_of(const OpCall& call, Outputs& out) {
  const Heads<T> h(call.get<AttentionAttrs>(), call[0], call[1], call[2]);
  T* const logsumexp = out[1].template data<T>();
  write_row_major(out[0], [&](Tensor& to) {
    const Result<T> y(to);
    parallel_for(h.heads * h.queries, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t head = row / h.queries, seen = h.seen(row % h.queries);
        const T *q = h.q + row * h.size, *k = h.k + head * h.keys * h.size, *v = h.v + head * h.keys * h.values;
        T* const to_row = y.data() + row * h.values;
        logsumexp[row] = vectorized([=, size = h.size, values = h.values, scale = h.scale] {
          return attend(q, k, v, seen, size, values, scale, to_row);
        });
      }
    });
    y.store();
  });
}

// What a query and a key that it sees give back: with p = exp(score - logsumexp), dscore = p (dy v - dy y).
template <class T> struct Meeting {
  T p, dscore;
};
template <class T>
Meeting<T> meet(const T* q, const T* k, const T* v, const T* dy, T logsumexp, T along, std::int64_t size,
                std::int64_t values, T scale) {
  const T p = math::exp(dot(q, k, size) * scale - logsumexp);
  return {p, p * (dot(dy, v, values) - along) * scale};
}

template <class T> struct Backward {
  const Heads<T>& h;
  const T *dy, *logsumexp, *along;  // along: dy y of each query

  void query_gradient(std::int64_t row, T* dq) const {
    const std::int64_t head = row / h.queries;
    std::fill_n(dq, h.size, T{0});
    for (std::int64_t j = 0; j < h.seen(row % h.queries); ++j) {
      const T* const k = h.k + (head * h.keys + j) * h.size;
      add_times(dq, k, meeting(row, head * h.keys + j).dscore, h.size);
    }
  }
  void key_gradients(std::int64_t row, T* dk, T* dv) const {
    const std::int64_t head = row / h.keys, key = row % h.keys;
    std::fill_n(dk, h.size, T{0});
    std::fill_n(dv, h.values, T{0});
    for (std::int64_t i = h.causal ? key : 0; i < h.queries; ++i) {
      const std::int64_t query = head * h.queries + i;
      const Meeting<T> m = meeting(query, row);
      add_times(dv, dy + query * h.values, m.p, h.values);
      add_times(dk, h.q + query * h.size, m.dscore, h.size);
    }
  }

 private:
  Meeting<T> meeting(std::int64_t query, std::int64_t key) const {
    return meet(h.q + query * h.size, h.k + key * h.size, h.v + key * h.values, dy + query * h.values, logsumexp[query],
                along[query], h.size, h.values, h.scale);
  }
};

template <class T> void backward_of(const OpCall& call, Outputs& out) {
  using Rows = typename Loaded<T>::As;
  const Heads<T> h(call.get<AttentionAttrs>(), call[1], call[2], call[3]);
  const Loaded<T> dy(call[0], Rows::rows), y(call[4], Rows::rows), logsumexp(call[5], Rows::rows);
  const std::int64_t queries = h.heads * h.queries, keys = h.heads * h.keys;
  const Scratch along(static_cast<std::size_t>(queries) * sizeof(T) + 1);
  parallel_for(queries, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      along.as<T>()[i] = dot(dy.data() + i * h.values, y.data() + i * h.values, h.values);
  });
  const Backward<T> b{h, dy.data(), logsumexp.data(), along.as<T>()};
  write_row_major(out[0], [&](Tensor& to) {
    const Result<T> dq(to);
    parallel_for(queries, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        vectorized([=, to_row = dq.data() + i * h.size] { b.query_gradient(i, to_row); });
    });
    dq.store();
  });
  write_row_major(out[1], [&](Tensor& to_k) {
    write_row_major(out[2], [&](Tensor& to_v) {
      const Result<T> dk(to_k), dv(to_v);
      parallel_for(keys, kGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t j = begin; j < end; ++j)
          vectorized([=, k_row = dk.data() + j * h.size, v_row = dv.data() + j * h.values] {
            b.key_gradients(j, k_row, v_row);
          });
      });
      dk.store();
      dv.store();
    });
  });
}

void flash_attention(const OpCall& call, Outputs& out) {
  visit_floating(out[0].dtype(), [&]<class T>(T) { forward_of<T>(call, out); });
}
void flash_attention_backward(const OpCall& call, Outputs& out) {
  visit_floating(out[0].dtype(), [&]<class T>(T) { backward_of<T>(call, out); });
}

}  // namespace

void register_attention() {
  set_kernel(OpId::flash_attention, flash_attention);
  set_kernel(OpId::flash_attention_backward, flash_attention_backward);
}

}  // namespace gradual::cpu
