// The inference column: from inputs and attributes to the outputs' dtypes and shapes, with every check of a call.
#include <algorithm>
#include <utility>

#include "dispatch.h"
#include "failf.h"

namespace gradual {
namespace {

enum class Kind { any, real, index };  // real: f64, f32, f16 or bf16; index: i64
// Input i; Error saying that the op needs `what` where it is undefined, or that its dtype or number of dims will not do.
const Tensor& need(const OpCall& c, int i, const char* what = "a tensor", Kind kind = Kind::any, int dims = -1) {
  if (i >= c.inputs.size() || !c[i].defined()) failf(c, "needs {}", what);
  const Tensor& t = c[i];
  if (kind == Kind::real && (!t.is_floating() || is_f8(t.dtype())))
    fail(c, "takes f64, f32, f16 or bf16; cast with to(DType::f32)");
  if (kind == Kind::index && t.dtype() != DType::i64) failf(c, "{} must be i64, given {}", what, name(t.dtype()));
  if (dims >= 0 && t.ndim() != dims) failf(c, "input {} must be {}-d, given {}", i, dims, to_string(t.sizes()));
  return t;
}
void set(InferFn fn, std::initializer_list<OpId> ops) {
  for (OpId op : ops) columns().infer[static_cast<int>(op)] = fn;
}
void refuse_f8(const OpCall& c, const Tensor& t) {
  if (is_f8(t.dtype()))
    fail(c, "f8 tensors allow cast, copies, views and contractions only; cast to a wider float first");
}
// Unless undefined.
void need_same_sizes(const OpCall& c, int i, const Shape& sizes, const char* what) {
  if (c[i].defined() && c[i].sizes() != sizes)
    failf(c, "{} must be {}, given {}", what, to_string(sizes), to_string(c[i].sizes()));
}

// Elementwise outputs keep the stride order of a full-size input that is dense (channels-last stays so).
void keep_strides(const Tensor& t, OutSpec& out) {
  if (t.is_contiguous() || !is_dense(t.sizes(), t.strides())) return;
  out.strides = t.strides();
  out.has_strides = true;
}
// dtype and sizes of input 0.
void same_contiguous(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0);
  out->dtype = x.dtype();
  out->sizes = x.sizes();
}
// The same, in its stride order.
void same(const OpCall& c, OutSpec* out) {
  same_contiguous(c, out);
  keep_strides(c[0], *out);
}

void infer_dropout_add(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor", Kind::real);
  const Tensor& residual = need(c, 1, "a residual", Kind::real);
  need_same_sizes(c, 1, x.sizes(), "the residual");
  out->dtype = promote(x.dtype(), residual.dtype());
  out->sizes = x.sizes();
  if (!residual.is_contiguous() || !x.is_contiguous()) keep_strides(residual, *out);  // as add does
}

// dy and what the op saved, of the same sizes.
void infer_activation_backward(const OpCall& c, OutSpec* out) {
  same(c, out);
  need_same_sizes(c, 1, need(c, 0).sizes(), "the saved tensor");
  need(c, 1, "the saved tensor", Kind::real);
}

// What most arithmetic is: row-major floats of one shape and dtype.
bool broadcast_nothing(const OpCall& c, OutSpec* out) {
  if (c.inputs.size() != 2) return false;
  const Tensor &a = c[0], &b = c[1];
  if (!a.defined() || !b.defined()) return false;
  if (!is_floating(a.dtype()) || a.dtype() != b.dtype() || a.sizes() != b.sizes() || !a.is_contiguous() ||
      !b.is_contiguous())
    return false;
  out->dtype = a.dtype();
  out->sizes = a.sizes();
  return true;
}

void broadcast(const OpCall& c, OutSpec* out) {
  const OpInfo& row = info(c.op);
  if (row.dtype_rule == DTypeRule::Promote && broadcast_nothing(c, out)) return;
  bool first = true;
  bool typed = false;
  bool strided = false;
  for (int i = 0; i < c.inputs.size(); ++i) {
    const Tensor& t = c[i];
    if (!t.defined()) continue;
    if (!(c.op == OpId::where && i == 0)) {
      const bool mixed = typed && row.dtype_rule == DTypeRule::Promote;  // reads_mixed()
      out->dtype = mixed ? promote(out->dtype, t.dtype()) : t.dtype();
      typed = true;
    }
    if (row.dtype_rule == DTypeRule::Logical) refuse_f8(c, t);
    if (first) out->sizes = t.sizes();
    else if (t.sizes() != out->sizes) out->sizes = broadcast_shapes(out->sizes, t.sizes(), row.name.data());
    strided = strided || !t.is_contiguous();
    first = false;
  }
  if (first) fail(c, "needs a tensor");
  if (row.dtype_rule == DTypeRule::Compare || row.dtype_rule == DTypeRule::Logical) out->dtype = DType::bool_;
  if ((c.op == OpId::div || c.op == OpId::pow) && !is_floating(out->dtype))
    fail(c, "takes floats only; cast with to(DType::f32)");
  if ((c.op == OpId::add || c.op == OpId::sub || c.op == OpId::mul) && out->dtype == DType::bool_)
    fail(c, "takes numbers, not bool; use logical ops or cast with to(DType::i64)");
  if (c.op == OpId::where && c[0].dtype() != DType::bool_) fail(c, "the condition must be bool");
  for (int i = 0; strided && i < c.inputs.size(); ++i) {
    if (!c[i].defined() || c[i].sizes() != out->sizes) continue;
    keep_strides(c[i], *out);  // the first of full size decides
    return;
  }
}

Shape reduced(const Shape& sizes, std::uint32_t dims, bool keepdim) {
  Shape out;
  for (int i = 0; i < sizes.size(); ++i)
    if (const bool gone = dims >> i & 1; !gone || keepdim) out.push_back(gone ? 1 : sizes[i]);
  return out;
}

void infer_reduce(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0);
  const auto& a = c.get<ReduceAttrs>();
  *out = {x.dtype(), reduced(x.sizes(), a.dims, a.keepdim)};
  if (c.op == OpId::sum && !x.is_floating()) out->dtype = DType::i64;
  if (c.op == OpId::sum) refuse_f8(c, x);
  if ((c.op == OpId::max || c.op == OpId::min) && x.numel() == 0 && numel(out->sizes) > 0)
    fail(c, "an empty range has no extreme");
}

void infer_arg(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0);
  const auto& a = c.get<DimAttrs>();
  *out = {DType::i64, reduced(x.sizes(), 1u << a.dim, a.keepdim)};
  if (x.numel() == 0 && numel(out->sizes) > 0) fail(c, "an empty range has no extreme");
  if (is_f8(x.dtype()) || x.dtype() == DType::bool_) fail(c, "takes numbers");
}

// Where every view starts: input 0 as it is.
const Tensor& start_view(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0);
  *out = {x.dtype(), x.sizes(), x.strides(), false, x.offset()};
  return x;
}

void infer_view(const OpCall& c, OutSpec* out) {
  const Tensor& x = start_view(c, out);
  out->sizes = c.get<Shape>();
  if (!view_strides(x.sizes(), x.strides(), out->sizes, out->strides))
    failf(c, "strides {} cannot be seen as {} without a copy; use reshape", to_string(x.strides()),
          to_string(out->sizes));
}

void infer_permute(const OpCall& c, OutSpec* out) {
  const Tensor& x = start_view(c, out);
  const Shape& dims = c.get<Shape>();
  for (int i = 0; i < dims.size(); ++i) {
    out->sizes[i] = x.sizes()[static_cast<int>(dims[i])];
    out->strides[i] = x.strides()[static_cast<int>(dims[i])];
  }
}

void infer_expand(const OpCall& c, OutSpec* out) {
  const Tensor& x = start_view(c, out);
  out->sizes = c.get<Shape>();
  out->strides = Shape::filled(out->sizes.size(), 0);
  const int lead = out->sizes.size() - x.ndim();
  for (int i = lead; i < out->sizes.size(); ++i)
    if (x.sizes()[i - lead] == out->sizes[i]) out->strides[i] = x.strides()[i - lead];
}

void infer_slice(const OpCall& c, OutSpec* out) {
  const Tensor& x = start_view(c, out);
  const auto& a = c.get<SliceAttrs>();
  out->offset += a.start * x.strides()[a.dim];
  out->sizes[a.dim] = (a.stop - a.start + a.step - 1) / a.step;
  out->strides[a.dim] *= a.step;
}

void infer_slice_backward(const OpCall& c, OutSpec* out) {
  same_contiguous(c, out);
  out->sizes[c.get<SliceAttrs>().dim] = c.get<SliceAttrs>().size;
}

void infer_cat(const OpCall& c, OutSpec* out) {
  const int dim = c.get<DimAttrs>().dim;
  const Tensor& first = need(c, 0, "at least one tensor");
  if (first.ndim() == 0) fail(c, "0-d tensors cannot be concatenated; use stack");
  same_contiguous(c, out);
  for (int i = 1; i < c.inputs.size(); ++i) {
    Shape rest = need(c, i, "defined tensors").sizes();
    const std::int64_t size = rest.size() == first.ndim() ? rest[dim] : 0;
    if (rest.size() == first.ndim()) rest[dim] = first.sizes()[dim];
    if (rest != first.sizes()) failf(c, "all sizes but those of dim {} must be equal", dim);
    out->sizes[dim] += size;
  }
}

// Dims but `dim` (-1: all) of the index must not be larger than those of t.
void need_cover(const OpCall& c, const Tensor& t, const char* what, int dim) {
  const Shape& index = c[1].sizes();
  if (t.ndim() != index.size()) failf(c, "{} and index must have the same number of dims", what);
  for (int d = 0; d < t.ndim(); ++d)
    if (d != dim && index[d] > t.sizes()[d]) failf(c, "the index is larger than {} at dim {}", what, d);
}

void infer_gather(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0);
  const Tensor& index = need(c, 1, "an index", Kind::index);
  need_cover(c, x, "x", c.get<IndexAttrs>().dim);
  *out = {x.dtype(), index.sizes()};
  if (c.op == OpId::gather) return;
  const Tensor& src = need(c, 2, "a source");
  refuse_f8(c, x);
  if (src.dtype() != x.dtype()) fail(c, "x and src must have one dtype");
  need_cover(c, src, "src", -1);
  out->sizes = x.sizes();
}

void infer_index_select(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0);
  const Tensor& index = need(c, 1, "an index", Kind::index, 1);
  if (x.ndim() == 0) fail(c, "a 0-d tensor has no dim to index");
  const auto& a = c.get<IndexAttrs>();
  same_contiguous(c, out);
  out->sizes[a.dim] = c.op == OpId::index_add ? a.size : index.numel();
  if (c.op == OpId::index_select) return;
  refuse_f8(c, x);
  need_same_sizes(c, 1, {x.sizes()[a.dim]}, "the index");
}

void infer_tril(const OpCall& c, OutSpec* out) {
  if (need(c, 0).ndim() < 2) fail(c, "needs at least two dims");
  same_contiguous(c, out);
}
void infer_pad(const OpCall& c, OutSpec* out) {
  const auto& a = c.get<PadAttrs>();
  same_contiguous(c, out);
  for (int i = 0; i < out->sizes.size(); ++i) {
    if (a.before[i] < 0 || a.after[i] < 0) fail(c, "padding must not be negative; use narrow to crop");
    out->sizes[i] += a.before[i] + a.after[i];
  }
}

void infer_one_hot(const OpCall& c, OutSpec* out) {
  need(c, 0, "the index", Kind::index);
  if (c.get<std::int64_t>() < 1) fail(c, "the number of classes must be at least 1");
  same_contiguous(c, out);
  out->sizes.push_back(c.get<std::int64_t>());
}

void infer_in_place(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0);
  for (int i = 0; i < x.ndim(); ++i)
    if (x.strides()[i] == 0 && x.sizes()[i] > 1) fail(c, "an expanded tensor cannot be written; clone() it first");
  if (info(c.op).inputs == 2 && c[1].defined() &&
      broadcast_shapes(x.sizes(), c[1].sizes(), name(c.op).data()) != x.sizes())
    fail(c, "the operand is larger than the tensor written");
  if ((c.op == OpId::add_ || c.op == OpId::mul_) && (is_f8(x.dtype()) || x.dtype() == DType::bool_))
    fail(c, "takes f64, f32, f16, bf16 and integers");
  same_contiguous(c, out);
}

// Of each parameter its tensors are walked as one: the same shape, row-major. unscale_ has its counts before them.
void infer_update(const OpCall& c, OutSpec* out) {
  infer_in_place(c, out);
  const int first = c.op == OpId::unscale_ ? 1 : 0;
  const int each = c.op == OpId::unscale_ ? 2 : c.op == OpId::sgd_step_ ? 5 : 6;
  const int n = c.inputs.size() - first;
  if (n < each || n % each != 0) failf(c, "takes {} tensors for each parameter, given {}", each, n);
  for (int part = first; part < c.inputs.size(); part += each) {
    const Shape& sizes = need(c, part).sizes();
    if (first == 0) need(c, part + 1, "a gradient");
    for (int i = part; i < part + each; ++i) {
      if (!c[i].defined()) continue;
      need(c, i, "a tensor", Kind::real);
      need_same_sizes(c, i, sizes, "every tensor");
      if (!c[i].is_contiguous()) failf(c, "input {} must be contiguous", i);
    }
  }
  if (first == 0) return;
  const std::int64_t slot = c.get<UnscaleAttrs>().slot;
  if (c[0].dtype() != DType::i64 || c[0].ndim() != 1 || slot < 1 || slot + n / each > c[0].numel())
    failf(c, "found must be i64 [n] with a place for each gradient from {} on", slot);
}

// --- contractions, pooling, normalisation, losses ---------------------------------------------------------------------

DType statistics_dtype(DType x) { return x == DType::f64 ? DType::f64 : DType::f32; }

DType contraction_dtype(DType d) { return is_f8(d) ? DType::f32 : d; }

void infer_matmul(const OpCall& c, OutSpec* out) {
  const Tensor& a = need(c, 0, "two tensors");
  const Tensor& b = need(c, 1, "two tensors");
  if (a.ndim() < 1 || b.ndim() < 1) fail(c, "a 0-d tensor has no matrix product; use *");
  const int a_rows = a.ndim() > 1;  // how many dims of the result come from a's rows, and from b's columns
  const int b_columns = b.ndim() > 1;
  const std::int64_t k = a.sizes().back();
  const std::int64_t kb = b.sizes()[b.ndim() - 1 - b_columns];
  if (k != kb)
    failf(c, "inner dimensions {} and {} differ{}", k, kb,
          b_columns && b.sizes().back() == k ? "; did you mean transpose(-2, -1) of the second?" : "");
  out->sizes =
      broadcast_shapes(a.sizes().first(a.ndim() - 1 - a_rows), b.sizes().first(b.ndim() - 1 - b_columns), "matmul");
  if (a_rows) out->sizes.push_back(a.sizes()[a.ndim() - 2]);
  if (b_columns) out->sizes.push_back(b.sizes().back());
  out->dtype = contraction_dtype(a.dtype());
}

void infer_linear(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "an input");
  const Tensor& w = need(c, 1, "a weight", Kind::any, 2);
  if (x.ndim() < 1 || x.sizes().back() != w.sizes()[1])
    failf(c, "the input's last size must be the weight's second, {}", w.sizes()[1]);
  need_same_sizes(c, 2, {w.sizes()[0]}, "bias");
  out->sizes = x.sizes();
  out->sizes[x.ndim() - 1] = w.sizes()[0];
  out->dtype = contraction_dtype(x.dtype());
}

void infer_linear_gelu(const OpCall& c, OutSpec* out) {
  infer_linear(c, out);
  out[1] = out[0];
}

void infer_linear_backward_weight(const OpCall& c, OutSpec* out) {
  const Tensor& dy = need(c, 0, "a gradient", Kind::real, 2);
  const Tensor& x = need(c, 1, "an input", Kind::real, 2);
  if (dy.sizes()[0] != x.sizes()[0]) failf(c, "{} rows of gradients for {} inputs", dy.sizes()[0], x.sizes()[0]);
  out[0] = {dy.dtype(), {dy.sizes()[1], x.sizes()[1]}};
  out[1] = {dy.dtype(), {dy.sizes()[1]}};
}

// Channels-last [N, C, H, W] gives channels-last.
void keep_channels_last(const Tensor& t, OutSpec* out) {
  if (t.is_contiguous() || t.strides()[1] != 1 || t.strides()[3] != t.sizes()[1] ||
      t.strides()[2] != t.sizes()[1] * t.sizes()[3])
    return;
  const Shape& s = out->sizes;
  out->strides = {s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]};
  out->has_strides = true;
}

// [n, channels, height, width]: how often windows of `extent` fit into the padded image.
Shape windows(const OpCall& c, const Shape& image, std::int64_t channels, Size2 extent, Size2 stride, Size2 padding) {
  Shape out{image[0], channels, 0, 0};
  for (int i = 0; i < 2; ++i) {
    const std::int64_t room = image[2 + i] + 2 * padding[i] - extent[i];
    if (room < 0) fail(c, "the kernel is larger than the padded input");
    out[2 + i] = room / stride[i] + 1;
  }
  return out;
}

// y = conv2d(x, w) and its two gradients: two of the three are there, the third is wanted.
void infer_conv2d(const OpCall& c, OutSpec* out) {
  const Tensor& first = need(c, 0, "an input", Kind::any, 4);
  const Tensor& second = need(c, 1, "a weight or an input", Kind::any, 4);
  const auto& a = c.get<ConvAttrs>();
  for (int i = 0; i < 2; ++i)
    if (a.stride[i] < 1 || a.dilation[i] < 1 || a.padding[i] < 0)
      fail(c, "stride and dilation must be at least 1, padding at least 0");
  if (a.groups < 1) fail(c, "groups must be at least 1");
  const Shape& s = second.sizes();
  Shape x = first.sizes();
  Shape w = s;
  if (c.op == OpId::conv2d_backward_input) x = {first.sizes()[0], s[1] * a.groups, a.size[0], a.size[1]};
  if (c.op == OpId::conv2d_backward_weight) {
    x = s;
    w = {first.sizes()[1], s[1] / a.groups, a.size[0], a.size[1]};
  }
  if (x[1] != w[1] * a.groups || w[0] % a.groups != 0)
    failf(c, "{} input channels, weight for {} x {} groups, {} outputs do not fit", x[1], w[1], a.groups, w[0]);
  if (w[2] < 1 || w[3] < 1) fail(c, "the kernel must be at least 1 x 1");
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

Shape pooled(const OpCall& c, const Shape& x) {
  const auto& a = c.get<PoolAttrs>();
  for (int i = 0; i < 2; ++i) {
    if (a.kernel[i] < 1 || a.stride[i] < 1) fail(c, "kernel and stride must be at least 1");
    if (a.padding[i] < 0 || 2 * a.padding[i] > a.kernel[i]) fail(c, "padding must be 0 to half the kernel");
  }
  return windows(c, x, x[1], a.kernel, a.stride, a.padding);
}

void infer_pool(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "an input", Kind::real, 4);
  *out = {x.dtype(), pooled(c, x.sizes())};
  keep_channels_last(x, out);
  if (c.op != OpId::max_pool2d) return;
  if (numel(out->sizes) > 0 && (x.sizes()[2] == 0 || x.sizes()[3] == 0)) fail(c, "the images have no pixels");
  out[1] = out[0];
  out[1].dtype = DType::i64;
}

// adaptive_avg_pool2d and the gradients of all pools: attributes say height and width of the result.
void infer_sized_pool(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "an input", Kind::real, 4);
  const auto& a = c.get<PoolAttrs>();
  *out = {x.dtype(), {x.sizes()[0], x.sizes()[1], a.size[0], a.size[1]}};
  if (c.op == OpId::adaptive_avg_pool2d) {
    if (a.size[0] < 1 || a.size[1] < 1) fail(c, "the output size must be at least 1 x 1");
    if (x.sizes()[2] < 1 || x.sizes()[3] < 1) fail(c, "the input has no pixels");
    return;
  }
  if (c.op == OpId::max_pool2d_backward) {
    need(c, 1, "indices", Kind::index);
    need_same_sizes(c, 1, x.sizes(), "indices");
  }
  if (c.op == OpId::avg_pool2d_backward) need_same_sizes(c, 0, pooled(c, out->sizes), "the gradient");
  keep_channels_last(x, out);
}

// Of a norm over x: the shapes of weight and bias, and of the statistics.
std::pair<Shape, Shape> norm_shapes(const OpCall& c, const Tensor& x) {
  if (c.op == OpId::batch_norm || c.op == OpId::batch_norm_backward) {
    if (x.ndim() < 2) fail(c, "the input must be [N, C, ..]");
    return {{x.sizes()[1]}, {x.sizes()[1]}};
  }
  const int dims = c.get<NormAttrs>().dims;
  if (dims < 1 || dims > x.ndim()) failf(c, "cannot normalise {} trailing dims of {}", dims, to_string(x.sizes()));
  return {x.sizes().last(dims), x.sizes().first(x.ndim() - dims)};
}

void infer_norm(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "an input", Kind::real);
  const auto [parameter, statistics] = norm_shapes(c, x);
  for (int i = 1; i < c.inputs.size(); ++i) {
    need_same_sizes(c, i, parameter, i < 3 ? "weight and bias" : "mean and var");
    if (i < 3 && c[i].defined() && c[i].dtype() != DType::f32 && c[i].dtype() != x.dtype())
      failf(c, "parameters must be f32 or {}, given {}", name(x.dtype()), name(c[i].dtype()));
  }
  same_contiguous(c, out);
  if (c.op == OpId::batch_norm) {
    keep_strides(x, *out);
    const bool training = c.get<NormAttrs>().training;
    if (!training && !(c[3].defined() && c[4].defined())) fail(c, "needs running mean and var when not training");
    if (training && x.numel() > 0 && x.numel() / std::max<std::int64_t>(1, parameter[0]) < 2)
      fail(c, "training needs more than one value per channel");
  }
  out[1] = out[2] = {statistics_dtype(x.dtype()), statistics};
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
  out[1] = out[2] = {c[2].defined() ? c[2].dtype() : statistics_dtype(x.dtype()), parameter};
}

void infer_along(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor", Kind::real);
  if (c.inputs.size() > 1) need_same_sizes(c, 1, x.sizes(), "the output");
  if (const auto& a = c.get<DimAttrs>(); a.causal) {
    if (x.ndim() < 2 || a.dim != x.ndim() - 1) fail(c, "a causal softmax runs over the last dim of [.., L, S]");
    if (c.op != OpId::softmax) fail(c, "softmax alone is causal");
  }
  same_contiguous(c, out);
}

// Row-major but for the order of the dims, which is that in which t lies.
void order_as(const Tensor& t, OutSpec& out) {
  if (t.is_contiguous()) return;
  std::vector<int> order;
  for (int d = 0; d < t.ndim(); ++d) order.push_back(d);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return t.strides()[a] > t.strides()[b]; });
  out.strides = out.sizes;
  std::int64_t stride = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    out.strides[*d] = stride;
    stride *= std::max<std::int64_t>(1, out.sizes[*d]);
  }
  out.has_strides = true;
}

// flash_attention: heads stay as they lie side by side in a projection of many.
void infer_attention(const OpCall& c, OutSpec* out) {
  const bool back = c.op == OpId::flash_attention_backward;
  if (back) need(c, 0, "a gradient", Kind::real);
  const Tensor& q = need(c, back ? 1 : 0, "queries", Kind::real);
  const Tensor& k = need(c, back ? 2 : 1, "keys", Kind::real);
  const Tensor& v = need(c, back ? 3 : 2, "values", Kind::real);
  const int n = q.ndim();
  if (n < 2 || k.ndim() != n || v.ndim() != n || k.sizes().first(n - 2) != q.sizes().first(n - 2) ||
      v.sizes().first(n - 2) != q.sizes().first(n - 2) || k.size(-1) != q.size(-1) || v.size(-2) != k.size(-2))
    failf(c, "q, k and v must be [.., L, E], [.., S, E] and [.., S, F], given {}, {} and {}", to_string(q.sizes()),
          to_string(k.sizes()), to_string(v.sizes()));
  if (k.dtype() != q.dtype() || v.dtype() != q.dtype()) fail(c, "q, k and v must have one dtype");
  if (c.get<AttentionAttrs>().dropout != 0) fail(c, "no dropout here: scaled_dot_product_attention has it");
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
  if (!(a.label_smoothing >= 0 && a.label_smoothing <= 1)) fail(c, "label_smoothing must be 0 to 1");
  const bool half = a.narrow == DType::f16 || a.narrow == DType::bf16;
  if (a.narrow != DType::f32 && !(half && x.dtype() == a.narrow))
    fail(c, "narrow is f16 or bf16, and the logits' dtype");
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

}  // namespace

void register_inference() {
  InferFn* infer = columns().infer;
  for (int i = 0; i < kOpCount; ++i) {
    const auto& [text, inputs, outputs, kind, rule] = info(static_cast<OpId>(i));
    if (kind == OpKind::Elementwise || kind == OpKind::Transcendental) infer[i] = inputs == 1 ? same : broadcast;
    if (kind == OpKind::Comparison) infer[i] = broadcast;
    if (kind == OpKind::Reduction) infer[i] = infer_reduce;
    if (kind == OpKind::InPlace) infer[i] = infer_in_place;
  }
  set([](const OpCall& c, OutSpec* out) { same(c, out), out->dtype = c.get<DType>(); }, {OpId::cast});
  set(same, {OpId::to_device, OpId::dropout});
  set(infer_dropout_add, {OpId::dropout_add});
  set(same_contiguous, {OpId::clone});
  set(infer_arg, {OpId::argmax, OpId::argmin});
  set(infer_view, {OpId::view});
  set(infer_permute, {OpId::permute});
  set(infer_expand, {OpId::expand});
  set(infer_slice, {OpId::slice});
  set(infer_slice_backward, {OpId::slice_backward});
  set(infer_cat, {OpId::cat});
  set(infer_gather, {OpId::gather, OpId::scatter_add});
  set(infer_index_select, {OpId::index_select, OpId::index_add});
  set(infer_pad, {OpId::pad});
  set(infer_tril, {OpId::tril});
  set(infer_one_hot, {OpId::one_hot});
  set(infer_update, {OpId::sgd_step_, OpId::adam_step_, OpId::unscale_});
  set([](const OpCall&, OutSpec*) {}, {OpId::custom});
  set(infer_matmul, {OpId::matmul});
  set(infer_linear, {OpId::linear, OpId::linear_relu});
  set(infer_linear_gelu, {OpId::linear_gelu});
  set(infer_linear_backward_weight, {OpId::linear_backward_weight});
  set(infer_conv2d, {OpId::conv2d, OpId::conv2d_backward_input, OpId::conv2d_backward_weight});
  set(infer_pool, {OpId::max_pool2d, OpId::avg_pool2d});
  set(infer_sized_pool, {OpId::adaptive_avg_pool2d, OpId::adaptive_avg_pool2d_backward, OpId::max_pool2d_backward,
                         OpId::avg_pool2d_backward});
  set(infer_norm, {OpId::batch_norm, OpId::layer_norm, OpId::rms_norm});
  set(infer_norm_backward, {OpId::batch_norm_backward, OpId::layer_norm_backward, OpId::rms_norm_backward});
  set(infer_activation_backward, {OpId::relu_backward, OpId::gelu_backward});
  set(infer_along, {OpId::softmax, OpId::softmax_backward, OpId::log_softmax, OpId::log_softmax_backward});
  set(infer_attention, {OpId::flash_attention, OpId::flash_attention_backward});
  set(infer_cross_entropy, {OpId::cross_entropy});
  set(infer_cross_entropy_backward, {OpId::cross_entropy_backward});
}

}  // namespace gradual
