// The inference column: from inputs and attributes to the outputs' dtypes and shapes, with every check of a call.
#include <algorithm>
#include <string>

#include "dispatch.h"
#include "ops.h"

namespace gradual {
namespace {

[[noreturn]] void bad(const OpCall& c, const std::string& why) { fail(describe(c) + ": " + why); }

const Tensor& need(const OpCall& c, int i, const char* what) {
  if (i >= c.inputs.size() || !c[i].defined()) bad(c, std::string("needs ") + what);
  return c[i];
}
void need_dims(const OpCall& c, int i, int n) {
  if (need(c, i, "a tensor").ndim() != n)
    bad(c, "input " + std::to_string(i) + " must be " + std::to_string(n) + "-d, given " + to_string(c[i].sizes()));
}
void need_float(const OpCall& c, int i) {
  if (!c[i].is_floating() || is_f8(c[i].dtype())) bad(c, "takes f64, f32, f16 or bf16; cast with to(DType::f32)");
}
void refuse_f8(const OpCall& c, const Tensor& t) {
  if (is_f8(t.dtype()))
    bad(c, "f8 tensors allow cast, copies, views and contractions only; cast to a wider float first");
}
void need_index(const OpCall& c, int i) {
  if (c[i].dtype() != DType::i64) bad(c, "the index must be i64, given " + std::string(name(c[i].dtype())));
}
void need_same_sizes(const OpCall& c, int i, const Shape& sizes, const char* what) {
  if (c[i].defined() && c[i].sizes() != sizes)
    bad(c, std::string(what) + " must be " + to_string(sizes) + ", given " + to_string(c[i].sizes()));
}
// weight and bias of a norm are f32 or x's dtype.
void need_norm_parameter(const OpCall& c, int i, DType x) {
  if (c[i].defined() && c[i].dtype() != DType::f32 && c[i].dtype() != x)
    bad(c, "parameters must be f32 or " + std::string(name(x)) + ", given " + std::string(name(c[i].dtype())));
}
DType statistics_dtype(DType x) { return x == DType::f64 ? DType::f64 : DType::f32; }

// The strides of a dense (gapless) tensor in its own dim order; false where it has gaps or overlaps.
bool dense(const Tensor& t) {
  if (t.is_contiguous()) return true;
  int order[kMaxDims] = {};
  for (int i = 0; i < t.ndim(); ++i) {
    int at = i;
    for (; at > 0 && t.strides()[order[at - 1]] > t.strides()[i]; --at) order[at] = order[at - 1];
    order[at] = i;
  }
  std::int64_t step = 1;
  for (int k = 0; k < t.ndim(); ++k) {
    if (t.sizes()[order[k]] == 1) continue;
    if (t.strides()[order[k]] != step) return false;
    step *= t.sizes()[order[k]];
  }
  return true;
}

// Elementwise outputs keep the stride order of the first full-size input that is dense (channels-last stays so).
void keep_strides(const OpCall& c, OutSpec& out) {
  for (int i = 0; i < c.inputs.size(); ++i) {
    const Tensor& t = c[i];
    if (!t.defined() || t.sizes() != out.sizes) continue;
    if (!t.is_contiguous() && dense(t)) {
      out.strides = t.strides();
      out.has_strides = true;
    }
    return;
  }
}

void same(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  out->dtype = x.dtype();
  out->sizes = x.sizes();
  if (!x.is_contiguous()) keep_strides(c, *out);
}

void broadcast(const OpCall& c, OutSpec* out) {
  const OpInfo& row = info(c.op);
  bool first = true;
  bool strided = false;
  for (int i = 0; i < c.inputs.size(); ++i) {
    const Tensor& t = c[i];
    if (!t.defined()) continue;
    if (!(c.op == OpId::where && i == 0)) out->dtype = t.dtype();
    if (row.dtype_rule == DTypeRule::Logical) refuse_f8(c, t);
    out->sizes = first ? t.sizes() : broadcast_shapes(out->sizes, t.sizes(), row.name.data());
    strided = strided || !t.is_contiguous();
    first = false;
  }
  if (first) bad(c, "needs a tensor");
  if (row.dtype_rule == DTypeRule::Compare || row.dtype_rule == DTypeRule::Logical) out->dtype = DType::bool_;
  if (c.op == OpId::div && !is_floating(out->dtype)) bad(c, "divides floats only; cast with to(DType::f32)");
  if (c.op == OpId::pow && !is_floating(out->dtype)) bad(c, "raises floats only; cast with to(DType::f32)");
  if ((c.op == OpId::add || c.op == OpId::sub || c.op == OpId::mul) && out->dtype == DType::bool_)
    bad(c, "takes numbers, not bool; use logical ops or cast with to(DType::i64)");
  if (c.op == OpId::where && c[0].dtype() != DType::bool_) bad(c, "the condition must be bool");
  if (strided) keep_strides(c, *out);
}

void infer_cast(const OpCall& c, OutSpec* out) {
  same(c, out);
  out->dtype = c.get<CastAttrs>().dtype;
}

void infer_clone(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  out->dtype = x.dtype();
  out->sizes = x.sizes();
}

Shape reduced(const Shape& sizes, std::uint32_t dims, bool keepdim) {
  Shape out;
  for (int i = 0; i < sizes.size(); ++i) {
    if (!(dims >> i & 1)) {
      out.push_back(sizes[i]);
    } else if (keepdim) {
      out.push_back(1);
    }
  }
  return out;
}

void infer_reduce(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  const auto& a = c.get<ReduceAttrs>();
  out->sizes = reduced(x.sizes(), a.dims, a.keepdim);
  out->dtype = x.dtype();
  if (c.op == OpId::sum && !x.is_floating()) out->dtype = DType::i64;
  if (c.op == OpId::sum) refuse_f8(c, x);
  if ((c.op == OpId::max || c.op == OpId::min) && x.numel() == 0 && numel(out->sizes) > 0)
    bad(c, "an empty range has no " + std::string(name(c.op)));
}

void infer_arg(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  const auto& a = c.get<DimAttrs>();
  out->sizes = x.ndim() ? reduced(x.sizes(), 1u << a.dim, a.keepdim) : x.sizes();
  out->dtype = DType::i64;
  if (x.ndim() && x.sizes()[a.dim] == 0 && numel(out->sizes) > 0) bad(c, "an empty range has no extreme");
  if (is_f8(x.dtype()) || x.dtype() == DType::bool_) bad(c, "takes numbers");
}

DType contraction_dtype(DType d) { return is_f8(d) ? DType::f32 : d; }

void infer_matmul(const OpCall& c, OutSpec* out) {
  const Tensor& a = need(c, 0, "two tensors");
  const Tensor& b = need(c, 1, "two tensors");
  if (a.ndim() < 1 || b.ndim() < 1) bad(c, "a 0-d tensor has no matrix product; use *");
  const std::int64_t k = a.sizes().back();
  const std::int64_t kb = b.ndim() == 1 ? b.sizes()[0] : b.sizes()[b.ndim() - 2];
  if (k != kb) {
    const bool fits = b.ndim() > 1 && b.sizes().back() == k;
    bad(c, "inner dimensions " + std::to_string(k) + " and " + std::to_string(kb) + " differ" +
               (fits ? "; did you mean transpose(-2, -1) of the second?" : ""));
  }
  Shape ab = a.sizes();
  Shape bb = b.sizes();
  Shape tail;
  ab.erase(ab.size() - 1);
  if (a.ndim() > 1) {
    tail.push_back(ab.back());
    ab.erase(ab.size() - 1);
  }
  bb.erase(bb.size() - 1);
  if (b.ndim() > 1) {
    bb.erase(bb.size() - 1);
    tail.push_back(b.sizes().back());
  }
  out->sizes = broadcast_shapes(ab, bb, "matmul");
  for (std::int64_t d : tail) out->sizes.push_back(d);
  out->dtype = contraction_dtype(a.dtype());
}

void infer_linear(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "an input");
  const Tensor& w = need(c, 1, "a weight");
  need_dims(c, 1, 2);
  if (x.ndim() < 1 || x.sizes().back() != w.sizes()[1])
    bad(c, "the input's last size must be the weight's second, " + std::to_string(w.sizes()[1]));
  need_same_sizes(c, 2, {w.sizes()[0]}, "bias");
  out->sizes = x.sizes();
  out->sizes[x.ndim() - 1] = w.sizes()[0];
  out->dtype = contraction_dtype(x.dtype());
}

void check_conv_attrs(const OpCall& c, const ConvAttrs& a) {
  for (int i = 0; i < 2; ++i)
    if (a.stride[i] < 1 || a.dilation[i] < 1 || a.padding[i] < 0)
      bad(c, "stride and dilation must be at least 1, padding at least 0");
  if (a.groups < 1) bad(c, "groups must be at least 1");
}

// Channels-last strides for [N, C, H, W].
bool channels_last(const Tensor& t) {
  return t.ndim() == 4 && !t.is_contiguous() && t.strides()[1] == 1 && t.strides()[3] == t.sizes()[1] &&
         t.strides()[2] == t.sizes()[1] * t.sizes()[3];
}
void set_channels_last(OutSpec* out) {
  const Shape& s = out->sizes;
  out->strides = {s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]};
  out->has_strides = true;
}

// Height and width of a convolution's result.
Shape conv_size(const OpCall& c, const ConvAttrs& a, const std::int64_t* image, const std::int64_t* kernel) {
  Shape out;
  for (int i = 0; i < 2; ++i) {
    const std::int64_t room = image[i] + 2 * a.padding[i] - a.dilation[i] * (kernel[i] - 1) - 1;
    if (room < 0) bad(c, "the kernel is larger than the padded input");
    out.push_back(room / a.stride[i] + 1);
  }
  return out;
}

void infer_conv2d(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "an input");
  const Tensor& w = need(c, 1, "a weight");
  need_dims(c, 0, 4);
  need_dims(c, 1, 4);
  const auto& a = c.get<ConvAttrs>();
  check_conv_attrs(c, a);
  const std::int64_t channels = x.sizes()[1];
  const std::int64_t outputs = w.sizes()[0];
  if (channels != w.sizes()[1] * a.groups || outputs % a.groups != 0)
    bad(c, std::to_string(channels) + " input channels, weight for " + std::to_string(w.sizes()[1]) + " x " +
               std::to_string(a.groups) + " groups, " + std::to_string(outputs) + " outputs do not fit");
  need_same_sizes(c, 2, {outputs}, "bias");
  const Shape size = conv_size(c, a, x.sizes().begin() + 2, w.sizes().begin() + 2);
  out->sizes = {x.sizes()[0], outputs, size[0], size[1]};
  out->dtype = contraction_dtype(x.dtype());
  if (channels_last(x)) set_channels_last(out);
}

void infer_conv2d_backward_input(const OpCall& c, OutSpec* out) {
  const auto& a = c.get<ConvAttrs>();
  need_dims(c, 0, 4);
  need_dims(c, 1, 4);
  check_conv_attrs(c, a);
  const Shape& w = c[1].sizes();
  const Shape size = conv_size(c, a, a.size, w.begin() + 2);
  need_same_sizes(c, 0, {c[0].sizes()[0], w[0], size[0], size[1]}, "the gradient");
  if (w[0] % a.groups != 0) bad(c, "groups must divide the outputs");
  out->sizes = {c[0].sizes()[0], w[1] * a.groups, a.size[0], a.size[1]};
  out->dtype = contraction_dtype(c[0].dtype());
  if (channels_last(c[0])) set_channels_last(out);
}

void infer_conv2d_backward_weight(const OpCall& c, OutSpec* out) {
  const auto& a = c.get<ConvAttrs>();
  need_dims(c, 0, 4);
  need_dims(c, 1, 4);
  check_conv_attrs(c, a);
  const Shape& x = c[1].sizes();
  const Shape size = conv_size(c, a, x.begin() + 2, a.size);
  need_same_sizes(c, 0, {x[0], c[0].sizes()[1], size[0], size[1]}, "the gradient");
  if (x[1] % a.groups != 0 || c[0].sizes()[1] % a.groups != 0) bad(c, "groups must divide the channels");
  out->sizes = {c[0].sizes()[1], x[1] / a.groups, a.size[0], a.size[1]};
  out->dtype = contraction_dtype(c[0].dtype());
}

void check_pool(const OpCall& c, const PoolAttrs& a) {
  need_dims(c, 0, 4);
  for (int i = 0; i < 2; ++i) {
    if (a.kernel[i] < 1 || a.stride[i] < 1) bad(c, "kernel and stride must be at least 1");
    if (a.padding[i] < 0 || 2 * a.padding[i] > a.kernel[i]) bad(c, "padding must be 0 to half the kernel");
  }
}

void infer_pool(const OpCall& c, OutSpec* out) {
  const auto& a = c.get<PoolAttrs>();
  check_pool(c, a);
  const Tensor& x = c[0];
  out->sizes = x.sizes();
  for (int i = 0; i < 2; ++i) {
    const std::int64_t room = x.sizes()[2 + i] + 2 * a.padding[i] - a.kernel[i];
    if (room < 0) bad(c, "the kernel is larger than the padded input");
    out->sizes[2 + i] = room / a.stride[i] + 1;
  }
  out->dtype = x.dtype();
  if (channels_last(x)) set_channels_last(out);
  if (c.op == OpId::max_pool2d) {
    out[1] = out[0];
    out[1].dtype = DType::i64;
  }
}

void infer_adaptive_pool(const OpCall& c, OutSpec* out) {
  need_dims(c, 0, 4);
  const auto& a = c.get<PoolAttrs>();
  if (a.size[0] < 1 || a.size[1] < 1) bad(c, "the output size must be at least 1 x 1");
  if (c[0].sizes()[2] < 1 || c[0].sizes()[3] < 1) bad(c, "the input has no pixels");
  out->sizes = {c[0].sizes()[0], c[0].sizes()[1], a.size[0], a.size[1]};
  out->dtype = c[0].dtype();
}

void infer_pool_backward(const OpCall& c, OutSpec* out) {
  need_dims(c, 0, 4);
  need_float(c, 0);
  const auto& a = c.get<PoolAttrs>();
  if (c.op == OpId::max_pool2d_backward) {
    need(c, 1, "indices");
    need_index(c, 1);
    need_same_sizes(c, 1, c[0].sizes(), "indices");
  } else if (c.op == OpId::avg_pool2d_backward) {
    check_pool(c, a);
    for (int i = 0; i < 2; ++i)
      if (c[0].sizes()[2 + i] != (a.size[i] + 2 * a.padding[i] - a.kernel[i]) / a.stride[i] + 1)
        bad(c, "the gradient is not of the shape that pooling gives");
  }
  out->sizes = {c[0].sizes()[0], c[0].sizes()[1], a.size[0], a.size[1]};
  out->dtype = c[0].dtype();
  if (channels_last(c[0])) set_channels_last(out);
}

void infer_pool_gather(const OpCall& c, OutSpec* out) {
  need_dims(c, 0, 4);
  need_float(c, 0);
  out->sizes = need(c, 1, "indices").sizes();
  need_index(c, 1);
  need_dims(c, 1, 4);
  if (out->sizes[0] != c[0].sizes()[0] || out->sizes[1] != c[0].sizes()[1])
    bad(c, "x and indices must have the same planes");
  out->dtype = c[0].dtype();
}

void infer_batch_norm(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "an input");
  need_float(c, 0);
  const auto& a = c.get<NormAttrs>();
  if (x.ndim() < 2) bad(c, "the input must be [N, C, ..]");
  const Shape channels{x.sizes()[1]};
  for (int i = 1; i < 5; ++i) need_same_sizes(c, i, channels, "weight, bias, mean and var");
  need_norm_parameter(c, 1, x.dtype());
  need_norm_parameter(c, 2, x.dtype());
  if (!a.training && !(c[3].defined() && c[4].defined())) bad(c, "needs running mean and var when not training");
  if (a.training && x.numel() > 0 && x.numel() / std::max<std::int64_t>(1, channels[0]) < 2)
    bad(c, "training needs more than one value per channel");
  same(c, out);
  out[1].dtype = out[2].dtype = statistics_dtype(x.dtype());
  out[1].sizes = out[2].sizes = channels;
}

void infer_batch_norm_backward(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 1, "an input");
  need_float(c, 1);
  if (x.ndim() < 2) bad(c, "the input must be [N, C, ..]");
  need(c, 0, "a gradient"), need(c, 3, "the mean"), need(c, 4, "the inverse deviation");
  need_same_sizes(c, 0, x.sizes(), "the gradient");
  for (int i = 2; i < 5; ++i) need_same_sizes(c, i, {x.sizes()[1]}, "weight, mean and inverse deviation");
  out[0].dtype = x.dtype();
  out[0].sizes = x.sizes();
  if (!x.is_contiguous() && dense(x)) out[0].strides = x.strides(), out[0].has_strides = true;
  out[1].dtype = out[2].dtype = c[2].defined() ? c[2].dtype() : statistics_dtype(x.dtype());
  out[1].sizes = out[2].sizes = {x.sizes()[1]};
}

Shape trailing(const Shape& sizes, int dims) {
  Shape out;
  for (int i = sizes.size() - dims; i < sizes.size(); ++i) out.push_back(sizes[i]);
  return out;
}

void infer_layer_norm(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "an input");
  need_float(c, 0);
  const auto& a = c.get<NormAttrs>();
  if (a.dims < 1 || a.dims > x.ndim())
    bad(c, "cannot normalise " + std::to_string(a.dims) + " trailing dims of " + to_string(x.sizes()));
  const Shape normalized = trailing(x.sizes(), a.dims);
  for (int i = 1; i < c.inputs.size(); ++i) {
    need_same_sizes(c, i, normalized, "weight and bias");
    need_norm_parameter(c, i, x.dtype());
  }
  infer_clone(c, out);
  out[1].dtype = out[2].dtype = statistics_dtype(x.dtype());
  for (int i = 0; i < x.ndim() - a.dims; ++i) out[1].sizes.push_back(x.sizes()[i]);
  out[2].sizes = out[1].sizes;
}

void infer_layer_norm_backward(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 1, "an input");
  need_float(c, 1);
  const int dims = c.get<NormAttrs>().dims;
  if (dims < 1 || dims > x.ndim()) bad(c, "cannot have normalised " + std::to_string(dims) + " trailing dims");
  need(c, 0, "a gradient");
  need_same_sizes(c, 0, x.sizes(), "the gradient");
  need_same_sizes(c, 2, trailing(x.sizes(), dims), "weight");
  Shape rows = x.sizes();
  for (int i = 0; i < dims; ++i) rows.erase(rows.size() - 1);
  for (int i = 3; i < c.inputs.size(); ++i) {
    need(c, i, "the statistics");
    need_same_sizes(c, i, rows, "statistics");
  }
  out[0].dtype = x.dtype();
  out[0].sizes = x.sizes();
  out[1].dtype = out[2].dtype = c[2].defined() ? c[2].dtype() : statistics_dtype(x.dtype());
  out[1].sizes = out[2].sizes = trailing(x.sizes(), c.get<NormAttrs>().dims);
}

void infer_along(const OpCall& c, OutSpec* out) {
  need(c, 0, "a tensor");
  need_float(c, 0);
  if (c.inputs.size() > 1) need_same_sizes(c, 1, need(c, 0, "a gradient").sizes(), "the output");
  infer_clone(c, out);
}

void infer_cross_entropy(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "logits");
  const Tensor& y = need(c, 1, "classes");
  need_float(c, 0);
  need_dims(c, 0, 2);
  need_index(c, 1);
  need_same_sizes(c, 1, {x.sizes()[0]}, "classes");
  const auto& a = c.get<CrossEntropyAttrs>();
  if (!(a.label_smoothing >= 0 && a.label_smoothing <= 1)) bad(c, "label_smoothing must be 0 to 1");
  out[0].dtype = out[1].dtype = x.dtype();
  if (a.reduction == static_cast<int>(Reduction::none)) out[0].sizes = y.sizes();
  out[1].sizes = x.sizes();
}

void infer_cross_entropy_backward(const OpCall& c, OutSpec* out) {
  need_dims(c, 1, 2);
  need_float(c, 1);
  need_dims(c, 2, 1);
  need_index(c, 2);
  const Shape rows{c[1].sizes()[0]};
  need_same_sizes(c, 2, rows, "classes");
  need(c, 0, "a gradient");
  const bool each = c.get<CrossEntropyAttrs>().reduction == static_cast<int>(Reduction::none);
  need_same_sizes(c, 0, each ? rows : Shape{}, "the gradient");
  out->dtype = c[1].dtype();
  out->sizes = c[1].sizes();
}

void infer_view(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  out->dtype = x.dtype();
  out->offset = x.offset();
  out->sizes = c.get<ShapeAttrs>().shape;
  if (!view_strides(x.sizes(), x.strides(), out->sizes, out->strides))
    bad(c, "strides " + to_string(x.strides()) + " cannot be seen as " + to_string(out->sizes) +
               " without a copy; use reshape");
}

void infer_permute(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  out->dtype = x.dtype();
  out->offset = x.offset();
  for (std::int64_t d : c.get<ShapeAttrs>().shape) {
    out->sizes.push_back(x.sizes()[static_cast<int>(d)]);
    out->strides.push_back(x.strides()[static_cast<int>(d)]);
  }
}

void infer_expand(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  out->dtype = x.dtype();
  out->offset = x.offset();
  out->sizes = c.get<ShapeAttrs>().shape;
  const int lead = out->sizes.size() - x.ndim();
  for (int i = 0; i < out->sizes.size(); ++i) {
    const bool grown = i < lead || (x.sizes()[i - lead] == 1 && out->sizes[i] != 1);
    out->strides.push_back(grown ? 0 : x.strides()[i - lead]);
  }
}

void infer_slice(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  const auto& a = c.get<SliceAttrs>();
  out->dtype = x.dtype();
  out->sizes = x.sizes();
  out->strides = x.strides();
  out->offset = x.offset() + a.start * x.strides()[a.dim];
  out->sizes[a.dim] = (a.stop - a.start + a.step - 1) / a.step;
  out->strides[a.dim] *= a.step;
}

void infer_slice_backward(const OpCall& c, OutSpec* out) {
  need(c, 0, "a gradient");
  const auto& a = c.get<SliceAttrs>();
  out->dtype = c[0].dtype();
  out->sizes = c[0].sizes();
  out->sizes[a.dim] = a.size;
}

void infer_cat(const OpCall& c, OutSpec* out) {
  const int dim = c.get<DimAttrs>().dim;
  const Tensor& first = need(c, 0, "at least one tensor");
  if (first.ndim() == 0) bad(c, "0-d tensors cannot be concatenated; use stack");
  out->dtype = first.dtype();
  out->sizes = first.sizes();
  for (int i = 1; i < c.inputs.size(); ++i) {
    Shape s = need(c, i, "defined tensors").sizes();
    bool fits = s.size() == out->sizes.size();
    for (int d = 0; fits && d < s.size(); ++d) fits = d == dim || s[d] == out->sizes[d];
    if (!fits) bad(c, "all sizes but those of dim " + std::to_string(dim) + " must be equal");
    out->sizes[dim] += s[dim];
  }
}

void infer_gather(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  const Tensor& index = need(c, 1, "an index");
  need_index(c, 1);
  const int dim = c.get<IndexAttrs>().dim;
  if (x.ndim() != index.ndim()) bad(c, "x and index must have the same number of dims");
  for (int d = 0; d < x.ndim(); ++d)
    if (d != dim && index.sizes()[d] > x.sizes()[d]) bad(c, "the index is larger than x at dim " + std::to_string(d));
  if (c.op == OpId::scatter_add) {
    const Tensor& src = need(c, 2, "a source");
    refuse_f8(c, x);
    if (src.dtype() != x.dtype()) bad(c, "x and src must have one dtype");
    if (src.ndim() != x.ndim()) bad(c, "src and x must have the same number of dims");
    for (int d = 0; d < x.ndim(); ++d)
      if (index.sizes()[d] > src.sizes()[d]) bad(c, "the index is larger than src at dim " + std::to_string(d));
    out->sizes = x.sizes();
  } else {
    out->sizes = index.sizes();
  }
  out->dtype = x.dtype();
}

void infer_index_select(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  const Tensor& index = need(c, 1, "an index");
  need_index(c, 1);
  need_dims(c, 1, 1);
  if (x.ndim() == 0) bad(c, "a 0-d tensor has no dim to index");
  const auto& a = c.get<IndexAttrs>();
  out->dtype = x.dtype();
  out->sizes = x.sizes();
  if (c.op == OpId::index_add) refuse_f8(c, x);
  if (c.op == OpId::index_add && index.numel() != x.sizes()[a.dim])
    bad(c, "the index must have one entry for each of " + std::to_string(x.sizes()[a.dim]));
  out->sizes[a.dim] = c.op == OpId::index_add ? a.size : index.numel();
}

void infer_pad(const OpCall& c, OutSpec* out) {
  const auto& a = c.get<PadAttrs>();
  out->dtype = c[0].dtype();
  out->sizes = c[0].sizes();
  for (int i = 0; i < out->sizes.size(); ++i) {
    if (a.before[i] < 0 || a.after[i] < 0) bad(c, "padding must not be negative; use narrow to crop");
    out->sizes[i] += a.before[i] + a.after[i];
  }
}

void infer_tril(const OpCall& c, OutSpec* out) {
  if (need(c, 0, "a tensor").ndim() < 2) bad(c, "needs at least two dims");
  infer_clone(c, out);
}

void infer_one_hot(const OpCall& c, OutSpec* out) {
  need(c, 0, "classes");
  need_index(c, 0);
  if (c.get<OneHotAttrs>().classes < 1) bad(c, "the number of classes must be at least 1");
  out->dtype = DType::i64;
  out->sizes = c[0].sizes();
  out->sizes.push_back(c.get<OneHotAttrs>().classes);
}

void infer_in_place(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  for (int i = 0; i < x.ndim(); ++i)
    if (x.strides()[i] == 0 && x.sizes()[i] > 1) bad(c, "an expanded tensor cannot be written; clone() it first");
  if (c.inputs.size() > 1 && c[1].defined() && info(c.op).inputs == 2 &&
      broadcast_shapes(x.sizes(), c[1].sizes(), name(c.op).data()) != x.sizes())
    bad(c, "the operand is larger than the tensor written");
  if ((c.op == OpId::add_ || c.op == OpId::mul_) && (is_f8(x.dtype()) || x.dtype() == DType::bool_))
    bad(c, "takes f64, f32, f16, bf16 and integers");
  out->dtype = x.dtype();
  out->sizes = x.sizes();
}

// The tensors of a fused update are walked as one: the same shape, row-major.
void infer_update(const OpCall& c, OutSpec* out) {
  infer_in_place(c, out);
  need(c, 1, "a gradient");
  for (int i = 0; i < c.inputs.size(); ++i) {
    if (!c[i].defined()) continue;
    need_float(c, i);
    if (c[i].sizes() != c[0].sizes() || !c[i].is_contiguous())
      bad(c, "input " + std::to_string(i) + " must be contiguous and of the parameter's shape");
  }
}

void infer_unscale(const OpCall& c, OutSpec* out) {
  infer_in_place(c, out);
  need(c, 1, "a gradient");
  need_float(c, 1);
  const std::int64_t slot = c.get<UnscaleAttrs>().slot;
  if (c[0].dtype() != DType::i64 || c[0].ndim() != 1 || slot < 1 || slot >= c[0].numel())
    bad(c, "found must be i64 [n] with a place for slot " + std::to_string(slot));
  if (!c[1].is_contiguous() || (c[2].defined() && (!c[2].is_contiguous() || c[2].sizes() != c[1].sizes())))
    bad(c, "the gradients must be contiguous and of one shape");
  if (c[2].defined()) need_float(c, 2);
}

void infer_custom(const OpCall&, OutSpec*) {}

}  // namespace

void register_inference() {
  InferFn* infer = columns().infer;
  const auto set = [infer](InferFn fn, std::initializer_list<OpId> ops) {
    for (OpId op : ops) infer[static_cast<int>(op)] = fn;
  };
  for (int i = 0; i < kOpCount; ++i) {
    const OpInfo& row = info(static_cast<OpId>(i));
    if ((row.kind == OpKind::Elementwise || row.kind == OpKind::Transcendental) && row.inputs == 1) infer[i] = same;
    if ((row.kind == OpKind::Elementwise || row.kind == OpKind::Transcendental) && row.inputs > 1)
      infer[i] = broadcast;
    if (row.kind == OpKind::Comparison) infer[i] = broadcast;
    if (row.kind == OpKind::InPlace) infer[i] = infer_in_place;
  }
  set(infer_cast, {OpId::cast});
  set(same, {OpId::to_device, OpId::dropout});
  set(infer_clone, {OpId::clone});
  set(infer_reduce, {OpId::sum, OpId::mean, OpId::var, OpId::max, OpId::min, OpId::logsumexp, OpId::norm});
  set(infer_arg, {OpId::argmax, OpId::argmin});
  set(infer_matmul, {OpId::matmul});
  set(infer_linear, {OpId::linear});
  set(infer_conv2d, {OpId::conv2d});
  set(infer_conv2d_backward_input, {OpId::conv2d_backward_input});
  set(infer_conv2d_backward_weight, {OpId::conv2d_backward_weight});
  set(infer_pool, {OpId::max_pool2d, OpId::avg_pool2d});
  set(infer_adaptive_pool, {OpId::adaptive_avg_pool2d});
  set(infer_pool_backward,
      {OpId::max_pool2d_backward, OpId::avg_pool2d_backward, OpId::adaptive_avg_pool2d_backward});
  set(infer_pool_gather, {OpId::max_pool2d_gather});
  set(infer_batch_norm, {OpId::batch_norm});
  set(infer_batch_norm_backward, {OpId::batch_norm_backward});
  set(infer_layer_norm, {OpId::layer_norm, OpId::rms_norm});
  set(infer_layer_norm_backward, {OpId::layer_norm_backward, OpId::rms_norm_backward});
  set(infer_along, {OpId::softmax, OpId::softmax_backward, OpId::log_softmax, OpId::log_softmax_backward});
  set(infer_cross_entropy, {OpId::cross_entropy});
  set(infer_cross_entropy_backward, {OpId::cross_entropy_backward});
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
  set(infer_update, {OpId::sgd_step_, OpId::adam_step_});
  set(infer_unscale, {OpId::unscale_});
  set(infer_custom, {OpId::custom});
}

}  // namespace gradual
