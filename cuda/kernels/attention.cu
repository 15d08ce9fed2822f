// flash_attention and its backward; counterpart of core/cpu/attention.cpp. Calls that the library does not take are
// computed by products and kernels over the rows of scores, all at once, in f32 (f64 for f64). f16 and bf16 operands
// are exact in TF32, which their products use; the probabilities are rounded to TF32.
#include <algorithm>

#include "attention.h"

#include "../../core/kernels/formulas.h"
#include "../../core/ops/compute_mode.h"
#include "../cuda.h"
#include "counted_again.h"
#include "kernels.h"
#include "movement.h"
#include "reduce.h"
#include "rows.h"

namespace gradual::cuda {
namespace {

// [.., L, E] as [batch, heads, L, E], of at most four dims.
Tensor four_dims(const Tensor& t) {
  Shape sizes, strides;
  for (int missing = 4 - t.dim(); missing > 0; --missing) {
    sizes.push_back(1);
    strides.push_back(std::max<std::int64_t>(8, t.numel()));
  }
  for (int d = 0; d < t.dim(); ++d) {
    sizes.push_back(t.sizes()[d]);
    strides.push_back(t.strides()[d]);
  }
  return as_strided(t, sizes, strides, t.offset());
}
// [.., L] as [.., L, 1].
Tensor column(const Tensor& t) {
  Shape sizes = t.sizes();
  Shape strides = t.strides();
  sizes.push_back(1);
  strides.push_back(1);
  return as_strided(t, sizes, strides, t.offset());
}

// --- by parts --------------------------------------------------------------------------------------------------------

// [.., rows, length] row-major, as [heads, rows, length].
Tensor matrices(const Tensor& t) {
  const std::int64_t rows = t.size(-2);
  const std::int64_t length = t.size(-1);
  const std::int64_t heads = numel(t.sizes().first(t.dim() - 2));
  return as_strided(t, {heads, rows, length}, {rows * length, length, 1}, t.offset());
}
Tensor transposed(const Tensor& t) {
  return as_strided(t, {t.size(0), t.size(2), t.size(1)}, {t.strides()[0], t.strides()[2], t.strides()[1]}, t.offset());
}
Tensor product(const Tensor& a, const Tensor& b) {
  const Tensor* const inputs[] = {&a, &b};
  const Attrs none{};
  OpCall call{OpId::matmul, TensorRefs(inputs, 2), &none, {}};
  OutSpec spec[kMaxOutputs];
  columns().infer[static_cast<int>(call.op)](call, spec);
  call.specs = spec;
  return next_below_observe(call)[0];
}
Tensor scratch_like(const Tensor& t) { return empty(t.sizes(), {.dtype = t.dtype(), .device = t.device()}); }

// The keys that a query attends to.
struct Seen {
  std::int64_t queries;  // of a causal mask; 0: all
  template <class R> __device__ std::int64_t operator()(const R& row) const {
    const std::int64_t n = queries ? row.index % queries + 1 : row.length;
    return n < row.length ? n : row.length;
  }
};

template <class C> struct Probabilities {  // of rows of products
  Seen seen_by;
  C scale;
  C* logsumexp;
  template <class R> __device__ void operator()(R& row) const {
    constexpr C kLeast = -std::numeric_limits<C>::infinity();
    const std::int64_t seen = seen_by(row);
    const C largest =
        row.largest([&](std::int64_t i, const auto& x, const auto&) { return i < seen ? x[0] * scale : kLeast; });
    const C shift = largest == kLeast ? C{0} : largest;
    const auto exps = [&](std::int64_t i, const auto& x, const auto&) {
      return i < seen ? math::exp(x[0] * scale - shift) : C{0};
    };
    row.keep(exps);
    const C sum = row.sum([&](std::int64_t i, const auto& x, const auto& p) { return row.kept(exps, i, x, p); });
    row.write(
        [&](std::int64_t i, const auto& x, const auto& p) { return i < seen ? row.kept(exps, i, x, p) / sum : C{0}; });
    if (row.first_lane()) logsumexp[row.index] = largest + math::log(sum);
  }
};
template <class C> struct SameProbabilities {  // from the logsumexp
  Seen seen_by;
  C scale;
  const C* logsumexp;
  template <class R> __device__ void operator()(R& row) const {
    const std::int64_t seen = seen_by(row);
    const C all = logsumexp[row.index];
    row.write(
        [&](std::int64_t i, const auto& x, const auto&) { return i < seen ? math::exp(x[0] * scale - all) : C{0}; });
  }
};
template <class C> struct ScoreGradients {  // x: probabilities, their gradients
  C scale;
  const C* along;
  template <class R> __device__ void operator()(R& row) const {
    const C mean = along[row.index];
    row.write(
        [&](std::int64_t, const auto& x, const auto&) { return x[0] == 0 ? C{0} : x[0] * (x[1] - mean) * scale; });
  }
};
template <class C> struct Dot {
  using Number = C;
  using Acc = C;
  static constexpr int kInputs = 2;
  C* to;
  __device__ C identity() const { return 0; }
  __device__ C map(const C (&x)[2], std::int64_t, std::int64_t) const { return x[0] * x[1]; }
  __device__ C combine(C a, C b) const { return a + b; }
  __device__ void finish(C sum, std::int64_t i) const { to[i] = sum; }
};

template <class C, int N, class Body>
void over_rows(const Tensor& out, const Tensor* const (&in)[N], const Body& body) {
  const Tensor* operands[N + 1] = {&out};
  for (int k = 0; k < N; ++k) operands[k + 1] = in[k];
  const Tensor* const(&all)[N + 1] = operands;
  const CountingStores counting(dtype_of<C>, out.dtype());
  for_rows(row_set<C>(all, out.dim() - 1, counting), body);
}

// Operands as C, row-major: [heads, rows, length].
template <class C> Tensor loaded(const Tensor& t) { return matrices(dense(t, dtype_of<C>)); }
template <class C> MatmulPrecision precision(const Tensor& q) {
  return is_half(q.dtype()) ? MatmulPrecision::tf32 : matmul_precision();
}

template <class C> void forward_by_parts(const OpCall& call, Outputs& out, const Seen& seen, C scale) {
  const CategoryScope scope(Category::workspace);
  const MatmulPrecisionScope how(precision<C>(call[0]));
  const Tensor products = product(loaded<C>(call[0]), transposed(loaded<C>(call[1])));
  const Tensor p = scratch_like(products);
  over_rows<C, 1>(p, {&products}, Probabilities<C>{seen, scale, static_cast<C*>(out[1].raw())});
  copy_elements(out[0],
                as_strided(product(p, loaded<C>(call[2])), out[0].sizes(), contiguous_strides(out[0].sizes()), 0));
}

template <class C> void backward_by_parts(const OpCall& call, Outputs& out, const Seen& seen, C scale) {
  const CategoryScope scope(Category::workspace);
  const MatmulPrecisionScope how(precision<C>(call[1]));
  const Tensor dy = loaded<C>(call[0]);
  const Tensor q = loaded<C>(call[1]);
  const Tensor k = loaded<C>(call[2]);
  const Tensor v = loaded<C>(call[3]);
  const Tensor y = loaded<C>(call[4]);
  const Tensor logsumexp = dense(call[5], dtype_of<C>);
  const Workspace along(static_cast<std::size_t>(logsumexp.numel()) * sizeof(C));
  const Tensor* const both[] = {&dy, &y};
  reduce(reduce_source(both, 1u << 2), Dot<C>{along.as<C>()});
  const Tensor scores = product(q, transposed(k));
  const Tensor p = scratch_like(scores);
  over_rows<C, 1>(p, {&scores}, SameProbabilities<C>{seen, scale, static_cast<const C*>(logsumexp.raw())});
  const Tensor dp = product(dy, transposed(v));
  const Tensor& dscores = scores;  // their memory is free
  over_rows<C, 2>(dscores, {&p, &dp}, ScoreGradients<C>{scale, along.as<C>()});
  const Tensor made[] = {product(dscores, k), product(transposed(dscores), q), product(transposed(p), dy)};
  for (int i = 0; i < 3; ++i)
    copy_elements(out[i], as_strided(made[i], out[i].sizes(), contiguous_strides(out[i].sizes()), 0));
}

// --- the rows --------------------------------------------------------------------------------------------------------

bool by_library(const OpCall& call, const Outputs& out, bool backward) {
  if (!library_kernels() || call[0].dim() > 4) return false;
  const auto& a = call.get<AttentionAttrs>();
  const int first = backward ? 1 : 0;
  Tensor logsumexp = backward ? dense(call[5], call[5].dtype()) : out[1];
  if (!aligned(logsumexp.raw())) logsumexp = copied(logsumexp, logsumexp.dtype());
  Attention all{.causal = a.causal,
                .scale = attention_scale(a, call[first].size(-1)),
                .q = four_dims(call[first]),
                .k = four_dims(call[first + 1]),
                .v = four_dims(call[first + 2]),
                .y = four_dims(backward ? call[4] : out[0]),
                .logsumexp = four_dims(column(logsumexp))};
  if (backward) {
    all.dy = four_dims(call[0]);
    all.dq = four_dims(out[0]);
    all.dk = four_dims(out[1]);
    all.dv = four_dims(out[2]);
  }
  for (const Tensor* t : {&all.q, &all.k, &all.v, &all.y, &all.dy})
    if (t->defined() && (t->numel() == 0 || t->dtype() != all.q.dtype())) return false;
  return all.logsumexp.dtype() == DType::f32 && attend(all);
}

void flash_attention(const OpCall& call, Outputs& out) {
  if (out[1].numel() == 0) return;
  if (call[1].size(-2) == 0) {  // no keys
    if (out[0].numel() > 0) fill_elements(out[0], 0);
    return fill_elements(out[1], -std::numeric_limits<double>::infinity());
  }
  const auto& a = call.get<AttentionAttrs>();
  const Seen seen{a.causal ? call[0].size(-2) : 0};
  const double scale = attention_scale(a, call[0].size(-1));
  const auto ours = [&](Outputs& y) {
    cpu::visit_floating(y[0].dtype(), [&]<class C>(C) { forward_by_parts<C>(call, y, seen, static_cast<C>(scale)); });
  };
  if (by_library(call, out, false)) count_again(out, ours);
  else ours(out);
}

void flash_attention_backward(const OpCall& call, Outputs& out) {
  if (call[5].numel() == 0 || call[2].size(-2) == 0 || call[0].numel() == 0) {  // no scores, or no gradient
    for (int i = 0; i < 3; ++i)
      if (out[i].numel() > 0) fill_elements(out[i], 0);
    return;
  }
  const auto& a = call.get<AttentionAttrs>();
  const Seen seen{a.causal ? call[1].size(-2) : 0};
  const double scale = attention_scale(a, call[1].size(-1));
  const auto ours = [&](Outputs& dx) {
    cpu::visit_floating(dx[0].dtype(),
                        [&]<class C>(C) { backward_by_parts<C>(call, dx, seen, static_cast<C>(scale)); });
  };
  if (by_library(call, out, true)) count_again(out, ours);
  else ours(out);
}

// The calls of cuDNN's kernels: half operands in rows of a multiple of 8 numbers, at most 128.
bool suits_flash_attention(const OpCall& call) {
  for (int i = 0; i < 3; ++i) {
    const Tensor& t = call[i];
    if (!is_half(t.dtype()) || t.dim() > 4 || t.numel() == 0 || t.strides().back() != 1) return false;
    if (t.size(-1) % 8 != 0 || t.size(-1) > 128) return false;
  }
  return true;
}

}  // namespace

void register_attention() {
  capability(OpId::flash_attention).suits = suits_flash_attention;
  set_kernel(OpId::flash_attention, flash_attention);
  set_kernel(OpId::flash_attention_backward, flash_attention_backward);
}

}  // namespace gradual::cuda
