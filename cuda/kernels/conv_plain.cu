// Convolutions with one thread per output element.
#include "../../core/ops/compute_mode.h"
#include "conv.h"
#include "elements.h"

namespace gradual::cuda {
namespace {

// An array [.., .., .., ..] that is read.
template <class C> struct Array4 {
  const void* data;
  DType dtype;
  bool tf32;
  std::int64_t size[4], stride[4];
  __device__ C operator()(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) const {
    const C value = load_element<C>(dtype, data, a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3]);
    if constexpr (std::is_same_v<C, float>)
      if (tf32) return round_tf32(value);
    return value;
  }
};

template <class C> struct PlainConvolution {
  OpId op;
  std::int64_t step[2], padding[2], dilation[2], groups;
  Array4<C> x, w, y;
  void* out;
  bool adds;

  __device__ void operator()(std::int64_t i) const {
    const Array4<C>& made = op == OpId::conv2d ? y : op == OpId::conv2d_backward_input ? x : w;
    std::int64_t index[4];
    for (int d = 3; d >= 0; --d) {
      index[d] = i % made.size[d];
      i /= made.size[d];
    }
    std::int64_t at = 0;
    for (int d = 0; d < 4; ++d) at += index[d] * made.stride[d];
    C sum = 0;
    if (op == OpId::conv2d) sum = output(index[0], index[1], index[2], index[3]);
    else if (op == OpId::conv2d_backward_input) sum = input_gradient(index[0], index[1], index[2], index[3]);
    else sum = weight_gradient(index[0], index[1], index[2], index[3]);
    if (adds) sum += load_element<C>(made.dtype, out, at);
    store_element(made.dtype, sum, out, at);
  }

 private:
  __device__ bool inside(std::int64_t row, std::int64_t col) const {
    return row >= 0 && row < x.size[2] && col >= 0 && col < x.size[3];
  }
  __device__ std::int64_t seen(int dim, std::int64_t window, std::int64_t tap) const {
    return window * step[dim] - padding[dim] + tap * dilation[dim];
  }
  // The window whose tap sees `position`, or -1.
  __device__ std::int64_t window(int dim, std::int64_t position, std::int64_t tap) const {
    const std::int64_t start = position + padding[dim] - tap * dilation[dim];
    const std::int64_t found = start / step[dim];
    return start >= 0 && found * step[dim] == start && found < y.size[2 + dim] ? found : -1;
  }

  __device__ C output(std::int64_t n, std::int64_t o, std::int64_t row, std::int64_t col) const {
    const std::int64_t first = o / (w.size[0] / groups) * w.size[1];  // channel of x
    C sum = 0;
    for (std::int64_t c = 0; c < w.size[1]; ++c)
      for (std::int64_t u = 0; u < w.size[2]; ++u)
        for (std::int64_t v = 0; v < w.size[3]; ++v) {
          const std::int64_t h = seen(0, row, u);
          const std::int64_t k = seen(1, col, v);
          if (inside(h, k)) sum += x(n, first + c, h, k) * w(o, c, u, v);
        }
    return sum;
  }
  __device__ C input_gradient(std::int64_t n, std::int64_t channel, std::int64_t h, std::int64_t k) const {
    const std::int64_t each = w.size[0] / groups;
    const std::int64_t c = channel % w.size[1];
    const std::int64_t first = channel / w.size[1] * each;
    C sum = 0;
    for (std::int64_t o = first; o < first + each; ++o)
      for (std::int64_t u = 0; u < w.size[2]; ++u)
        for (std::int64_t v = 0; v < w.size[3]; ++v) {
          const std::int64_t row = window(0, h, u);
          const std::int64_t col = window(1, k, v);
          if (row >= 0 && col >= 0) sum += y(n, o, row, col) * w(o, c, u, v);
        }
    return sum;
  }
  __device__ C weight_gradient(std::int64_t o, std::int64_t c, std::int64_t u, std::int64_t v) const {
    const std::int64_t channel = o / (w.size[0] / groups) * w.size[1] + c;
    C sum = 0;
    for (std::int64_t n = 0; n < y.size[0]; ++n)
      for (std::int64_t row = 0; row < y.size[2]; ++row)
        for (std::int64_t col = 0; col < y.size[3]; ++col) {
          const std::int64_t h = seen(0, row, u);
          const std::int64_t k = seen(1, col, v);
          if (inside(h, k)) sum += y(n, o, row, col) * x(n, channel, h, k);
        }
    return sum;
  }
};

template <class C> void start_plain(const Convolution& c, const ConvolutionData& data) {
  PlainConvolution<C> f{.op = c.op,
                        .step = {},
                        .padding = {},
                        .dilation = {},
                        .groups = c.attrs.groups,
                        .x = {},
                        .w = {},
                        .y = {},
                        .out = data.made(c.op),
                        .adds = c.adds};
  for (int i = 0; i < 2; ++i) {
    f.step[i] = c.attrs.stride[i];
    f.padding[i] = c.attrs.padding[i];
    f.dilation[i] = c.attrs.dilation[i];
  }
  const auto describe = [&](Array4<C>& to, const void* values, const Shape& sizes) {
    const Shape strides = c.strides(sizes);
    to.data = values;
    to.dtype = c.dtype;
    to.tf32 = c.tf32;
    for (int d = 0; d < 4; ++d) {
      to.size[d] = sizes[d];
      to.stride[d] = strides[d];
    }
  };
  describe(f.x, data.x, c.x);
  describe(f.w, data.w, c.w);
  describe(f.y, data.y, c.y);
  for_each(numel(c.makes(OpId::conv2d) ? c.y : c.makes(OpId::conv2d_backward_input) ? c.x : c.w), f);
}

}  // namespace

void plain_convolve(const Convolution& c, const ConvolutionData& data) {
  cpu::visit_floating(c.dtype, [&]<class C>(C) { start_plain<C>(c, data); });
}

}  // namespace gradual::cuda
