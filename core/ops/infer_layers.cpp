// The inference column of contractions, pooling, normalisation, attention and losses.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "../support/throwf.h"
#include "fusions.h"
#include "infer.h"

namespace gradual::inference {

static DType statistics_dtype(DType x) { return x == DType::f64 ? DType::f64 : DType::f32; }

static DType contraction_dtype(DType d) { return is_f8(d) ? DType::f32 : d; }

void infer_matmul(const OpCall& c, OutSpec* out) {
  const Tensor& a = need(c, 0, "two tensors");
  const Tensor& b = need(c, 1, "two tensors");
  if (a.dim() < 1 || b.dim() < 1) throw_error(c, "a 0-d tensor has no matrix product; use *");
  const int a_rows = a.dim() > 1;  // number of result dims from a's rows, and from b's columns
  const int b_columns = b.dim() > 1;
  const std::int64_t k = a.sizes().back();
  const std::int64_t kb = b.sizes()[b.dim() - 1 - b_columns];
  if (k != kb)
    throwf(c, "inner dimensions {} and {} differ{}", k, kb,
           b_columns && b.sizes().back() == k ? "; did you mean transpose(-2, -1) of the second?" : "");
  out->sizes =
      broadcast_shapes(a.sizes().first(a.dim() - 1 - a_rows), b.sizes().first(b.dim() - 1 - b_columns), "matmul");
  if (a_rows) out->sizes.push_back(a.sizes()[a.dim() - 2]);
  if (b_columns) out->sizes.push_back(b.sizes().back());
  out->dtype = contraction_dtype(a.dtype());
}

void infer_linear(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "an input");
  const Tensor& w = need(c, 1, "a weight", Kind::any, 2);
  if (x.dim() < 1 || x.sizes().back() != w.sizes()[1])
    throwf(c, "the input's last size must be the weight's second, {}", w.sizes()[1]);
  need_same_sizes(c, 2, {w.sizes()[0]}, "bias");
  out->sizes = x.sizes();
  out->sizes[x.dim() - 1] = w.sizes()[0];
  out->dtype = contraction_dtype(x.dtype());
}

// A fusion whose second op is elementwise, in the output of the first and in others of its sizes.
void infer_fusion(const OpCall& c, OutSpec* out) {
  const Fusion& f = *fusion_of(c.op);
  const Attrs attrs = f.first_attrs(*c.attrs);
  OpCall first = c;  // messages name the whole
  first.attrs = &attrs;
  columns().infer[static_cast<int>(f.first)](first, out);
  if (f.middle > 0) out[f.middle] = out[0];
  for (int i = op_info(f.first).inputs; i < c.inputs.size(); ++i) {
    need(c, 0, "a tensor", Kind::real);
    const Tensor& residual = need(c, i, "a residual", Kind::real);
    need_same_sizes(c, i, out->sizes, "the residual");
    out->dtype = promote(out->dtype, residual.dtype());
    if (out->has_strides && is_channels_last(out->sizes, out->strides)) continue;
    out->has_strides = false;
    keep_strides(residual, *out);  // as the op of two operands does
  }
}

void infer_linear_backward_weight(const OpCall& c, OutSpec* out) {
  const Tensor& dy = need(c, 0, "a gradient", Kind::real, 2);
  const Tensor& x = need(c, 1, "an input", Kind::real, 2);
  if (dy.sizes()[0] != x.sizes()[0]) throwf(c, "{} rows of gradients for {} inputs", dy.sizes()[0], x.sizes()[0]);
  out[0] = {dy.dtype(), {dy.sizes()[1], x.sizes()[1]}};
  out[1] = {dy.dtype(), {dy.sizes()[1]}};
}

// The output is channels-last if t is, or if `known` says that the images are.
static void keep_channels_last(const Tensor& t, OutSpec* out, bool known = false) {
  if (!known && !is_channels_last(t.sizes(), t.strides())) return;
  const Shape& s = out->sizes;
  out->strides = {s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]};
  out->has_strides = true;
}

// [n, channels, height, width]: the number of windows of `extent` that fit into the padded image.
static Shape windows(const OpCall& c, const Shape& image, std::int64_t channels, Size2 extent, Size2 stride,
                     Size2 padding) {
  Shape out{image[0], channels, 0, 0};
  for (int i = 0; i < 2; ++i) {
    const std::int64_t room = image[2 + i] + 2 * padding[i] - extent[i];
    if (room < 0) throw_error(c, "the kernel is larger than the padded input");
    out[2 + i] = room / stride[i] + 1;
  }
  return out;
}

// y = conv2d(x, w) and its two gradients: each computes one of x, w, y from the other two.
void infer_conv2d(const OpCall& c, OutSpec* out) {
  const Tensor& first = need(c, 0, "an input", Kind::any, 4);
  const Tensor& second = need(c, 1, "a weight or an input", Kind::any, 4);
  const auto& a = c.get<ConvAttrs>();
  for (int i = 0; i < 2; ++i)
    if (a.stride[i] < 1 || a.dilation[i] < 1 || a.padding[i] < 0 ||
        std::max({a.stride[i], a.dilation[i], a.padding[i]}) > kMostExtent)
      throwf(c, "stride and dilation must be at least 1, padding at least 0, all at most {}", kMostExtent);
  if (a.groups < 1) throw_error(c, "groups must be at least 1");
  const Shape& s = second.sizes();
  Shape x = first.sizes();
  Shape w = s;
  if (c.op == OpId::conv2d_backward_input) x = {first.sizes()[0], s[1] * a.groups, a.size[0], a.size[1]};
  if (c.op == OpId::conv2d_backward_weight) {
    x = s;
    w = {first.sizes()[1], s[1] / a.groups, a.size[0], a.size[1]};
  }
  if (x[1] != w[1] * a.groups || w[0] % a.groups != 0)
    throwf(c, "{} input channels, weight for {} x {} groups, {} outputs do not fit", x[1], w[1], a.groups, w[0]);
  if (w[2] < 1 || w[3] < 1) throw_error(c, "the kernel must be at least 1 x 1");
  const Size2 extent{a.dilation[0] * (w[2] - 1) + 1, a.dilation[1] * (w[3] - 1) + 1};
  const Shape y = windows(c, x, w[0], extent, a.stride, a.padding);
  out->dtype = contraction_dtype(first.dtype());
  if (c.op == OpId::conv2d) {
    need_same_sizes(c, 2, {w[0]}, "bias");
    out->sizes = y;
  } else {
    need_same_sizes(c, 0, y, "the gradient");
    out->sizes = c.op == OpId::conv2d_backward_input ? x : w;
  }
  if (c.op != OpId::conv2d_backward_weight) keep_channels_last(first, out);
}

static Shape pooled(const OpCall& c, const Shape& x) {
  const auto& a = c.get<PoolAttrs>();
  for (int i = 0; i < 2; ++i) {
    if (a.kernel[i] < 1 || a.stride[i] < 1) throw_error(c, "kernel and stride must be at least 1");
    if (a.padding[i] < 0 || a.padding[i] > a.kernel[i] / 2) throw_error(c, "padding must be 0 to half the kernel");
  }
  return windows(c, x, x[1], a.kernel, a.stride, a.padding);
}

void infer_pool(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "an input", Kind::real, 4);
  *out = {x.dtype(), pooled(c, x.sizes())};
  keep_channels_last(x, out);
  if (c.op != OpId::max_pool2d) return;
  if (numel(out->sizes) > 0 && (x.sizes()[2] == 0 || x.sizes()[3] == 0)) throw_error(c, "the images have no pixels");
  out[1] = out[0];
  out[1].dtype = DType::i64;
}

// adaptive_avg_pool2d and the gradients of all pools: the attributes give height and width of the result.
void infer_sized_pool(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "an input", Kind::real, 4);
  const auto& a = c.get<PoolAttrs>();
  *out = {x.dtype(), {x.sizes()[0], x.sizes()[1], a.size[0], a.size[1]}};
  if (c.op == OpId::adaptive_avg_pool2d) {
    if (a.size[0] < 1 || a.size[1] < 1) throw_error(c, "the output size must be at least 1 x 1");
    if (x.sizes()[2] < 1 || x.sizes()[3] < 1) throw_error(c, "the input has no pixels");
    return keep_channels_last(x, out);
  }
  if (c.op == OpId::max_pool2d_backward) {
    need(c, 1, "indices", Kind::index);
    need_same_sizes(c, 1, x.sizes(), "indices");
  }
  if (c.op == OpId::avg_pool2d_backward) need_same_sizes(c, 0, pooled(c, out->sizes), "the gradient");
  keep_channels_last(x, out, a.channels_last);
}

// For a norm over x: the shape of weight and bias, and that of the statistics.
static std::pair<Shape, Shape> norm_shapes(const OpCall& c, const Tensor& x) {
  if (c.op == OpId::batch_norm || c.op == OpId::batch_norm_backward) {
    if (x.dim() < 2) throw_error(c, "the input must be [N, C, ..]");
    return {{x.sizes()[1]}, {x.sizes()[1]}};
  }
  const int dims = c.get<NormAttrs>().dims;
  if (dims < 1 || dims > x.dim()) throwf(c, "cannot normalise {} trailing dims of {}", dims, to_string(x.sizes()));
  return {x.sizes().last(dims), x.sizes().first(x.dim() - dims)};
}

void infer_norm(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "an input", Kind::real);
  const auto [parameter, statistics] = norm_shapes(c, x);
  const double eps = c.get<NormAttrs>().eps;
  if (!(eps >= 0 && std::isfinite(eps))) throwf(c, "eps is {}; it must be at least 0 and finite", eps);
  for (int i = 1; i < c.inputs.size(); ++i) {
    need_same_sizes(c, i, parameter, i < 3 ? "weight and bias" : "mean and var");
    if (i < 3 && c[i].defined() && c[i].dtype() != DType::f32 && c[i].dtype() != x.dtype())
      throwf(c, "parameters must be f32{}, given {}",
             x.dtype() == DType::f32 ? "" : " or " + std::string(to_string(x.dtype())), to_string(c[i].dtype()));
  }
  same_contiguous(c, out);
  if (c.op == OpId::batch_norm) {
    keep_strides(x, *out);
    const bool training = c.get<NormAttrs>().training;
    if (!training && !(c[3].defined() && c[4].defined())) throwf(c, "needs running mean and var when not training");
    if (training && x.numel() > 0 && x.numel() / std::max<std::int64_t>(1, parameter[0]) < 2)
      throw_error(c, "training needs more than one value per channel");
  }
  out[1] = {statistics_dtype(x.dtype()), statistics};
  out[2] = out[1];
}

void infer_norm_backward(const OpCall& c, OutSpec* out) {
  need(c, 0, "a gradient");
  const Tensor& x = need(c, 1, "an input", Kind::real);
  const auto [parameter, statistics] = norm_shapes(c, x);
  need_same_sizes(c, 0, x.sizes(), "the gradient");
  need_same_sizes(c, 2, parameter, "weight");
  const bool batch = c.op == OpId::batch_norm_backward;
  if (batch) need_same_sizes(c, 5, parameter, "bias");
  for (int i = 3; i < (batch ? 5 : c.inputs.size()); ++i) {
    need(c, i, "the statistics");
    need_same_sizes(c, i, statistics, "statistics");
  }
  out[0] = {x.dtype(), x.sizes()};
  if (batch) keep_strides(x, out[0]);
  out[1] = {c[2].defined() ? c[2].dtype() : statistics_dtype(x.dtype()), parameter};
  out[2] = out[1];
}

void infer_along(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor", Kind::real);
  if (c.inputs.size() > 1) need_same_sizes(c, 1, x.sizes(), "the output");
  if (const auto& a = c.get<DimAttrs>(); a.causal) {
    if (x.dim() < 2 || a.dim != x.dim() - 1) throw_error(c, "a causal softmax runs over the last dim of [.., L, S]");
    if (c.op != OpId::softmax) throw_error(c, "softmax alone is causal");
  }
  same_contiguous(c, out);
}

// Dense strides with the dims in t's memory order.
static void order_as(const Tensor& t, OutSpec& out) {
  if (t.is_contiguous()) return;
  std::vector<int> order(static_cast<std::size_t>(t.dim()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return t.strides()[a] > t.strides()[b]; });
  out.strides = out.sizes;
  std::int64_t stride = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    out.strides[*d] = stride;
    stride *= std::max<std::int64_t>(1, out.sizes[*d]);
  }
  out.has_strides = true;
}

// flash_attention: the outputs keep the memory order of heads, which are adjacent in a packed projection.
void infer_attention(const OpCall& c, OutSpec* out) {
  const bool back = c.op == OpId::flash_attention_backward;
  if (back) need(c, 0, "a gradient", Kind::real);
  const Tensor& q = need(c, back ? 1 : 0, "queries", Kind::real);
  const Tensor& k = need(c, back ? 2 : 1, "keys", Kind::real);
  const Tensor& v = need(c, back ? 3 : 2, "values", Kind::real);
  const int n = q.dim();
  if (n < 2 || k.dim() != n || v.dim() != n || k.sizes().first(n - 2) != q.sizes().first(n - 2) ||
      v.sizes().first(n - 2) != q.sizes().first(n - 2) || k.size(-1) != q.size(-1) || v.size(-2) != k.size(-2))
    throwf(c, "q, k and v must be [.., L, E], [.., S, E] and [.., S, F], given {}, {} and {}", to_string(q.sizes()),
           to_string(k.sizes()), to_string(v.sizes()));
  if (k.dtype() != q.dtype() || v.dtype() != q.dtype()) throw_error(c, "q, k and v must have one dtype");
  if (c.get<AttentionAttrs>().dropout != 0) throw_error(c, "no dropout here: scaled_dot_product_attention has it");
  Shape y = q.sizes();
  y[n - 1] = v.size(-1);
  if (!back) {
    out[0] = {q.dtype(), y};
    order_as(q, out[0]);
    out[1] = {statistics_dtype(q.dtype()), q.sizes().first(n - 1)};
    return;
  }
  need(c, 4, "the output", Kind::real);
  need(c, 5, "the logsumexp", Kind::real);
  need_same_sizes(c, 0, y, "the gradient");
  need_same_sizes(c, 4, y, "the output");
  need_same_sizes(c, 5, q.sizes().first(n - 1), "the logsumexp");
  for (int i = 0; i < 3; ++i) {
    out[i] = {q.dtype(), c[1 + i].sizes()};
    order_as(c[1 + i], out[i]);
  }
}

void infer_cross_entropy(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "logits", Kind::real, 2);
  const Tensor& y = need(c, 1, "classes", Kind::index);
  need_same_sizes(c, 1, {x.sizes()[0]}, "classes");
  const auto& a = c.get<CrossEntropyAttrs>();
  if (!(a.label_smoothing >= 0 && a.label_smoothing <= 1)) throw_error(c, "label_smoothing must be 0 to 1");
  if (a.narrow != DType::f32 && !(is_half(a.narrow) && x.dtype() == a.narrow))
    throw_error(c, "narrow is f16 or bf16, and the logits' dtype");
  const DType computed = a.narrow != DType::f32 ? DType::f32 : x.dtype();
  out[0] = {computed, a.reduction == Reduction::none ? y.sizes() : Shape{}};
  out[1] = {computed, x.sizes()};
}

void infer_cross_entropy_backward(const OpCall& c, OutSpec* out) {
  need(c, 0, "a gradient");
  const Tensor& x = need(c, 1, "log-probabilities", Kind::real, 2);
  need(c, 2, "classes", Kind::index, 1);
  const Shape rows{x.sizes()[0]};
  need_same_sizes(c, 2, rows, "classes");
  const auto& a = c.get<CrossEntropyAttrs>();
  need_same_sizes(c, 0, a.reduction == Reduction::none ? rows : Shape{}, "the gradient");
  *out = {a.narrow != DType::f32 ? a.narrow : x.dtype(), x.sizes()};
}

}  // namespace gradual::inference
