// Layers: linear, convolutions, norms, dropout, attention.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "../autograd/activation_checkpoint.h"
#include "../autograd/grad_mode.h"
#include "../core/ops/derived_ops.h"
#include "../core/support/throwf.h"
#include "../core/tensor/modes.h"
#include "../nn/norm.h"
#include "ops_table.h"

namespace gradual::pt2 {
namespace {

Value linear_row(const Arguments& a) { return linear(a.tensor(0), a.tensor(1), a.optional_tensor(2)); }
Value bilinear(const Arguments& a) {
  // x1 [.., i], weight [o, i, j], x2 [.., j]
  const Tensor& w = a.tensor(2);
  const Tensor x1 = reshape(a.tensor(0), {-1, w.size(1)});
  const Tensor x2 = reshape(a.tensor(1), {-1, w.size(2)});
  const Tensor half = einsum("ni,oij->noj", {x1, w});
  Tensor y = sum(mul(half, unsqueeze(x2, 1)), {-1});
  if (!a.none(3)) y = add(y, a.tensor(3));
  Shape sizes = a.tensor(0).sizes();
  sizes[sizes.size() - 1] = w.size(0);
  return reshape(y, sizes);
}

// --- convolutions ----------------------------------------------------------------------------------------------------

// [C, H, W] gets a batch of one for the call.
template <class F> Tensor batched(const Tensor& x, int dims, const F& f) {
  return x.dim() == dims ? f(x) : squeeze(f(unsqueeze(x, 0)), 0);
}

Value conv2d_row(const Arguments& a) {
  const Conv2dOptions options{a.pair(3, 1), a.pair(4, 0), a.pair(5, 1), a.integer(6)};
  return batched(a.tensor(0), 4,
                 [&](const Tensor& x) { return conv2d(x, a.tensor(1), a.optional_tensor(2), options); });
}
// padding='same' or 'valid'. 'same' pads one more behind where the sum is odd.
Value conv_padding(const Arguments& a) {
  Tensor x = a.tensor(0);
  const Tensor& w = a.tensor(1);
  const int n = w.dim() - 2;
  const Size2 stride = a.pair(3, 1);
  const Size2 dilation = a.pair(5, 1);
  Shape before = Shape::filled(x.dim(), 0);
  Shape after = before;
  const bool same = a.text(4) == "same";
  for (int i = 0; same && i < n; ++i) {
    const std::int64_t total = dilation[n == 1 ? 1 : i] * (w.size(2 + i) - 1);
    before[x.dim() - n + i] = total / 2;
    after[x.dim() - n + i] = total - total / 2;
  }
  if (same) x = pad(x, before, after);
  if (n == 1) return conv1d(x, w, a.optional_tensor(2), {stride[1], 0, dilation[1], a.integer(6)});
  return conv2d(x, w, a.optional_tensor(2), {stride, 0, dilation, a.integer(6)});
}
Value conv1d_row(const Arguments& a) {
  const auto one = [&](int i, std::int64_t otherwise) { return a.pair(i, otherwise)[1]; };
  const Conv1dOptions options{one(3, 1), one(4, 0), one(5, 1), a.integer(6)};
  return batched(a.tensor(0), 3,
                 [&](const Tensor& x) { return conv1d(x, a.tensor(1), a.optional_tensor(2), options); });
}
Value conv_transpose2d_row(const Arguments& a) {
  ConvTranspose2dOptions options;
  options.stride = a.pair(3, 1);
  options.padding = a.pair(4, 0);
  options.output_padding = a.pair(5, 0);
  options.groups = a.integer(6);
  options.dilation = a.pair(7, 1);
  return batched(a.tensor(0), 4,
                 [&](const Tensor& x) { return conv_transpose2d(x, a.tensor(1), a.optional_tensor(2), options); });
}
Value conv_transpose1d_row(const Arguments& a) {
  const auto one = [&](int i, std::int64_t otherwise) { return a.pair(i, otherwise)[1]; };
  ConvTranspose2dOptions options;
  options.stride = {1, one(3, 1)};
  options.padding = {0, one(4, 0)};
  options.output_padding = {0, one(5, 0)};
  options.groups = a.integer(6);
  options.dilation = {1, one(7, 1)};
  const Tensor w = unsqueeze(a.tensor(1), 2);
  return squeeze(conv_transpose2d(unsqueeze(a.tensor(0), 2), w, a.optional_tensor(2), options), 2);
}
// input weight bias stride padding dilation transposed output_padding groups
Value convolution(const Arguments& a) {
  const int n = a.tensor(1).dim() - 2;
  if (n != 1 && n != 2) a.fail(1, "a weight of a convolution in one or two dims");
  if (!a.flag(6)) {
    if (n == 2)
      return conv2d(a.tensor(0), a.tensor(1), a.optional_tensor(2),
                    {a.pair(3, 1), a.pair(4, 0), a.pair(5, 1), a.integer(8)});
    return conv1d(a.tensor(0), a.tensor(1), a.optional_tensor(2),
                  {a.pair(3, 1)[1], a.pair(4, 0)[1], a.pair(5, 1)[1], a.integer(8)});
  }
  if (n == 1) a.fail(6, "false for one dim");
  return conv_transpose2d(a.tensor(0), a.tensor(1), a.optional_tensor(2),
                          {a.pair(3, 1), a.pair(4, 0), a.pair(7, 0), a.pair(5, 1), a.integer(8)});
}

// A convolution of volumes as one of images: the slices that a window spans become channels.
// input weight bias stride padding dilation groups
Value conv3d_row(const Arguments& a) {
  const bool single = a.tensor(0).dim() == 4;
  Tensor x = single ? unsqueeze(a.tensor(0), 0) : a.tensor(0);
  const Tensor& w = a.tensor(1);
  const auto three = [&](int i, std::int64_t otherwise) {
    std::vector<std::int64_t> given = a.integers(i);
    if (given.empty()) given = {otherwise};
    if (given.size() == 1) given.resize(3, given[0]);
    if (given.size() != 3) a.fail(i, "one or three integers");
    return given;
  };
  const std::vector<std::int64_t> stride = three(3, 1);
  const std::vector<std::int64_t> padding = three(4, 0);
  const std::vector<std::int64_t> dilation = three(5, 1);
  if (x.dim() != 5 || w.dim() != 5) a.fail(0, "volumes [N, C, D, H, W]");
  constexpr std::int64_t kMost = 1'000'000;
  if (stride[0] < 1 || dilation[0] < 1 || padding[0] < 0) a.fail(3, "strides and dilations of at least 1");
  if (stride[0] > kMost || dilation[0] > kMost || padding[0] > kMost || w.size(2) > kMost)
    a.fail(3, "at most a million");
  if (padding[0] > 0) x = pad(x, {0, 0, padding[0], 0, 0}, {0, 0, padding[0], 0, 0});
  const std::int64_t reach = dilation[0] * (w.size(2) - 1) + 1;
  const std::int64_t depth = x.size(2) < reach ? 0 : (x.size(2) - reach) / stride[0] + 1;
  if (depth < 1) a.fail(0, "as deep as the window");
  std::vector<Tensor> taps;
  for (std::int64_t k = 0; k < w.size(2); ++k) {
    const std::int64_t start = k * dilation[0];
    taps.push_back(slice(x, 2, {start, start + (depth - 1) * stride[0] + 1, stride[0]}));
  }
  const Tensor slices = permute(stack(taps, 2), {0, 3, 1, 2, 4, 5});  // [N, depth, C, taps, H, W]
  const Tensor images = reshape(slices, {x.size(0) * depth, x.size(1) * w.size(2), x.size(3), x.size(4)});
  const Tensor kernel = reshape(w, {w.size(0), w.size(1) * w.size(2), w.size(3), w.size(4)});
  const Conv2dOptions options{
      {stride[1], stride[2]}, {padding[1], padding[2]}, {dilation[1], dilation[2]}, a.integer(6)};
  const Tensor y = conv2d(images, kernel, a.optional_tensor(2), options);
  const Tensor volumes = transpose(reshape(y, {x.size(0), depth, y.size(1), y.size(2), y.size(3)}), 1, 2);
  return single ? squeeze(volumes, 0) : volumes;
}

// v g dim: v scaled so that its norm over the other dims is g (Salimans and Kingma 2016); over all for dim -1.
Value weight_norm(const Arguments& a) {
  const Tensor& v = a.tensor(0);
  if (a.integer(2) == -1) return mul(v, div(a.tensor(1), norm(v, 2)));
  Shape others;
  const int kept = wrap_dim(a.integer(2), v.dim(), "weight_norm");
  for (int d = 0; d < v.dim(); ++d)
    if (d != kept) others.push_back(d);
  const Tensor length = others.empty() ? abs(v) : norm(v, 2, others, true);
  return mul(v, div(a.tensor(1), length));
}

// --- norms -----------------------------------------------------------------------------------------------------------

// input weight bias running_mean running_var training momentum eps cudnn_enabled
Value batch_norm_row(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const bool recorded = a.flag(5);
  const bool tracked = !a.none(3) && !a.none(4);
  const bool use_batch = (recorded && a.training()) || !tracked;
  if (use_batch && modes().sum_over_parts)
    throw_error("synchronised batch norm is not supported in exported models; switch it off");
  const double eps = a.number(7);
  const BatchNormResult out = batch_norm(x, a.optional_tensor(1), a.optional_tensor(2), a.optional_tensor(3),
                                         a.optional_tensor(4), use_batch, eps);
  if (use_batch && tracked && x.numel() > 0 && !recomputing()) {
    const NoGrad no_grad;
    const CauseScope cause(causes::statistics);
    const Tensor batches = zeros({}, TensorOptions{.dtype = DType::i64, .device = x.device()});  // counted by the graph
    batch_norm_update_(a.tensor(3), a.tensor(4), batches, out.mean, out.invstd,
                       {a.number(6), eps, x.numel() / std::max<std::int64_t>(1, x.size(1))});
  }
  return out.y;
}

Value layer_norm_row(const Arguments& a) {
  const int dims = a.sizes(1).size();
  return layer_norm(a.tensor(0), dims, a.optional_tensor(2), a.optional_tensor(3), a.number(4));
}
Value native_layer_norm(const Arguments& a) {
  return list_of({layer_norm(a.tensor(0), a.sizes(1).size(), a.optional_tensor(2), a.optional_tensor(3), a.number(4))});
}
Value rms_norm_row(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const DType computed = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const double eps = a.optional_number(3).value_or(float_info(computed).epsilon);
  return rms_norm(x, a.sizes(1).size(), a.optional_tensor(2), eps);
}

// Per group over channels and positions (Wu and He 2018), as a layer norm of [N, G, rest].
Tensor grouped_norm(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias, double eps) {
  const std::int64_t channels = x.size(1);
  if (groups < 1 || channels % groups != 0) throwf("{} channels in {} groups", channels, groups);
  const Tensor rows = reshape(x, {x.size(0), groups, x.numel() / std::max<std::int64_t>(1, x.size(0) * groups)});
  Tensor y = reshape(layer_norm(rows, 1, {}, {}, eps), x.sizes());
  Shape along = Shape::filled(x.dim() - 1, 1);
  along[0] = channels;
  if (weight.defined()) y = mul(y, reshape(weight, along));
  if (bias.defined()) y = add(y, reshape(bias, along));
  return cast(y, x.dtype());
}
Value group_norm(const Arguments& a) {
  return grouped_norm(a.tensor(0), a.integer(1), a.optional_tensor(2), a.optional_tensor(3), a.number(4));
}
// input weight bias running_mean running_var use_input_stats momentum eps cudnn_enabled
Value instance_norm(const Arguments& a) {
  if (!a.flag(5)) a.fail(5, "true; running statistics of an instance norm are not supported");
  for (const int i : {3, 4})
    if (!a.none(i)) a.fail(i, "none; running statistics of an instance norm are not supported");
  return grouped_norm(a.tensor(0), a.tensor(0).size(1), a.optional_tensor(1), a.optional_tensor(2), a.number(7));
}

// --- dropout and attention -------------------------------------------------------------------------------------------

Value dropout_row(const Arguments& a) {
  const bool drops = a.flag(2) && a.training() && a.number(1) > 0;
  return drops ? dropout(a.tensor(0), a.number(1)) : a.tensor(0);
}
// Whole channels: a mask [N, C, 1, ..].
Value feature_dropout(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  if (!a.flag(2) || !a.training() || a.number(1) == 0) return x;
  Shape sizes = Shape::filled(x.dim(), 1);
  sizes[0] = x.size(0);
  sizes[1] = x.size(1);
  return mul(x, dropout(ones(sizes, options_of(x)), a.number(1)));
}

// The heads of k and v repeated for groups of queries (Ainslie et al. 2023).
Tensor repeated_heads(const Tensor& t, std::int64_t heads) {
  const int dim = t.dim() - 3;
  const std::int64_t times = heads / std::max<std::int64_t>(1, t.size(dim));
  Shape wide = t.sizes();
  wide.insert(dim + 1, times);
  Shape sizes = t.sizes();
  sizes[dim] *= times;
  return reshape(expand(unsqueeze(t, dim + 1), wide), sizes);
}
// query key value attn_mask dropout_p is_causal scale enable_gqa
Value attention(const Arguments& a) {
  const Tensor& q = a.tensor(0);
  Tensor k = a.tensor(1);
  Tensor v = a.tensor(2);
  if (a.flag(7) && q.dim() >= 3 && k.size(-3) != q.size(-3)) {
    k = repeated_heads(k, q.size(-3));
    v = repeated_heads(v, q.size(-3));
  }
  AttentionOptions options;
  options.causal = a.flag(5);
  options.scale = a.optional_number(6).value_or(0);
  options.dropout = a.training() ? a.number(4) : 0;
  return scaled_dot_product_attention(q, k, v, a.optional_tensor(3), options);
}

constexpr OpRow kLayerRows[] = {
    {"aten.linear.default", "input weight bias=None", linear_row},
    {"aten.bilinear.default", "input1 input2 weight bias=None", bilinear},
    {"aten.conv2d.default", "input weight bias=None stride=1 padding=0 dilation=1 groups=1", conv2d_row},
    {"aten.conv2d.padding", "input weight bias=None stride=1 padding='valid' dilation=1 groups=1", conv_padding},
    {"aten.conv1d.default", "input weight bias=None stride=1 padding=0 dilation=1 groups=1", conv1d_row},
    {"aten.conv1d.padding", "input weight bias=None stride=1 padding='valid' dilation=1 groups=1", conv_padding},
    {"aten.conv3d.default", "input weight bias=None stride=1 padding=0 dilation=1 groups=1", conv3d_row},
    {"aten._weight_norm.default", "v g dim=0", weight_norm},
    {"aten.conv_transpose2d.input", "input weight bias=None stride=1 padding=0 output_padding=0 groups=1 dilation=1",
     conv_transpose2d_row},
    {"aten.conv_transpose1d.default", "input weight bias=None stride=1 padding=0 output_padding=0 groups=1 dilation=1",
     conv_transpose1d_row},
    {"aten.convolution.default", "input weight bias stride padding dilation transposed output_padding groups",
     convolution},
    {"aten.batch_norm.default", "input weight bias running_mean running_var training momentum eps cudnn_enabled=False",
     batch_norm_row, Aliasing::none, nullptr, 5},
    {"aten.layer_norm.default", "input normalized_shape weight=None bias=None eps=1e-5 cudnn_enable=True",
     layer_norm_row},
    {"aten.native_layer_norm.default", "input normalized_shape weight bias eps", native_layer_norm},
    {"aten.rms_norm.default", "input normalized_shape weight=None eps=None", rms_norm_row},
    {"aten.group_norm.default", "input num_groups weight=None bias=None eps=1e-5 cudnn_enabled=True", group_norm},
    {"aten.instance_norm.default",
     "input weight bias running_mean running_var use_input_stats momentum eps cudnn_enabled", instance_norm},
    {"aten.dropout.default", "input p train", dropout_row, Aliasing::none, nullptr, 2},
    {"aten.feature_dropout.default", "input p train", feature_dropout, Aliasing::none, nullptr, 2},
    {"aten.scaled_dot_product_attention.default",
     "query key value attn_mask=None dropout_p=0.0 is_causal=False scale=None enable_gqa=False", attention},
};

}  // namespace

std::span<const OpRow> layer_rows() { return kLayerRows; }

}  // namespace gradual::pt2
