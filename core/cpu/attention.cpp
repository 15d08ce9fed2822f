// Attention that does not store all scores (Dao et al. 2022). Blocks of queries meet the keys that they see by ordinary
// matrix products. Backward recomputes the probabilities from the logsumexp of each row. Scores, probabilities and sums
// are in the compute type; results are rounded once. A NaN or Inf in v gives NaN also to queries of the block that do
// not see its key, since 0 * Inf is NaN.
#include <algorithm>

#include "../kernels/contraction_operand.h"
#include "../kernels/loops.h"
#include "../ops/cpu_backend.h"
#include "../support/multiversion.h"
#include "../support/parallel.h"
#include "kernels.h"
#include "rows.h"

namespace gradual::cpu {
namespace {

inline constexpr std::int64_t kQueries = 64;      // queries of a block
inline constexpr std::int64_t kScores = 1 << 17;  // scores of a block, about: they stay in a cache

Tensor turned(const Tensor& t) { return transpose(t, -2, -1); }
DType compute_dtype(const Tensor& t) { return t.dtype() == DType::f64 ? DType::f64 : DType::f32; }
Tensor wide(const Tensor& t) { return t.to(compute_dtype(t)); }

// The matrix product a b in the compute type. Products of two half numbers are exact in it, so bf16 instructions lose
// nothing.
Tensor product(const Tensor& a, const Tensor& b) {
  const Attrs none{};
  OutSpec made{compute_dtype(a), a.sizes()};
  made.sizes[a.dim() - 1] = b.size(-1);
  return next_below_observe({OpId::matmul, {&a, &b}, &none, {}, &made})[0];
}

// Queries [first, first + rows) of images [image, image + images), and the first `keys` keys: those that the last of
// these queries sees. Images are the entries of the first dim; a tensor of two dims is one image.
struct Block {
  std::int64_t image, images, first, rows, keys;
  Tensor queries_of(const Tensor& t) const { return cut(t).narrow(-2, first, rows); }
  Tensor keys_of(const Tensor& t) const { return cut(t).narrow(-2, 0, keys); }

 private:
  Tensor cut(const Tensor& t) const { return t.dim() > 2 ? t.narrow(0, image, images) : t; }
};

// Inputs `first` to `first` + 2: q [.., queries, size], k [.., keys, size], v [.., keys, values].
struct Heads {
  Tensor q, k, v;
  std::int64_t queries, keys, images, heads;  // heads of an image
  bool causal;
  double scale;

  Heads(const OpCall& call, int first)
      : q(call[first]),
        k(call[first + 1]),
        v(call[first + 2]),
        queries(q.size(-2)),
        keys(k.size(-2)),
        images(q.dim() > 2 ? q.size(0) : 1),
        heads(images > 0 ? numel(q.sizes().first(q.dim() - 2)) / images : 0),
        causal(call.get<AttentionAttrs>().causal),
        scale(attention_scale(call.get<AttentionAttrs>(), q.size(-1))) {}
  std::int64_t seen(std::int64_t query) const { return causal ? std::min(query + 1, keys) : keys; }

  // Calls f(block, its scores q k^T) for each block.
  template <class F> void for_blocks(const F& f) const {
    const std::int64_t most = kScores / std::max<std::int64_t>(1, heads * kQueries * keys);
    Block b{};
    for (; b.image < images; b.image += b.images) {
      b.images = std::clamp<std::int64_t>(most, 1, images - b.image);
      for (b.first = 0; b.first < queries; b.first += b.rows) {
        b.rows = std::min(kQueries, queries - b.first);
        b.keys = seen(b.first + b.rows - 1);
        f(b, product(b.queries_of(q), turned(b.keys_of(k))));
      }
    }
  }
  // Calls f(offset of a row in the scores, index of its query among all, number of keys that the query sees) for each
  // row of a block.
  template <class T, class F> void for_rows(const Block& b, const F& f) const {
    const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, b.keys));
    parallel_for(b.images * heads * b.rows, grain, [&](std::int64_t row, std::int64_t end) {
      vectorized([=, this, &f]() mutable {
        for (; row < end; ++row) {
          const std::int64_t query = b.first + row % b.rows;
          f(row * b.keys, (b.image * heads + row / b.rows) * queries + query, seen(query));
        }
      });
    });
  }
};

template <class T> void attend(const OpCall& call, Outputs& out) {
  const Heads h(call, 0);
  const Tensor v = wide(h.v);
  h.for_blocks([&](const Block& b, const Tensor& scores) {
    T* const all = scores.data<T>();
    T* const logsumexp = out[1].data<T>();
    T scale = static_cast<T>(h.scale);
    h.for_rows<T>(b, [=](std::int64_t at, std::int64_t query, std::int64_t seen) {
      T* const p = all + at;
      for (std::int64_t i = 0; i < seen; ++i) p[i] *= scale;
      logsumexp[query] = softmax_row(p, p, seen);
      std::fill(p + seen, p + b.keys, T{0});
    });
    b.queries_of(out[0]).copy_(matmul(scores, b.keys_of(v)));
  });
}

// With p = exp(score - logsumexp): dv = p^T dy, dscore = p (dy v^T - dy y), dq = dscore k, dk = dscore^T q. If y was
// rounded to half, the sum of p dy v^T over a row replaces dy y.
template <class T> void attend_backward(const OpCall& call, Outputs& out) {
  const Heads h(call, 1);
  const Tensor q = wide(h.q);
  const Tensor k = wide(h.k);
  const Tensor dy = wide(call[0]);
  const Tensor logsumexp = call[5].to(q.dtype()).contiguous();
  const Tensor dy_y = is_half(call[4].dtype()) ? Tensor() : sum(dy * call[4], {-1});
  const Tensor dk = zeros(k.sizes(), {.dtype = k.dtype()});
  const Tensor dv = zeros(h.v.sizes(), {.dtype = k.dtype()});
  h.for_blocks([&](const Block& b, const Tensor& scores) {
    const Tensor gradients = product(b.queries_of(call[0]), turned(b.keys_of(h.v)));
    T* const all = scores.data<T>();
    T* const all_ds = gradients.data<T>();
    T scale = static_cast<T>(h.scale);
    const T* const log = logsumexp.data<T>();
    const T* const given = dy_y.defined() ? dy_y.data<T>() : nullptr;
    h.for_rows<T>(b, [=](std::int64_t at, std::int64_t query, std::int64_t seen) {
      T* const p = all + at;
      T* const ds = all_ds + at;
      const T sum = blocked_sum<T>(seen, [=](std::int64_t i) {
        p[i] = math::exp(p[i] * scale - log[query]);
        return p[i] * ds[i];
      });
      const T along = given ? given[query] : sum;
      for (std::int64_t i = 0; i < seen; ++i) ds[i] = p[i] * (ds[i] - along) * scale;
      for (T* const x : {p, ds}) std::fill(x + seen, x + b.keys, T{0});
    });
    b.keys_of(dv).add_(matmul(turned(scores), b.queries_of(dy)));
    b.keys_of(dk).add_(matmul(turned(gradients), b.queries_of(q)));
    b.queries_of(out[0]).copy_(matmul(gradients, b.keys_of(k)));
  });
  out[1].copy_(dk);
  out[2].copy_(dv);
}

void flash_attention(const OpCall& call, Outputs& out) {
  const CategoryScope workspace(Category::workspace);
  visit_floating(out[0].dtype(), [&]<class T>(T) { attend<T>(call, out); });
}
void flash_attention_backward(const OpCall& call, Outputs& out) {
  const CategoryScope workspace(Category::workspace);
  visit_floating(out[0].dtype(), [&]<class T>(T) { attend_backward<T>(call, out); });
}

// True for long causal sequences in f32 or bf16. There, this kernel skips most of the keys that a block's queries do
// not see, and the tape keeps no scores. A step of a transformer on 128 tokens takes as long as with the separate ops,
// within 5%, and saves 23% (f32) or 36% (bf16) of the activations' memory (bench/results/fast_kernels.md).
bool suits(const OpCall& call) {
  constexpr std::int64_t kLong = 128;
  const DType dtype = call[0].dtype();
  return call.get<AttentionAttrs>().causal && call[0].size(-2) >= kLong && cpu_backend() >= CpuBackend::fast &&
         (dtype == DType::f32 || dtype == DType::bf16) && !rounds_to_tf32(dtype);
}

}  // namespace

void register_attention() {
  columns().cpu_capability[static_cast<int>(OpId::flash_attention)].suits = suits;
  set_kernel(OpId::flash_attention, flash_attention);
  set_kernel(OpId::flash_attention_backward, flash_attention_backward);
}

}  // namespace gradual::cpu
