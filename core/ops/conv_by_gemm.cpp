#include "conv_by_gemm.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "../formats/accumulator.h"
#include "ops.h"

namespace gradual {
namespace {

// The windows over a field [B, H, W, K] of images, whose last dim lies innermost.
struct Windows {
  Tensor field;
  std::int64_t taps[2], out[2];       // of a window, of an image
  std::int64_t step[2], dilation[2];  // from window to window, from tap to tap
  std::int64_t depth() const { return taps[0] * taps[1] * field.size(3); }
  std::int64_t per_image() const { return out[0] * out[1]; }
};

// Images with their dims in this order and zeros around them.
Tensor padded(const Tensor& x, const Shape& order, const Size2& padding) {
  const Tensor p = x.permute(order);
  if (!padding[0] && !padding[1]) return p.contiguous();
  const Shape sizes{p.size(0), p.size(1) + 2 * padding[0], p.size(2) + 2 * padding[1], p.size(3)};
  const Tensor field = zeros(sizes, options_of(x));
  field.narrow(1, padding[0], p.size(1)).narrow(2, padding[1], p.size(2)).copy_(p);
  return field;
}

// dy [N, O, oh, ow] spread over the strides, as a field [N, H, W, O], so that convolving it with the turned kernel
// gives dx.
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
  const Tensor field = zeros({dy.size(0), length[0], length[1], dy.size(1)}, options_of(dy));
  const Shape& s = field.strides();
  const Tensor turned = dy.permute({0, 2, 3, 1});
  as_strided(field, turned.sizes(), {s[0], s[1] * a.stride[0], s[2] * a.stride[1], 1}, at[0] * s[1] + at[1] * s[2])
      .copy_(turned);
  return field.narrow(1, margin[0], size[0]).narrow(2, margin[1], size[1]);
}

// The kernel [O, C, kh, kw] turned by 180 degrees.
Tensor turned(const Tensor& w) {
  const double last = static_cast<double>(w.size(2) * w.size(3) - 1);
  const Tensor order = arange(last, -1, -1, {.dtype = DType::i64, .device = w.device()});
  return index_select(w.flatten(2), 2, order).reshape(w.sizes());
}

// The windows [images, rows, out[1], taps[0], taps[1], K] of some output rows of some images, as a view.
Tensor view_of(const Windows& w, std::int64_t image, std::int64_t images, std::int64_t row, std::int64_t rows) {
  const Shape& s = w.field.strides();
  return as_strided(w.field, {images, rows, w.out[1], w.taps[0], w.taps[1], w.field.size(3)},
                    {s[0], s[1] * w.step[0], s[2] * w.step[1], s[1] * w.dilation[0], s[2] * w.dilation[1], s[3]},
                    w.field.offset() + image * s[0] + row * w.step[0] * s[1]);
}

// Calls f(windows, first row) for the windows, some images or some output rows of one image at a time.
template <class F> void for_parts(const Windows& w, std::int64_t elements, const F& f) {
  const std::int64_t all = w.field.size(0);  // at least 1
  const std::int64_t fit = std::max<std::int64_t>(1, elements / std::max<std::int64_t>(1, w.depth()));
  std::int64_t images = all;
  std::int64_t rows = w.out[0];
  if (elements > 0 && fit < all * w.per_image()) {
    images = std::max<std::int64_t>(1, fit / w.per_image());
    if (fit < w.per_image()) rows = std::clamp<std::int64_t>(fit / w.out[1], 1, w.out[0]);
  }
  for (std::int64_t image = 0; image < all; image += images)
    for (std::int64_t row = 0; row < w.out[0]; row += rows)
      f(view_of(w, image, std::min(images, all - image), row, std::min(rows, w.out[0] - row)),
        image * w.per_image() + row * w.out[1]);
}

// The products of all parts, joined along `dim`, of which they fill `size` elements.
class Joined {
 public:
  Joined(int dim, std::int64_t size) : dim_(dim), size_(size) {}
  void add(const Tensor& part) {
    if (part.size(dim_) == size_) {
      whole_ = part;
      return;
    }
    if (!whole_.defined()) {
      Shape sizes = part.sizes();
      sizes[dim_] = size_;
      whole_ = empty(sizes, options_of(part));
    }
    whole_.narrow(dim_, at_, part.size(dim_)).copy_(part);
    at_ += part.size(dim_);
  }
  const Tensor& whole() const { return whole_; }

 private:
  int dim_;
  std::int64_t size_;
  std::int64_t at_ = 0;
  Tensor whole_;
};

// What one group of a convolution multiplies.
struct Group {
  const ConvAttrs& attrs;
  const Shape& out;
  const WindowProduct& product;
  std::int64_t elements;
  std::int64_t number;
};

// Images [N, n, oh, ow] of the product of windows with rows [n, k].
Tensor images_of(const Group& g, const Windows& w, const Tensor& others) {
  Joined y(0, w.field.size(0) * w.per_image());
  for_parts(w, g.elements, [&](const Tensor& windows, std::int64_t first) {
    y.add(g.product(windows, others, {g.number, first}));
  });
  return y.whole().reshape({w.field.size(0), w.out[0], w.out[1], others.size(0)}).permute({0, 3, 1, 2}).contiguous();
}

Tensor forward(const Group& g, const Tensor& x, const Tensor& w) {
  const ConvAttrs& a = g.attrs;
  const Windows windows{padded(x, {0, 2, 3, 1}, a.padding),
                        {w.size(2), w.size(3)},
                        {g.out[2], g.out[3]},
                        {a.stride[0], a.stride[1]},
                        {a.dilation[0], a.dilation[1]}};
  return images_of(g, windows, conv_rows(OpId::conv2d, w, 1));
}

Tensor input_gradient(const Group& g, const Tensor& dy, const Tensor& w) {
  const ConvAttrs& a = g.attrs;
  const Windows windows{spread(dy, w.sizes().begin() + 2, a),
                        {w.size(2), w.size(3)},
                        {g.out[2], g.out[3]},
                        {1, 1},
                        {a.dilation[0], a.dilation[1]}};
  return images_of(g, windows, conv_rows(OpId::conv2d_backward_input, w, 1));
}

// The taps and the windows change places: "images" are the channels of x, "windows" the taps of the kernel, and their
// elements are the pixels of dy.
Tensor weight_gradient(const Group& g, const Tensor& dy, const Tensor& x) {
  const ConvAttrs& a = g.attrs;
  const Windows windows{padded(x, {1, 2, 3, 0}, a.padding),
                        {dy.size(2), dy.size(3)},
                        {a.size[0], a.size[1]},
                        {a.dilation[0], a.dilation[1]},
                        {a.stride[0], a.stride[1]}};
  const Tensor errors = conv_rows(OpId::conv2d_backward_weight, dy, 1);
  Joined dw(1, x.size(1) * windows.per_image());
  for_parts(windows, g.elements, [&](const Tensor& part, std::int64_t first) {
    dw.add(g.product(part, errors, {g.number, first}));
  });
  return dw.whole().reshape({dy.size(1), x.size(1), a.size[0], a.size[1]});
}

}  // namespace

ConvAxis conv_axis(OpId op) {
  if (op == OpId::conv2d) return {0, {1, 1}};
  if (op == OpId::conv2d_backward_input) return {0, {1, 0}};
  return {1, {0, 0}};
}

Tensor conv_rows(OpId op, const Tensor& t, std::int64_t groups) {
  const Shape& s = t.sizes();
  if (op == OpId::conv2d) return t.permute({0, 2, 3, 1}).reshape({s[0], s[1] * s[2] * s[3]});
  if (op == OpId::conv2d_backward_weight) return t.permute({1, 2, 3, 0}).reshape({s[1], s[2] * s[3] * s[0]});
  const std::int64_t outputs = s[0] / groups;
  return turned(t)
      .reshape({groups, outputs, s[1], s[2], s[3]})
      .permute({0, 2, 3, 4, 1})
      .reshape({groups * s[1], s[2] * s[3] * outputs});
}

Tensor from_conv_rows(OpId op, const Tensor& rows, const Shape& s, std::int64_t groups) {
  if (op == OpId::conv2d) return rows.reshape({s[0], s[2], s[3], s[1]}).permute({0, 3, 1, 2});
  if (op == OpId::conv2d_backward_weight) return rows.reshape({s[1], s[2], s[3], s[0]}).permute({3, 0, 1, 2});
  return turned(rows.reshape({groups, s[1], s[2], s[3], s[0] / groups}).permute({0, 4, 1, 2, 3}).reshape(s));
}

Tensor unfolded(const Tensor& windows) {
  const Shape& s = windows.sizes();
  return windows.contiguous().reshape({s[0] * s[1] * s[2], s[3] * s[4] * s[5]});
}

Tensor conv_by_products(OpId op, const Tensor& first, const Tensor& second, const ConvAttrs& attrs, const Shape& out,
                        const ConvProduct& product, std::int64_t elements) {
  const auto of_windows = [&](const Tensor& windows, const Tensor& rows, const ConvPart& part) {
    const Tensor unfolded_rows = unfolded(windows);
    if (conv_axis(op).windows == 0) return product(unfolded_rows, rows.t(), part);
    return product(rows, unfolded_rows.t(), part);
  };
  return conv_by_windows(op, first, second, attrs, out, of_windows, elements);
}

Tensor conv_by_windows(OpId op, const Tensor& first, const Tensor& second, const ConvAttrs& attrs, const Shape& out,
                       const WindowProduct& product, std::int64_t elements) {
  if (numel(out) == 0) return zeros(out, options_of(first));
  // Groups lie along the channels, or along a weight's outputs.
  const int dim = op == OpId::conv2d_backward_weight ? 1 : 0;
  const auto part = [&](const Tensor& t, int along, std::int64_t g) {
    const std::int64_t n = t.size(along) / attrs.groups;
    return attrs.groups == 1 ? t : t.narrow(along, g * n, n);
  };
  std::vector<Tensor> parts;
  for (std::int64_t i = 0; i < attrs.groups; ++i) {
    const Tensor a = part(first, 1, i);
    const Tensor b = part(second, dim, i);
    const Group g{attrs, out, product, elements, i};
    if (op == OpId::conv2d) parts.push_back(forward(g, a, b));
    else if (op == OpId::conv2d_backward_input) parts.push_back(input_gradient(g, a, b));
    else parts.push_back(weight_gradient(g, a, b));
  }
  return attrs.groups == 1 ? parts[0] : cat(parts, 1 - dim);
}

bool convolution_accumulated(const OpCall& call, Tensor& out) {
  const std::optional<Accumulator>& how = current_accumulator();
  if (!how || out.dtype() == DType::f64) return false;
  const Tensor bias = call.op == OpId::conv2d ? call[2] : Tensor();
  const auto product = [&](const Tensor& a, const Tensor& b, const ConvPart& part) {
    if (!bias.defined()) return matmul(a, b);
    return linear(a, b.t(), bias.narrow(0, part.group * b.size(1), b.size(1)));
  };
  // Stochastic sums take their words by the place of an output in its product. GPUs have memory for whole windows.
  const bool whole = how->rounding.mode == RoundingMode::stochastic || !out.device().is_cpu();
  out.copy_(
      conv_by_products(call.op, call[0], call[1], call.get<ConvAttrs>(), out.sizes(), product, whole ? 0 : kConvPart));
  return true;
}

}  // namespace gradual
