// Inference of contractions, pooling, normalisation and losses.
#include <algorithm>

#include "infer.h"
#include "ops.h"

namespace gradual::infer {
namespace {

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
  same_contiguous(c, out);
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
  same_contiguous(c, out);
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

}  // namespace

void register_layers() {
  const auto set = [](InferFn fn, std::initializer_list<OpId> ops) {
    for (OpId op : ops) columns().infer[static_cast<int>(op)] = fn;
  };
  set(infer_matmul, {OpId::matmul});
  set(infer_linear, {OpId::linear});
  set(infer_conv2d, {OpId::conv2d});
  set(infer_conv2d_backward_input, {OpId::conv2d_backward_input});
  set(infer_conv2d_backward_weight, {OpId::conv2d_backward_weight});
  set(infer_pool, {OpId::max_pool2d, OpId::avg_pool2d});
  set(infer_adaptive_pool, {OpId::adaptive_avg_pool2d});
  set(infer_pool_backward, {OpId::max_pool2d_backward, OpId::avg_pool2d_backward, OpId::adaptive_avg_pool2d_backward});
  set(infer_pool_gather, {OpId::max_pool2d_gather});
  set(infer_batch_norm, {OpId::batch_norm});
  set(infer_batch_norm_backward, {OpId::batch_norm_backward});
  set(infer_layer_norm, {OpId::layer_norm, OpId::rms_norm});
  set(infer_layer_norm_backward, {OpId::layer_norm_backward, OpId::rms_norm_backward});
  set(infer_along, {OpId::softmax, OpId::softmax_backward, OpId::log_softmax, OpId::log_softmax_backward});
  set(infer_cross_entropy, {OpId::cross_entropy});
  set(infer_cross_entropy_backward, {OpId::cross_entropy_backward});
}

}  // namespace gradual::infer
