// Attention as products of blocks: 64 queries meet all keys that one of them sees at a time, by the kernels that products have.
// The results are those of the plain loops of ../attention.cpp but for the order of sums, and for NaN: one in v, or that an Inf makes
// there, reaches all queries of a block.
#include <algorithm>
#include <cstring>
#include <limits>

#include "../../formats/accumulator.h"
#include "../../formats/cast_counts.h"
#include "../../formats/convert.h"
#include "../../kernels/contraction_operand.h"
#include "../../kernels/formulas.h"
#include "../../kernels/loops.h"
#include "../../ops/cpu_backend.h"
#include "../../support/multiversion.h"
#include "../../support/parallel.h"
#include "../../tensor/memory.h"
#include "../kernels.h"
#include "../rows.h"
#include "bf16_gemm.h"
#include "f32_gemm.h"
#include "kernels.h"

namespace gradual::fast {
namespace {

using namespace cpu;  // the products and loops of this room and the one above

inline constexpr std::int64_t kQueries = 64;  // that meet their keys together
inline constexpr float kLeast = -std::numeric_limits<float>::infinity();

// The matrices [rows, cols] of a tensor [.., rows, cols], with neighbours in the last dim side by side.
struct Matrices {
  Tensor tensor;
  std::int64_t rows, cols, stride;
  explicit Matrices(const Tensor& t)
      : tensor(t.strides().back() == 1 ? t : t.contiguous()),
        rows(t.size(-2)),
        cols(t.size(-1)),
        stride(tensor.strides()[t.dim() - 2]) {}
  // Row `row` of matrix i.
  char* at(std::int64_t i, std::int64_t row) const {
    const Shape &sizes = tensor.sizes(), &strides = tensor.strides();
    std::int64_t offset = row * stride;
    for (int d = tensor.dim() - 3; d >= 0; i /= sizes[d--]) offset += i % sizes[d] * strides[d];
    return static_cast<char*>(tensor.raw()) + offset * width();
  }
  std::int64_t width() const { return static_cast<std::int64_t>(size_of(tensor.dtype())); }
  template <class T> MatrixRef<T> ref(std::int64_t i, std::int64_t row = 0) const {
    return {reinterpret_cast<const T*>(at(i, row)), stride, 1};
  }
};

// Rows from `first` on of matrix i become `values`, rounded in `room`.
void put(const Matrices& to, std::int64_t i, std::int64_t first, std::int64_t rows, const float* values, void* room,
         CastCounts* counts) {
  const void* from = values;
  if (to.tensor.dtype() != DType::f32) {
    cast_and_store(to.tensor.dtype(), values, room, 1, rows * to.cols, counts);
    from = room;
  }
  const std::int64_t bytes = to.cols * to.width(), across = to.stride * to.width();
  char* const at = to.at(i, first);
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(at + r * across, static_cast<const char*>(from) + r * bytes, static_cast<std::size_t>(bytes));
}
// As many rows of matrix i as floats without gaps.
void get(const Matrices& from, std::int64_t i, std::int64_t first, std::int64_t rows, float* values) {
  const char* const at = from.at(i, first);
  const std::int64_t across = from.stride * from.width();
  for (std::int64_t r = 0; r < rows; ++r)
    fetch_and_cast(from.tensor.dtype(), at + r * across, 1, values + r * from.cols, from.cols);
}

template <class T> MatrixRef<T> transposed(const MatrixRef<T>& m) { return {m.data, m.col_stride, m.row_stride}; }

// c [m, n] = a [m, k] b [k, n] in f32.
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const MatrixRef<BFloat16>& a,
              const MatrixRef<BFloat16>& b, float* c) {
  bf16_product<float>({m, n, k, a, b, nullptr, c, n});
}
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const MatrixRef<float>& a, const MatrixRef<float>& b,
              float* c) {
  if (suits_f32_product(m, n, k)) return f32_product({m, n, k, a, b, nullptr, c, n});
  std::fill_n(c, m * n, 0.0F);
  gemm<float>({m, n, k, a, b, c, n});
}

// A block of f32 numbers as the products' operand: themselves, or rounded to `room`. Of them `unseen` are zeros that no query
// sees, which are not counted.
MatrixRef<float> operand(const float* values, std::int64_t, std::int64_t cols, std::int64_t, float*, CastCounts*) {
  return {values, cols, 1};
}
MatrixRef<BFloat16> operand(const float* values, std::int64_t rows, std::int64_t cols, std::int64_t unseen,
                            BFloat16* room, CastCounts* counts) {
  cast_and_store(DType::bf16, values, room, 1, rows * cols, counts);
  if (counts)
    counts->elements -= static_cast<std::uint64_t>(unseen), counts->zeros -= static_cast<std::uint64_t>(unseen);
  return {room, cols, 1};
}

// What forward and backward share: the geometry, and blocks of scores.
template <class T> struct Heads {
  Matrices q, k, v;
  std::int64_t heads, queries, keys, size, values;
  bool causal;
  float scale;

  Heads(const AttentionAttrs& a, const Tensor& qs, const Tensor& ks, const Tensor& vs)
      : q(qs),
        k(ks),
        v(vs),
        heads(numel(qs.sizes().first(qs.dim() - 2))),
        queries(q.rows),
        keys(k.rows),
        size(q.cols),
        values(v.cols),
        causal(a.causal),
        scale(static_cast<float>(attention_scale(a, size))) {}
  std::int64_t blocks() const { return (queries + kQueries - 1) / kQueries; }
  std::int64_t count(std::int64_t first) const { return std::min(kQueries, queries - first); }
  // Keys that a query sees; and that any of a block does.
  std::int64_t seen(std::int64_t query) const { return causal ? std::min(query + 1, keys) : keys; }
  std::int64_t met(std::int64_t first) const { return seen(first + count(first) - 1); }
  // Keys of a block that its queries do not see, in all.
  std::int64_t unseen(std::int64_t first) const {
    std::int64_t n = 0;
    for (std::int64_t r = 0; r < count(first); ++r) n += met(first) - seen(first + r);
    return n;
  }

  // q k^T of a block.
  void scores(std::int64_t head, std::int64_t first, float* s) const {
    multiply(count(first), met(first), size, q.ref<T>(head, first), transposed(k.ref<T>(head)), s);
  }
};

// Bytes of a number of Ts, so that what follows is aligned to a line.
template <class T> std::size_t room_for(std::int64_t n) {
  return (static_cast<std::size_t>(n) * sizeof(T) + 63) / 64 * 64;
}

// Makes a row of scores exp(scale s - top) with their largest as top, zeros where nothing is seen; returns the sum.
float exponentials(float* s, std::int64_t seen, std::int64_t n, float scale, float& top) {
  constexpr int kParts = 16;
  float largest[kParts];
  std::fill_n(largest, kParts, kLeast);
  for (std::int64_t i = 0; i < seen; ++i) s[i] *= scale;
  std::fill(s + seen, s + n, kLeast);
  std::int64_t i = 0;
  for (; i + kParts <= n; i += kParts)
    for (int p = 0; p < kParts; ++p) largest[p] = s[i + p] > largest[p] ? s[i + p] : largest[p];
  for (; i < n; ++i) largest[0] = s[i] > largest[0] ? s[i] : largest[0];
  top = pairwise(largest, [](float a, float b) { return b > a ? b : a; });
  const float shift = top == kLeast ? 0 : top;  // -Inf all over: exp(-Inf) is 0, and a NaN stays one
  for (i = 0; i < n; ++i) s[i] = math::exp(s[i] - shift);
  std::fill(s + seen, s + n, 0.0F);
  return blocked_sum<float>(seen, [=](std::int64_t j) { return s[j]; });
}

template <class T> void forward(const Heads<T>& h, const Matrices& y, float* logsumexp) {
  const std::size_t scores = room_for<float>(kQueries * h.keys), sums = room_for<float>(kQueries * h.values);
  const std::int64_t work = kQueries * h.keys * (h.size + h.values);
  CastCounts* const counts = counts_for(DType::f32, dtype_of<T>);
  parallel_for(h.heads * h.blocks(), std::max<std::int64_t>(1, kWorthThreads / std::max<std::int64_t>(1, work)),
               [&](std::int64_t task, std::int64_t end) {
                 const Scratch scratch(scores + sums + room_for<T>(kQueries * std::max(h.keys, h.values)));
                 auto* const own = scratch.as<char>();
                 auto *const s = reinterpret_cast<float*>(own), *const out = reinterpret_cast<float*>(own + scores);
                 auto* const narrow = reinterpret_cast<T*>(own + scores + sums);
                 CastCounts mine;
                 CastCounts* const counted = counts ? &mine : nullptr;
                 for (; task < end; ++task) {
                   const std::int64_t head = task / h.blocks(), first = task % h.blocks() * kQueries;
                   const std::int64_t rows = h.count(first), n = h.met(first);
                   h.scores(head, first, s);
                   float total[kQueries];
                   float* const log = logsumexp + head * h.queries + first;
                   vectorized([=, &h, &total] {
                     for (std::int64_t r = 0; r < rows; ++r) {
                       float top;
                       total[r] = exponentials(s + r * n, h.seen(first + r), n, h.scale, top);
                       log[r] = top + math::log(total[r]);
                     }
                   });
                   const MatrixRef<T> p = operand(s, rows, n, h.unseen(first), narrow, counted);
                   multiply(rows, h.values, n, p, h.v.template ref<T>(head), out);
                   vectorized([=, &total, values = h.values] {
                     for (std::int64_t r = 0; r < rows; ++r)
                       for (std::int64_t f = 0; f < values; ++f) out[r * values + f] /= total[r];
                   });
                   put(y, head, first, rows, out, narrow, counted);
                 }
                 if (counts) merge_counts(counts, mine);
               });
}

void add_to(float* sums, const float* x, std::int64_t n) {
  vectorized([=] {
    for (std::int64_t i = 0; i < n; ++i) sums[i] += x[i];
  });
}

// p = exp(score - logsumexp) again; dv = p^T dy, dscore = p (dy v^T - dy y), dq = dscore k, dk = dscore^T q: of one head.
template <class T>
void backward_of_head(const Heads<T>& h, std::int64_t head, const Matrices& dy, const Matrices& y,
                      const float* logsumexp, const Matrices& dq, const Matrices& dk, const Matrices& dv,
                      CastCounts* counts) {
  const std::int64_t widest = std::max(h.size, h.values);
  const std::size_t scores = room_for<float>(kQueries * h.keys), keys = room_for<float>(h.keys * widest);
  const std::size_t rows_of = room_for<float>(kQueries * widest),
                    narrow = room_for<T>(kQueries * std::max(h.keys, widest));
  const Scratch scratch(2 * scores + 3 * keys + 2 * rows_of + narrow);
  char* at = scratch.as<char>();
  const auto take = [&at](std::size_t bytes) {
    char* const block = at;
    at += bytes;
    return reinterpret_cast<float*>(block);
  };
  float *const p = take(scores), *const dp = take(scores), *const sum_k = take(keys), *const sum_v = take(keys);
  float *const part = take(keys), *const out = take(rows_of), *const y_rows = take(rows_of);
  auto* const room = reinterpret_cast<T*>(at);
  std::fill_n(sum_k, h.keys * h.size, 0.0F);
  std::fill_n(sum_v, h.keys * h.values, 0.0F);
  for (std::int64_t first = 0; first < h.queries; first += kQueries) {
    const std::int64_t rows = h.count(first), n = h.met(first), unseen = h.unseen(first);
    h.scores(head, first, p);
    multiply(rows, n, h.values, dy.ref<T>(head, first), transposed(h.v.template ref<T>(head)), dp);
    get(dy, head, first, rows, out);
    get(y, head, first, rows, y_rows);
    float along[kQueries];  // dy y of each query
    vectorized([=, &along, values = h.values] {
      for (std::int64_t r = 0; r < rows; ++r)
        along[r] =
            blocked_sum<float>(values, [=](std::int64_t i) { return out[r * values + i] * y_rows[r * values + i]; });
    });
    const float* const log = logsumexp + head * h.queries + first;
    vectorized([=, &h, &along] {
      for (std::int64_t r = 0; r < rows; ++r) {
        float *const x = p + r * n, *const dx = dp + r * n;
        const std::int64_t seen = h.seen(first + r);
        const float scale = h.scale, shift = log[r], row = along[r];
        for (std::int64_t i = 0; i < n; ++i) {
          x[i] = math::exp(x[i] * scale - shift);
          dx[i] = x[i] * (dx[i] - row) * scale;
        }
        std::fill(x + seen, x + n, 0.0F);
        std::fill(dx + seen, dx + n, 0.0F);
      }
    });
    multiply(n, h.values, rows, transposed(operand(p, rows, n, unseen, room, counts)), dy.ref<T>(head, first), part);
    add_to(sum_v, part, n * h.values);
    const MatrixRef<T> ds = operand(dp, rows, n, unseen, room, counts);
    multiply(n, h.size, rows, transposed(ds), h.q.template ref<T>(head, first), part);
    add_to(sum_k, part, n * h.size);
    multiply(rows, h.size, n, ds, h.k.template ref<T>(head), out);
    put(dq, head, first, rows, out, room, counts);
  }
  put(dk, head, 0, h.keys, sum_k, part, counts);
  put(dv, head, 0, h.keys, sum_v, part, counts);
}

bool has_products(DType dtype) {
  if (current_accumulator()) return false;
  if (dtype == DType::bf16) return has_bf16_product();
  return dtype == DType::f32 && !rounds_to_tf32(dtype);
}

// Whether rows lie where products can write them.
bool in_rows(const Tensor& t) { return t.numel() > 0 && t.strides().back() == 1; }

// Whether this is faster than the products and the softmax that attention consists of: causal, for it leaves out most of what is
// not seen, and long.
bool suits(const OpCall& call) {
  constexpr std::int64_t kLong = 128;
  const Tensor &q = call[0], &k = call[1], &v = call[2];
  return call.get<AttentionAttrs>().causal && q.size(-2) >= kLong && cpu_backend() >= CpuBackend::fast &&
         has_products(q.dtype()) && in_rows(q) && in_rows(k) && in_rows(v);
}

// Offers of flash_attention and its backward. False, with nothing written, for f64, f16 and TF32, and for results without
// rows. bf16 probabilities and score gradients are rounded to bf16 once for their products; all sums are f32.
bool attention(const OpCall& call, Outputs& out) {
  if (!has_products(out[0].dtype()) || !in_rows(out[0]) || call[1].numel() == 0) return false;
  const auto& a = call.get<AttentionAttrs>();
  const Matrices y(out[0]);
  auto* const logsumexp = out[1].data<float>();
  if (out[0].dtype() == DType::bf16) forward<BFloat16>({a, call[0], call[1], call[2]}, y, logsumexp);
  else forward<float>({a, call[0], call[1], call[2]}, y, logsumexp);
  return true;
}

bool attention_backward(const OpCall& call, Outputs& out) {
  if (!has_products(out[0].dtype()) || !in_rows(out[0]) || !in_rows(out[1]) || !in_rows(out[2])) return false;
  if (call[0].dtype() != out[0].dtype() || call[4].dtype() != out[0].dtype() || call[5].dtype() != DType::f32)
    return false;
  const Matrices dy(call[0]), y(call[4]), dq(out[0]), dk(out[1]), dv(out[2]);
  const Tensor logsumexp = call[5].contiguous();
  const auto run = [&]<class T>(T) {
    const Heads<T> h(call.get<AttentionAttrs>(), call[1], call[2], call[3]);
    const std::int64_t work = h.queries * h.keys * (3 * h.size + 2 * h.values);
    CastCounts* const counts = counts_for(DType::f32, dtype_of<T>);
    parallel_for(h.heads, std::max<std::int64_t>(1, kWorthThreads / work), [&](std::int64_t head, std::int64_t end) {
      CastCounts mine;
      for (; head < end; ++head)
        backward_of_head(h, head, dy, y, logsumexp.data<float>(), dq, dk, dv, counts ? &mine : nullptr);
      if (counts) merge_counts(counts, mine);
    });
  };
  if (out[0].dtype() == DType::bf16) run(BFloat16());
  else run(float());
  return true;
}

}  // namespace

void register_attention() {
  columns().cpu_capability[static_cast<int>(OpId::flash_attention)].suits = suits;
  set_offer(OpId::flash_attention, attention);
  set_offer(OpId::flash_attention_backward, attention_backward);
}

}  // namespace gradual::fast
