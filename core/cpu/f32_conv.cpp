// dw [taps, outputs] = x [taps, pixels] dy [pixels, outputs], where x is not unfolded (an implicit GEMM, Chetlur et al. 2014):
// in a copy of the images with their padding, what a tap sees of a pixel lies where the tap says plus where the pixel says.
#include "f32_conv.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "../accumulator.h"
#include "../attrs.h"
#include "../memory.h"
#include "../multiversion.h"
#include "../parallel.h"
#include "f32_tile.h"
#include "gemm.h"
#include "loaded.h"
#include "loops.h"

#if defined(__x86_64__) && !defined(__clang__)

namespace gradual::cpu {
namespace {

using Vector = Avx2::Vector;
using Offsets = std::vector<std::int32_t>;

inline constexpr int kLanes = Avx2::kLanes, kRows = Avx2::kRows, kColumns = 2 * kLanes;
inline constexpr std::int64_t kOutputs = 8;        // of a group, at least
inline constexpr std::int64_t kDepth = 256;        // of a sum at a time: a strip of b then stays in the first cache
inline constexpr std::int64_t kPixels = 256;       // of a block, about
inline constexpr std::int64_t kCopied = 1 << 15;   // numbers of a block's copy, about: a part of the second cache
inline constexpr std::int64_t kParts = 16;         // of the batch
inline constexpr std::int64_t kPartial = 1 << 24;  // numbers of all parts' sums, at most

// c [m, kColumns] += a [m, k] b [k, kColumns]; element (i, p) of a is data[rows[i] + steps[p]].
struct Panel {
  std::int64_t m, k;
  const float* data;
  const std::int32_t *rows, *steps;
  const float* b;
  float* c;
};

template <int kR, int kV> void tile(const Panel& p, std::int64_t first) {
  Vector sums[kR][kV];
  const float* at[kR];
  float* const c = p.c + first * kColumns;
#pragma GCC unroll 8
  for (int i = 0; i < kR; ++i) {
    at[i] = p.data + p.rows[first + i];
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) Avx2::load(sums[i][v], c + i * kColumns + v * kLanes);
  }
  const float* b = p.b;
  const std::int32_t *step = p.steps, *const end = step + p.k;
#pragma GCC unroll 4
  for (; step != end; ++step, b += kColumns) {
    const std::int64_t to = *step;
    Vector x, y[kV];
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) Avx2::load(y[v], b + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kR; ++i) {
      Avx2::repeat(x, at[i] + to);
#pragma GCC unroll 2
      for (int v = 0; v < kV; ++v) Avx2::add_product(sums[i][v], x, y[v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kR; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) Avx2::store(c + i * kColumns + v * kLanes, sums[i][v]);
}

// Tiles of as even heights as can be: few rows would wait for their sums.
template <int kV> void tiles(const Panel& p) {
  const std::int64_t count = (p.m + kRows - 1) / kRows, least = p.m / count, higher = p.m % count;
  for (std::int64_t i = 0, first = 0; i < count; ++i) {
    const std::int64_t rows = least + (i < higher ? 1 : 0);
    switch (rows) {
      case 1: tile<1, kV>(p, first); break;
      case 2: tile<2, kV>(p, first); break;
      case 3: tile<3, kV>(p, first); break;
      case 4: tile<4, kV>(p, first); break;
      case 5: tile<5, kV>(p, first); break;
      default: tile<6, kV>(p, first);
    }
    first += rows;
  }
}

// Of c's columns the first `columns` are wanted.
void add_product(const Panel& whole, std::int64_t columns) {
  for (std::int64_t q = 0; q < whole.k; q += kDepth) {
    Panel p = whole;
    p.k = std::min(kDepth, whole.k - q), p.steps += q, p.b += q * kColumns;
    if (columns > kLanes) tiles<2>(p);
    else tiles<1>(p);
  }
}

// n numbers of any dtype that lie `step` apart.
void read(DType dtype, const void* from, std::int64_t step, std::int64_t n, float* to) {
  if (dtype == DType::f32 && step == 1) std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
  else load(dtype, from, step, to, n);
}
const char* element(const Tensor& t, std::int64_t at) {
  return static_cast<const char*>(t.raw()) + at * static_cast<std::int64_t>(size_of(t.dtype()));
}

struct Problem {
  const ConvAttrs& attrs;
  const Tensor &dy, &x;
  std::int64_t inputs, outputs;  // channels of a group
  std::int64_t kernel[2], reach[2];
  // Pixels are cut by shape alone: a block has some whole images, or some rows of one.
  std::int64_t block_images = 1, block_rows;

  Problem(const OpCall& call, const Shape& w)
      : attrs(call.get<ConvAttrs>()),
        dy(call[0]),
        x(call[1]),
        inputs(w[1]),
        outputs(w[0] / attrs.groups),
        kernel{w[2], w[3]},
        block_rows(height()) {
    for (int d = 0; d < 2; ++d) reach[d] = (kernel[d] - 1) * attrs.dilation[d];
    const std::int64_t pixels = height() * width(), row = inputs * copied_width();
    if (pixels < kPixels)
      block_images = std::clamp<std::int64_t>(std::min(kPixels / pixels, kCopied / copied_image()), 1, images());
    else
      block_rows =
          even_part(height(), std::max<std::int64_t>(1, std::min(2 * kPixels / width(), kCopied / row - reach[0])));
  }
  std::int64_t images() const { return dy.sizes()[0]; }
  std::int64_t height() const { return dy.sizes()[2]; }
  std::int64_t width() const { return dy.sizes()[3]; }
  std::int64_t bands() const { return (height() + block_rows - 1) / block_rows; }  // of an image
  std::int64_t blocks() const { return (images() + block_images - 1) / block_images * bands(); }
  std::int64_t block_pixels() const { return block_images * block_rows * width(); }
  std::int64_t depth() const { return inputs * kernel[0] * kernel[1]; }
  // Of the copies [block_images, inputs, copied_height, copied_width].
  std::int64_t copied_height() const { return block_rows + reach[0]; }
  std::int64_t copied_width() const { return width() + reach[1]; }
  std::int64_t copied_image() const { return inputs * copied_height() * copied_width(); }

  Offsets taps() const {
    Offsets all;
    for (std::int64_t c = 0; c < inputs; ++c)
      for (std::int64_t i = 0; i < kernel[0]; ++i)
        for (std::int64_t j = 0; j < kernel[1]; ++j)
          all.push_back(static_cast<std::int32_t>((c * copied_height() + i * attrs.dilation[0]) * copied_width() +
                                                  j * attrs.dilation[1]));
    return all;
  }
  Offsets pixels() const {
    Offsets all;
    for (std::int64_t image = 0; image < block_images; ++image)
      for (std::int64_t i = 0; i < block_rows; ++i)
        for (std::int64_t j = 0; j < width(); ++j)
          all.push_back(static_cast<std::int32_t>(image * copied_image() + i * copied_width() + j));
    return all;
  }
};

struct Block {
  std::int64_t image, images, row, rows;
  Block(const Problem& p, std::int64_t i)
      : image(i / p.bands() * p.block_images),
        images(std::min(p.block_images, p.images() - image)),
        row(i % p.bands() * p.block_rows),
        rows(std::min(p.block_rows, p.height() - row)) {}
};

// A group's channels of the block's images, with their padding.
void copy_images(const Problem& p, const Block& block, std::int64_t group, float* to) {
  const Shape &sizes = p.x.sizes(), &strides = p.x.strides();
  const std::int64_t before = p.attrs.padding[1], across = p.copied_width();
  const std::int64_t left = std::min(before, across), filled = std::min(sizes[3], across - left);
  float* row = to;
  for (std::int64_t i = 0; i < block.images * p.inputs; ++i) {
    const std::int64_t image = block.image + i / p.inputs, channel = group * p.inputs + i % p.inputs;
    for (std::int64_t j = 0; j < p.copied_height(); ++j, row += across) {
      const std::int64_t y = block.row + j - p.attrs.padding[0];
      if (y < 0 || y >= sizes[2]) {
        std::fill_n(row, across, 0.0F);
        continue;
      }
      std::fill_n(row, left, 0.0F);
      read(p.x.dtype(), element(p.x, image * strides[0] + channel * strides[1] + y * strides[2]), strides[3], filled,
           row + left);
      std::fill(row + left + filled, row + across, 0.0F);
    }
  }
  if (rounds_to_tf32(p.x.dtype())) round_tf32(to, block.images * p.copied_image());
}

// A group's outputs [outputs, across] in the block's pixels.
void copy_outputs(const Problem& p, const Block& block, std::int64_t group, std::int64_t across, float* to) {
  const Shape& strides = p.dy.strides();
  const bool joined = strides[2] == p.width() * strides[3];  // rows without gaps between them
  const std::int64_t runs = joined ? 1 : block.rows, n = joined ? block.rows * p.width() : p.width();
  for (std::int64_t o = 0; o < p.outputs; ++o) {
    float* row = to + o * across;
    for (std::int64_t i = 0; i < block.images * runs; ++i, row += n)
      read(p.dy.dtype(),
           element(p.dy, (block.image + i / runs) * strides[0] + (group * p.outputs + o) * strides[1] +
                             (block.row + i % runs) * strides[2]),
           strides[3], n, row);
  }
  if (rounds_to_tf32(p.dy.dtype())) round_tf32(to, p.outputs * across);
}

void weight_gradient(const Problem& p, Tensor& out) {
  const Offsets taps = p.taps(), pixels = p.pixels();
  const Result<float> dw(out);
  // Sums [parts, groups, strips][depth][kColumns].
  const std::int64_t strips = (p.outputs + kColumns - 1) / kColumns, depth = p.depth(), strip = depth * kColumns;
  const std::int64_t groups = p.attrs.groups, numbers = groups * strips * strip, across = p.block_pixels();
  const std::int64_t most = std::clamp<std::int64_t>(kPartial / numbers, 1, kParts);
  const std::int64_t each = (p.blocks() + most - 1) / most, parts = (p.blocks() + each - 1) / each;
  const Scratch partial(static_cast<std::size_t>(parts * numbers) * sizeof(float));
  auto* const total = partial.as<float>();
  const std::int64_t work = std::max<std::int64_t>(1, each * across * depth * p.outputs);

  parallel_for(parts * groups, std::max<std::int64_t>(1, kWorthThreads / work), [&](std::int64_t i, std::int64_t end) {
    const std::int64_t copied = p.block_images * p.copied_image();
    const Scratch memory(static_cast<std::size_t>(copied + (p.outputs + kColumns) * across) * sizeof(float));
    auto* const images = memory.as<float>();
    float *const rows = images + copied, *const b = rows + p.outputs * across;
    for (; i < end; ++i) {
      const std::int64_t part = i / groups, group = i % groups;
      float* const sums = total + part * numbers + group * strips * strip;
      std::fill_n(sums, strips * strip, 0.0F);
      for (std::int64_t n = part * each; n < std::min(p.blocks(), (part + 1) * each); ++n) {
        const Block block(p, n);
        copy_images(p, block, group, images);
        copy_outputs(p, block, group, across, rows);
        const std::int64_t many = block.images * block.rows * p.width();
        for (std::int64_t j = 0; j < strips; ++j) {
          const std::int64_t columns = std::min(p.outputs - j * kColumns, std::int64_t{kColumns});
          const Panel panel{depth, many, images, taps.data(), pixels.data(), b, sums + j * strip};
          detail::run_avx2([=] {
            pack_columns<Avx2>({rows + j * kColumns * across, 1, across}, many, columns, b);
            add_product(panel, columns);
          });
        }
      }
    }
  });
  for (std::int64_t part = 1; part < parts; ++part)
    vectorized([=] {
      for (std::int64_t i = 0; i < numbers; ++i) total[i] += total[part * numbers + i];
    });
  for (std::int64_t o = 0; o < groups * p.outputs; ++o) {
    const std::int64_t j = o % p.outputs;
    const float* const from = total + (o / p.outputs * strips + j / kColumns) * strip + j % kColumns;
    for (std::int64_t i = 0; i < depth; ++i) dw.data()[o * depth + i] = from[i * kColumns];
  }
  dw.store();
}

}  // namespace

bool f32_weight_gradient(const OpCall& call, Outputs& out) {
  const auto& a = call.get<ConvAttrs>();
  if (cpu_isa() != CpuIsa::avx2 || out[0].dtype() == DType::f64 || current_accumulator()) return false;
  if (out[0].numel() == 0 || call[0].numel() == 0 || a.stride[0] * a.stride[1] != 1) return false;
  const Problem p(call, out[0].sizes());
  if (p.outputs < kOutputs || p.block_images * p.copied_image() > INT32_MAX) return false;
  weight_gradient(p, out[0]);
  return true;
}

}  // namespace gradual::cpu

#else

namespace gradual::cpu {

bool f32_weight_gradient(const OpCall&, Outputs&) { return false; }

}  // namespace gradual::cpu

#endif
