#include "conv_by_gemm.h"

#include <algorithm>
#include <vector>

#include "../formats/accumulator.h"
#include "ops.h"

namespace gradual {
namespace {

// The windows of x [N, C, H, W] as a matrix [N * oh * ow, C * kh * kw]. Memory has its transpose, which is copied
// faster.
Tensor unfold(const Tensor& x, const std::int64_t* kernel, const ConvAttrs& a, const std::int64_t* out) {
  const Shape around{0, 0, a.padding[0], a.padding[1]};
  const Tensor p = a.padding[0] || a.padding[1] ? pad(x, around, around) : x.contiguous();
  const Shape& s = p.strides();
  const Tensor windows = as_strided(
      p, {x.size(1), kernel[0], kernel[1], x.size(0), out[0], out[1]},
      {s[1], s[2] * a.dilation[0], s[3] * a.dilation[1], s[0], s[2] * a.stride[0], s[3] * a.stride[1]}, p.offset());
  return windows.contiguous().reshape({x.size(1) * kernel[0] * kernel[1], x.size(0) * out[0] * out[1]}).t();
}

// rows [N * h * w, C] as [N, C, h, w].
Tensor as_images(const Tensor& rows, std::int64_t n, std::int64_t h, std::int64_t w) {
  return rows.reshape({n, h, w, rows.size(1)}).permute({0, 3, 1, 2}).contiguous();
}

// dy spread over the strides, so that convolving it with the rotated kernel gives dx.
Tensor spread(const Tensor& dy, const std::int64_t* kernel, const ConvAttrs& a) {
  std::int64_t size[2], margin[2], at[2], length[2];
  for (int i = 0; i < 2; ++i) {
    const std::int64_t before = a.dilation[i] * (kernel[i] - 1) - a.padding[i];
    size[i] = a.size[i] + a.dilation[i] * (kernel[i] - 1);
    margin[i] = std::max<std::int64_t>(0, -before);
    at[i] = margin[i] + before;
    length[i] = std::max(margin[i] + size[i], at[i] + a.stride[i] * (dy.size(2 + i) - 1) + 1);
  }
  // Puts element (y, x) of dy at before + stride * (y, x) of a field of zeros; elements outside affect no input.
  const Tensor field = zeros({dy.size(0), dy.size(1), length[0], length[1]}, options_of(dy));
  const Shape& s = field.strides();
  as_strided(field, dy.sizes(), {s[0], s[1], s[2] * a.stride[0], a.stride[1]}, at[0] * s[2] + at[1]).copy_(dy);
  return field.narrow(2, margin[0], size[0]).narrow(3, margin[1], size[1]);
}

Tensor input_gradient(const Tensor& dy, const Tensor& w, const ConvAttrs& a, const Shape& out,
                      const ConvProduct& product, std::int64_t group) {
  const std::int64_t* const kernel = w.sizes().begin() + 2;
  const ConvAttrs dense{{.dilation = {a.dilation[0], a.dilation[1]}}};
  const Tensor rows = unfold(spread(dy, kernel, a), kernel, dense, a.size.of);
  // turned[o, y, x, c] = w[o, c, kh - 1 - y, kw - 1 - x]
  const Tensor order =
      arange(static_cast<double>(kernel[0] * kernel[1] - 1), -1, -1, {.dtype = DType::i64, .device = w.device()});
  const Tensor turned = index_select(w.flatten(2), 2, order).permute({0, 2, 1}).reshape({rows.size(1), w.size(1)});
  return as_images(product(rows, turned, group), out[0], out[2], out[3]);
}

Tensor weight_gradient(const Tensor& dy, const Tensor& x, const ConvAttrs& a, const ConvProduct& product,
                       std::int64_t group) {
  const Tensor rows = unfold(x, a.size.of, a, dy.sizes().begin() + 2);
  const Tensor errors = dy.permute({1, 0, 2, 3}).reshape({dy.size(1), rows.size(0)});
  return product(errors, rows, group).reshape({dy.size(1), x.size(1), a.size[0], a.size[1]});
}

}  // namespace

Tensor conv_by_products(OpId op, const Tensor& first, const Tensor& second, const ConvAttrs& attrs, const Shape& out,
                        const ConvProduct& product) {
  // Groups lie along the channels, or along a weight's outputs.
  const int dim = op == OpId::conv2d_backward_weight ? 1 : 0;
  const auto part = [&](const Tensor& t, int along, std::int64_t g) {
    const std::int64_t n = t.size(along) / attrs.groups;
    return attrs.groups == 1 ? t : t.narrow(along, g * n, n);
  };
  std::vector<Tensor> parts;
  for (std::int64_t g = 0; g < attrs.groups; ++g) {
    const Tensor a = part(first, 1, g);
    const Tensor b = part(second, dim, g);
    if (op == OpId::conv2d)
      parts.push_back(as_images(product(unfold(a, b.sizes().begin() + 2, attrs, out.begin() + 2), b.flatten(1).t(), g),
                                out[0], out[2], out[3]));
    else if (op == OpId::conv2d_backward_input) parts.push_back(input_gradient(a, b, attrs, out, product, g));
    else parts.push_back(weight_gradient(a, b, attrs, product, g));
  }
  return attrs.groups == 1 ? parts[0] : cat(parts, 1 - dim);
}

bool convolution_accumulated(const OpCall& call, Tensor& out) {
  if (!current_accumulator() || out.dtype() == DType::f64) return false;
  const auto product = [&](const Tensor& a, const Tensor& b, std::int64_t group) {
    if (call.op != OpId::conv2d || !call[2].defined()) return matmul(a, b);
    return linear(a, b.t(), call[2].narrow(0, group * b.size(1), b.size(1)));
  };
  out.copy_(conv_by_products(call.op, call[0], call[1], call.get<ConvAttrs>(), out.sizes(), product));
  return true;
}

}  // namespace gradual
