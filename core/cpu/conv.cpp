// conv2d and its two gradients: im2col unfolds the windows of some output rows at a time, and each group is a matrix
// product.

#include "../kernels/contraction_operand.h"
#include "../kernels/loops.h"
#include "../ops/conv_by_gemm.h"
#include "../ops/dispatch.h"
#include "../ops/ops.h"
#include "../support/parallel.h"
#include "gemm.h"
#include "im2col.h"
#include "kernels.h"
#include "rounded_gemm.h"

namespace gradual::cpu {
namespace {

inline constexpr std::int64_t kUnfolded = 1 << 17;  // elements of one thread's scratch memory, about
inline constexpr std::int64_t kParts = 16;          // parts of the batch that threads share, at most
inline constexpr std::int64_t kPixels = 256;        // output pixels of a part, about (weight gradients: at least)
inline constexpr std::int64_t kPartialElements = 1 << 24;  // elements of all partial weight gradients, about

// y = conv2d(x, w), by group. `y` describes the output as windows of one tap each, so that unfolding gathers its
// pixels.
struct ConvSizes {
  std::int64_t images, groups, inputs, outputs;  // channels of one group
  Windows x, y;
  ConvSizes(const ConvAttrs& a, const Shape& xs, const Shape& ws, const Shape& ys)
      : images(xs[0]), groups(a.groups), inputs(ws[1]), outputs(ws[0] / a.groups) {
    x = {inputs, {xs[2], xs[3]}, {ws[2], ws[3]}, {ys[2], ys[3]}};
    y = {outputs, {ys[2], ys[3]}, {1, 1}, {ys[2], ys[3]}};
    for (int i = 0; i < 2; ++i) {
      x.stride[i] = a.stride[i];
      x.padding[i] = a.padding[i];
      x.dilation[i] = a.dilation[i];
    }
  }
  std::int64_t depth() const { return x.depth(); }
};

// Some output rows of one group, with columns [depth, pixels] of x and a tile [outputs, pixels] of y.
template <class T> struct Chunk {
  std::int64_t part, group, first, rows, pixels;
  T* columns;
  T* tile;
};

// Calls f(chunk) for every group and all output rows of all images. The rows are cut into at most `most` parts, each a
// multiple of `unit` rows. The chunks of one group and part run in order, on one thread.
template <class T, class F> void for_chunks(const ConvSizes& p, std::int64_t most, std::int64_t unit, const F& f) {
  const std::int64_t width = p.y.size[1];
  const std::int64_t each = p.depth() + p.outputs;
  const std::int64_t all = p.images * p.y.size[0];
  const std::int64_t own = unit ? ((all + unit - 1) / unit + most - 1) / most * unit : 0;  // rows of a part
  const std::int64_t parts = own ? (all + own - 1) / own : 0;
  const std::int64_t rows =
      even_part(own, std::max<std::int64_t>(1, kUnfolded / std::max<std::int64_t>(1, each * width)));
  const std::int64_t work = std::max<std::int64_t>(1, own * width * p.depth() * p.outputs);
  parallel_for(parts * p.groups, std::max<std::int64_t>(1, kWorthThreads / work),
               [&](std::int64_t i, std::int64_t end) {
                 const Scratch memory(static_cast<std::size_t>(each * rows * width) * sizeof(T) + 1);
                 for (; i < end; ++i) {
                   const std::int64_t part = i / p.groups;
                   const std::int64_t last = std::min(all, (part + 1) * own);
                   for (std::int64_t first = part * own; first < last; first += rows) {
                     const std::int64_t here = std::min(rows, last - first);
                     f(Chunk<T>{part, i % p.groups, first, here, here * width, memory.as<T>(),
                                memory.as<T>() + p.depth() * here * width});
                   }
                 }
               });
}

// Images of any dtype and strides, unfolded as values of T. They are converted as they are unfolded, without a copy of
// all images.
class UnfoldedImages {
 public:
  explicit UnfoldedImages(const Tensor& t) : tensor_(t), tf32_(rounds_to_tf32(t.dtype())) {}
  template <class T> void unfold(const Windows& w, std::int64_t channel, const Chunk<T>& c, T* columns) const {
    const DType dtype = tensor_.dtype();
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    const char* base = static_cast<const char*>(tensor_.raw()) + channel * tensor_.strides()[1] * size;
    const auto read = [&](std::int64_t at, std::int64_t step, std::int64_t n, T* to) {
      if (dtype != dtype_of<T> || step != 1) fetch_and_cast(dtype, base + at * size, step, to, n);
      else std::copy_n(reinterpret_cast<const T*>(base) + at, n, to);
    };
    im2col(w, tensor_.strides(), c.first, c.rows, columns, read);
    if constexpr (std::is_same_v<T, float>)
      if (tf32_) round_tf32(columns, w.depth() * c.pixels);
  }

 private:
  const Tensor& tensor_;
  bool tf32_;
};

// c [m, n] += a [m, k] b [k, n]; the rows of c are adjacent.
template <class T>
void product(std::int64_t m, std::int64_t n, std::int64_t k, const MatrixRef<T>& a, const MatrixRef<T>& b, T* c) {
  gemm<T>({.m = m, .n = n, .k = k, .a = a, .b = b, .c = c, .ldc = n});
}

template <class T> void conv2d_of(const OpCall& call, Tensor& out) {
  const ConvSizes p(call.get<ConvAttrs>(), call[0].sizes(), call[1].sizes(), out.sizes());
  const UnfoldedImages x(call[0]);
  const Loaded<T> w(contiguous(call[1]));
  const Loaded<T> bias(call[2], Loaded<T>::As::rows);
  auto* y = static_cast<char*>(out.raw());
  CastCounts* const counts = counts_for(dtype_of<T>, out.dtype());
  // No sum crosses rows, so several threads can share one image.
  const std::int64_t unit = std::max<std::int64_t>(1, kPixels / std::max<std::int64_t>(1, p.y.size[1]));
  for_chunks<T>(p, kParts, unit, [&](const Chunk<T>& c) {
    x.unfold(p.x, c.group * p.inputs, c, c.columns);
    const std::int64_t o = c.group * p.outputs;
    for (std::int64_t i = 0; i < p.outputs; ++i)
      std::fill_n(c.tile + i * c.pixels, c.pixels, bias.data() ? bias.data()[o + i] : T{0});
    product<T>(p.outputs, c.pixels, p.depth(), {w.data() + o * p.depth(), p.depth(), 1}, {c.columns, c.pixels, 1},
               c.tile);
    CastCounts mine;
    const Shape& strides = out.strides();
    const auto store = [&](std::int64_t at, std::int64_t to, std::int64_t, std::int64_t, std::int64_t n) {
      void* row = y + (o * strides[1] + to) * static_cast<std::int64_t>(size_of(out.dtype()));
      cast_and_store(out.dtype(), c.tile + at, row, strides[3], n * p.y.out[1], counts ? &mine : nullptr);
    };
    for_taps(p.y, strides, c.first, c.rows, store);
    if (counts) merge_counts(counts, mine);
  });
}

template <class T> void backward_input_of(const OpCall& call, Tensor& out) {
  const ConvSizes p(call.get<ConvAttrs>(), out.sizes(), call[1].sizes(), call[0].sizes());
  const UnfoldedImages dy(call[0]);
  const Loaded<T> w(contiguous(call[1]));
  const Result<T> dx(out);
  std::fill_n(dx.data(), out.numel(), T{0});
  for_chunks<T>(p, kParts, p.y.size[0], [&](const Chunk<T>& c) {
    const std::int64_t o = c.group * p.outputs;
    dy.unfold(p.y, o, c, c.tile);
    std::fill_n(c.columns, p.depth() * c.pixels, T{0});
    product<T>(p.depth(), c.pixels, p.outputs, {w.data() + o * p.depth(), 1, p.depth()}, {c.tile, c.pixels, 1},
               c.columns);
    col2im(p.x, c.columns, out.strides(), c.first, c.rows, dx.data() + c.group * p.inputs * out.strides()[1]);
  });
  dx.store();
}

// Each part of the batch has its own sum. The sums of the parts are added in order.
template <class T> void backward_weight_of(const OpCall& call, Tensor& out) {
  const ConvSizes p(call.get<ConvAttrs>(), call[1].sizes(), out.sizes(), call[0].sizes());
  const UnfoldedImages dy(call[0]);
  const UnfoldedImages x(call[1]);
  const Result<T> dw(out);
  const std::int64_t pixels = p.images * p.y.size[0] * p.y.size[1];
  const std::int64_t parts =
      std::clamp(std::min({p.images, pixels / kPixels, kPartialElements / out.numel()}), std::int64_t{1}, kParts);
  const Scratch sums(static_cast<std::size_t>(parts * out.numel()) * sizeof(T));
  std::fill_n(sums.as<T>(), parts * out.numel(), T{0});
  for_chunks<T>(p, parts, p.y.size[0], [&](const Chunk<T>& c) {
    const std::int64_t o = c.group * p.outputs;
    dy.unfold(p.y, o, c, c.tile);
    x.unfold(p.x, c.group * p.inputs, c, c.columns);
    product<T>(p.outputs, p.depth(), c.pixels, {c.tile, c.pixels, 1}, {c.columns, 1, c.pixels},
               sums.as<T>() + c.part * out.numel() + o * p.depth());
  });
  std::fill_n(dw.data(), out.numel(), T{0});
  for (std::int64_t part = 0; part < parts; ++part)
    for (std::int64_t i = 0; i < out.numel(); ++i) dw.data()[i] += sums.as<T>()[part * out.numel() + i];
  dw.store();
}

void convolution(const OpCall& call, Outputs& out) {
  if (out[0].numel() == 0 || convolution_accumulated(call, out[0])) return;
  visit_floating(out[0].dtype(), [&]<class T>(T) {
    if (call.op == OpId::conv2d) conv2d_of<T>(call, out[0]);
    else if (call.op == OpId::conv2d_backward_input) backward_input_of<T>(call, out[0]);
    else backward_weight_of<T>(call, out[0]);
  });
}

}  // namespace

void register_convolutions() {
  for (const OpId op : {OpId::conv2d, OpId::conv2d_backward_input, OpId::conv2d_backward_weight})
    set_kernel(op, convolution);
}

}  // namespace gradual::cpu
