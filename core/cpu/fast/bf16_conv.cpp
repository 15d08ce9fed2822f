#include "bf16_conv.h"

#include <algorithm>

#include "../../formats/accumulator.h"
#include "../../kernels/contraction_operand.h"
#include "../../kernels/loops.h"
#include "../../ops/attrs.h"
#include "../../support/parallel.h"
#include "../../tensor/memory.h"
#include "../im2col.h"
#include "../kernels.h"
#include "bf16_gemm.h"

namespace gradual::cpu {
namespace {

inline constexpr std::int64_t kDepth = 32;            // of a window, with its bias
inline constexpr std::int64_t kUnfolded = 128 << 10;  // bytes, about: they stay in a cache
inline constexpr std::int64_t kParts = 16;            // of the batch
inline constexpr std::int64_t kWide = 16384;          // pixels of a row, at most: one is unfolded at least

const BFloat16* numbers(const Tensor& t) { return static_cast<const BFloat16*>(t.raw()); }

// y [outputs, windows] = w [outputs, depth] x [depth, windows] for some rows of windows at a time.
struct Problem {
  Windows windows;
  std::int64_t images, outputs, depth, pixels, rows, chunks;  // rows of a chunk, chunks of an image
  const Tensor& x;
  Problem(const ConvAttrs& a, const Tensor& images_, const Shape& w, const Shape& y)
      : windows{w[1], {images_.size(2), images_.size(3)}, {w[2], w[3]}, {y[2], y[3]}},
        images(y[0]),
        outputs(w[0]),
        depth(w[1] * w[2] * w[3]),
        pixels(y[2] * y[3]),
        rows(even_part(y[2], std::max<std::int64_t>(1, kUnfolded / (2 * kDepth * y[3])))),
        chunks((y[2] + rows - 1) / rows),
        x(images_) {
    for (int i = 0; i < 2; ++i)
      windows.stride[i] = a.stride[i], windows.padding[i] = a.padding[i], windows.dilation[i] = a.dilation[i];
  }
  std::size_t unfolded() const { return static_cast<std::size_t>(kDepth * rows * windows.out[1]) * sizeof(BFloat16); }

  // Chunk `i` of all images, unfolded to [depth, pixels].
  struct Chunk {
    std::int64_t pixels, at;  // the first one, in its image
  };
  Chunk unfold(std::int64_t i, BFloat16* columns) const {
    const std::int64_t row = i % chunks * rows, some = std::min(rows, windows.out[0] - row);
    const BFloat16* const from = numbers(x);
    im2col(windows, x.strides(), i / chunks * windows.out[0] + row, some, columns,
           [=](std::int64_t at, std::int64_t step, std::int64_t n, BFloat16* to) {
             if (step == 1) std::copy_n(from + at, n, to);
             else
               for (std::int64_t k = 0; k < n; ++k) to[k] = from[at + k * step];
           });
    return {some * windows.out[1], row * windows.out[1]};
  }
  std::int64_t grain() const {
    return std::max<std::int64_t>(1, kWorthThreads / (kDepth * outputs * rows * windows.out[1]));
  }
};

// A bias is one more input of every window, a 1.
template <class Y> void forward(const Problem& p, const Tensor& w, const Tensor& bias, Y* y) {
  const std::int64_t depth = p.depth + (bias.defined() ? 1 : 0);
  const Scratch both(static_cast<std::size_t>(p.outputs * depth) * sizeof(BFloat16));
  auto* const weights = both.as<BFloat16>();
  for (std::int64_t o = 0; o < p.outputs; ++o) {
    std::copy_n(numbers(w) + o * p.depth, p.depth, weights + o * depth);
    if (bias.defined()) weights[o * depth + p.depth] = numbers(bias)[o];
  }
  parallel_for(p.images * p.chunks, p.grain(), [&](std::int64_t i, std::int64_t end) {
    const Scratch scratch(p.unfolded());
    auto* const columns = scratch.as<BFloat16>();
    for (; i < end; ++i) {
      const auto [pixels, at] = p.unfold(i, columns);
      std::fill_n(columns + p.depth * pixels, (depth - p.depth) * pixels, BFloat16(1));
      bf16_product<Y>({.m = p.outputs,
                       .n = pixels,
                       .k = depth,
                       .a = {weights, depth, 1},
                       .b = {columns, pixels, 1},
                       .bias = nullptr,
                       .c = y + i / p.chunks * p.outputs * p.pixels + at,
                       .across = p.pixels});
    }
  });
}

void weight_gradient(const Problem& p, const Tensor& dy, Tensor& dw) {
  const std::int64_t all = p.images * p.chunks, part = (all + kParts - 1) / kParts, parts = (all + part - 1) / part;
  const std::int64_t n = p.outputs * p.depth;
  const Scratch sums(static_cast<std::size_t>(parts * n) * sizeof(float));
  std::fill_n(sums.as<float>(), parts * n, 0.0F);
  parallel_for(parts, (p.grain() + part - 1) / part, [&](std::int64_t k, std::int64_t end) {
    const Scratch scratch(p.unfolded()), product(static_cast<std::size_t>(n) * sizeof(float));
    auto* const columns = scratch.as<BFloat16>();
    const auto* const here = product.as<float>();
    for (; k < end; ++k) {
      float* const sum = sums.as<float>() + k * n;
      for (std::int64_t i = k * part; i < std::min(all, (k + 1) * part); ++i) {
        const auto [pixels, at] = p.unfold(i, columns);
        bf16_product<float>({.m = p.outputs,
                             .n = p.depth,
                             .k = pixels,
                             .a = {numbers(dy) + i / p.chunks * p.outputs * p.pixels + at, p.pixels, 1},
                             .b = {columns, 1, pixels},
                             .bias = nullptr,
                             .c = product.as<float>(),
                             .across = p.depth});
        for (std::int64_t j = 0; j < n; ++j) sum[j] += here[j];
      }
    }
  });
  const Result<float> total(dw);
  std::fill_n(total.data(), n, 0.0F);
  for (std::int64_t k = 0; k < parts; ++k)
    for (std::int64_t j = 0; j < n; ++j) total.data()[j] += sums.as<float>()[k * n + j];
  total.store();
}

}  // namespace

bool bf16_shallow_convolution(const OpCall& call, Outputs& out) {
  const bool gradient = call.op == OpId::conv2d_backward_weight;
  const auto& a = call.get<ConvAttrs>();
  const Tensor &x = call[gradient ? 1 : 0], &w = gradient ? out[0] : call[1], &y = gradient ? call[0] : out[0];
  const Tensor bias = gradient ? Tensor() : call[2];
  const auto plain = [](const Tensor& t) { return t.dtype() == DType::bf16 && t.is_contiguous() && t.numel() > 0; };
  if (!has_bf16_product() || a.groups != 1 || current_accumulator()) return false;
  if (!plain(x) || !plain(w) || !plain(y) || (bias.defined() && !plain(bias))) return false;
  if (w.numel() / w.size(0) + (bias.defined() ? 1 : 0) > kDepth || y.size(3) > kWide) return false;
  const Problem p(a, x, w.sizes(), y.sizes());
  if (gradient) {
    weight_gradient(p, y, out[0]);
  } else if (counts_for(DType::f32, DType::bf16)) {
    const Result<float> sums(out[0]);
    forward(p, w, bias, sums.data());
    sums.store();
  } else {
    forward(p, w, bias, static_cast<BFloat16*>(out[0].raw()));
  }
  return true;
}

}  // namespace gradual::cpu
