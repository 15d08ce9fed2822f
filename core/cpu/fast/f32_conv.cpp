// dw [taps, outputs] = x [taps, pixels] dy [pixels, outputs]. x is not unfolded (implicit GEMM, Chetlur et al. 2014):
// in a padded copy of the images, the offset of an element is the offset of its tap plus the offset of its pixel.
#include "f32_conv.h"

#include <algorithm>
#include <vector>

#include "../../formats/accumulator.h"
#include "../../kernels/contraction_operand.h"
#include "../../kernels/loops.h"
#include "../../ops/attrs.h"
#include "../../support/multiversion.h"
#include "../../support/parallel.h"
#include "../../tensor/memory.h"
#include "../gemm.h"
#include "f32_tile.h"
#include "kernels.h"

#if defined(__x86_64__) && !defined(__clang__)

namespace gradual::cpu {
namespace {

using Offsets = std::vector<std::int32_t>;

inline constexpr int kLanes = Avx2::kLanes;
inline constexpr int kColumns = 2 * kLanes;
inline constexpr std::int64_t kOutputs = 8;        // output channels of a group, at least
inline constexpr std::int64_t kPixels = 256;       // pixels of a block, about
inline constexpr std::int64_t kCopied = 1 << 16;   // elements of a block's padded copy, about: half of an L2 cache
inline constexpr std::int64_t kParts = 16;         // parts of the batch, at most
inline constexpr std::int64_t kPartial = 1 << 21;  // elements of the sums of all parts, about

// The unfolded x [taps, pixels] as an operand of tile(): element (i, p) is data[taps[i] + pixels[p]].
struct Taps {
  const float* data;
  const std::int32_t* taps;
  const std::int32_t* pixels;
  template <int kR> struct Cursor {
    const float* at[kR];
    const std::int32_t* pixel;
    const float* operator[](int i) const { return at[i] + *pixel; }
    void next() { ++pixel; }
  };
  template <int kR, class F> void rows(std::int64_t first, const F& f) const {
    Cursor<kR> cursor{{}, pixels};
#pragma GCC unroll 8
    for (int i = 0; i < kR; ++i) cursor.at[i] = data + taps[first + i];
    f(cursor);
  }
};

// c [m, kColumns] += x [m, k] b [k, kColumns], for at least the first `columns` columns.
void add_product(std::int64_t m, std::int64_t k, const Taps& x, const float* b, std::int64_t columns, float* c) {
  for (std::int64_t q = 0; q < k; q += kBlockDepth) {
    const Taps part{x.data, x.taps, x.pixels + q};
    const std::int64_t depth = std::min(kBlockDepth, k - q);
    const Panel from{b + q * kColumns, kColumns};
    const Panel start{c, kColumns};
    if (columns > kLanes) strip<Avx2, 2>(m, depth, part, from, start, c, kColumns);
    else strip<Avx2, 1>(m, depth, part, from, start, c, kColumns);
  }
}

// Reads rows of an operand's images, of any dtype and strides, as f32. Constructed on the calling thread, whose tf32
// mode applies.
struct ImageReader {
  const Tensor& t;
  bool tf32 = rounds_to_tf32(t.dtype());

  void read(std::int64_t image, std::int64_t channel, std::int64_t y, std::int64_t n, float* to) const {
    const Shape& strides = t.strides();
    const std::int64_t at = image * strides[0] + channel * strides[1] + y * strides[2];
    const char* const from = static_cast<const char*>(t.raw()) + at * static_cast<std::int64_t>(size_of(t.dtype()));
    if (t.dtype() == DType::f32 && strides[3] == 1) std::copy_n(reinterpret_cast<const float*>(from), n, to);
    else fetch_and_cast(t.dtype(), from, strides[3], to, n);
    if (tf32) round_tf32(to, n);
  }
};

// Cuts the sums by shape alone. A block of pixels has some whole images, or some rows of one image. Its padded copy has
// as many input channels as stay in the cache.
struct ConvSums {
  const ConvAttrs& attrs;
  ImageReader dy, x;
  std::int64_t inputs, outputs;  // channels of a group
  std::int64_t kernel[2], reach[2];
  std::int64_t block_images = 1, block_rows, block_inputs;

  ConvSums(const OpCall& call, const Shape& w)
      : attrs(call.get<ConvAttrs>()),
        dy{call[0]},
        x{call[1]},
        inputs(w[1]),
        outputs(w[0] / attrs.groups),
        kernel{w[2], w[3]},
        block_rows(height()) {
    for (int d = 0; d < 2; ++d) reach[d] = (kernel[d] - 1) * attrs.dilation[d];
    const std::int64_t pixels = height() * width();
    if (pixels < kPixels) block_images = std::min(kPixels / pixels, images());
    else block_rows = even_part(height(), std::max<std::int64_t>(1, 2 * kPixels / width()));
    const std::int64_t channel = block_images * copied_height() * copied_width();
    block_inputs = even_part(inputs, std::max<std::int64_t>(1, kCopied / channel));
  }
  std::int64_t images() const { return dy.t.sizes()[0]; }
  std::int64_t height() const { return dy.t.sizes()[2]; }
  std::int64_t width() const { return dy.t.sizes()[3]; }
  std::int64_t taps() const { return kernel[0] * kernel[1]; }
  std::int64_t bands() const { return (height() + block_rows - 1) / block_rows; }  // blocks per image
  std::int64_t blocks() const { return (images() + block_images - 1) / block_images * bands(); }
  std::int64_t block_pixels() const { return block_images * block_rows * width(); }
  // Sizes of the padded copy [block_images, block_inputs, copied_height, copied_width].
  std::int64_t copied_height() const { return block_rows + reach[0]; }
  std::int64_t copied_width() const { return width() + reach[1]; }
  std::int64_t copied_image() const { return block_inputs * copied_height() * copied_width(); }

  Offsets tap_offsets() const {
    return offsets({block_inputs, kernel[0], kernel[1]},
                   {copied_height() * copied_width(), attrs.dilation[0] * copied_width(), attrs.dilation[1]});
  }
  Offsets pixel_offsets() const {
    return offsets({block_images, block_rows, width()}, {copied_image(), copied_width(), 1});
  }

 private:
  // Offsets in the padded copy of all positions of three dims, in row-major order.
  static Offsets offsets(const Shape& sizes, const Shape& steps) {
    Offsets all;
    all.reserve(static_cast<std::size_t>(numel(sizes)));
    for (std::int64_t i = 0; i < sizes[0]; ++i)
      for (std::int64_t j = 0; j < sizes[1]; ++j)
        for (std::int64_t k = 0; k < sizes[2]; ++k)
          all.push_back(static_cast<std::int32_t>(i * steps[0] + j * steps[1] + k * steps[2]));
    return all;
  }
};

struct Block {
  std::int64_t image, images, row, rows;
  Block(const ConvSums& p, std::int64_t i)
      : image(i / p.bands() * p.block_images),
        images(std::min(p.block_images, p.images() - image)),
        row(i % p.bands() * p.block_rows),
        rows(std::min(p.block_rows, p.height() - row)) {}
};

// Copies channels [first, first + channels) of x, with padding, for the block's images and rows.
void copy_inputs(const ConvSums& p, const Block& block, std::int64_t first, std::int64_t channels, float* to) {
  const std::int64_t height = p.x.t.sizes()[2];
  const std::int64_t width = p.x.t.sizes()[3];
  const std::int64_t edge = p.attrs.padding[1];
  for (std::int64_t image = 0; image < block.images; ++image) {
    float* row = to + image * p.copied_image();
    for (std::int64_t channel = first; channel < first + channels; ++channel)
      for (std::int64_t i = 0; i < p.copied_height(); ++i, row += p.copied_width()) {
        const std::int64_t y = block.row + i - p.attrs.padding[0];
        if (y < 0 || y >= height) {
          std::fill_n(row, p.copied_width(), 0.0F);
          continue;
        }
        std::fill_n(row, edge, 0.0F);
        p.x.read(block.image + image, channel, y, width, row + edge);
        std::fill_n(row + edge + width, edge, 0.0F);
      }
  }
}

// Copies channels [first, first + channels) of dy at the block's pixels, as [channels, pixels].
void copy_outputs(const ConvSums& p, const Block& block, std::int64_t first, std::int64_t channels, float* to) {
  const Shape& strides = p.dy.t.strides();
  const bool joined = strides[2] == p.width() * strides[3];  // no gaps between rows
  const std::int64_t rows = joined ? block.rows : 1;
  for (std::int64_t channel = first; channel < first + channels; ++channel)
    for (std::int64_t image = 0; image < block.images; ++image)
      for (std::int64_t i = 0; i < block.rows; i += rows, to += rows * p.width())
        p.dy.read(block.image + image, channel, block.row + i, rows * p.width(), to);
}

// The sums [parts, groups, strips][depth][kColumns]. A task computes those of one part of the blocks, one group and one
// block of input channels.
struct Partition {
  std::int64_t groups, strips, depth;
  std::int64_t each;    // blocks of pixels in a part
  std::int64_t parts;   // of the blocks of pixels
  std::int64_t chunks;  // blocks of input channels

  explicit Partition(const ConvSums& p)
      : groups(p.attrs.groups), strips((p.outputs + kColumns - 1) / kColumns), depth(p.inputs * p.taps()) {
    const std::int64_t most = std::clamp<std::int64_t>(kPartial / numbers(), 1, kParts);
    each = (p.blocks() + most - 1) / most;
    parts = (p.blocks() + each - 1) / each;
    chunks = (p.inputs + p.block_inputs - 1) / p.block_inputs;
  }
  std::int64_t strip() const { return depth * kColumns; }
  std::int64_t numbers() const { return groups * strips * strip(); }  // of a part
  std::int64_t tasks() const { return parts * groups * chunks; }
};

// A thread's scratch memory: the padded copy of a block, its rows of dy, and the same packed for the product.
struct BlockMemory {
  std::int64_t copied, packed;
  Scratch memory;
  float* const images = memory.as<float>();
  float* const rows = images + copied;
  float* const columns = rows + packed;

  explicit BlockMemory(const ConvSums& p)
      : copied(p.block_images * p.copied_image()),
        packed(kColumns * p.block_pixels()),
        memory(static_cast<std::size_t>(copied + 2 * packed) * sizeof(float)) {}
};

// Computes the sums of one task.
void add_task(const ConvSums& p, const Partition& all, std::int64_t task, const Taps& x, const BlockMemory& memory,
              float* total) {
  const std::int64_t input = task % all.chunks * p.block_inputs;
  const std::int64_t group = task / all.chunks % all.groups;
  const std::int64_t part = task / all.chunks / all.groups;
  const std::int64_t inputs = std::min(p.block_inputs, p.inputs - input);
  const std::int64_t m = inputs * p.taps();
  const std::int64_t strip = all.strip();
  float* const sums = total + part * all.numbers() + group * all.strips * strip + input * p.taps() * kColumns;
  for (std::int64_t j = 0; j < all.strips; ++j) std::fill_n(sums + j * strip, m * kColumns, 0.0F);
  for (std::int64_t n = part * all.each; n < std::min(p.blocks(), (part + 1) * all.each); ++n) {
    const Block block(p, n);
    const std::int64_t k = block.images * block.rows * p.width();
    copy_inputs(p, block, group * p.inputs + input, inputs, memory.images);
    for (std::int64_t j = 0; j < all.strips; ++j) {
      const std::int64_t columns = std::min(p.outputs - j * kColumns, std::int64_t{kColumns});
      copy_outputs(p, block, group * p.outputs + j * kColumns, columns, memory.rows);
      detail::run_avx2([=, rows = memory.rows, b = memory.columns] {
        pack_columns<Avx2>(MatrixRef<float>{rows, 1, k}, k, columns, b);
        add_product(m, k, x, b, columns, sums + j * strip);
      });
    }
  }
}

// Adds the parts' sums, in their order, to those of the first.
void add_parts(const Partition& all, float* total) {
  const std::int64_t numbers = all.numbers();
  for (std::int64_t part = 1; part < all.parts; ++part)
    vectorized([=] {
      for (std::int64_t i = 0; i < numbers; ++i) total[i] += total[part * numbers + i];
    });
}

void weight_gradient(const ConvSums& p, Tensor& out) {
  const Offsets taps = p.tap_offsets();
  const Offsets pixels = p.pixel_offsets();
  const Partition all(p);
  const Scratch partial(static_cast<std::size_t>(all.parts * all.numbers()) * sizeof(float));
  auto* const total = partial.as<float>();
  const std::int64_t work = all.each * p.block_pixels() * p.block_inputs * p.taps() * p.outputs;
  const std::int64_t grain = std::max<std::int64_t>(1, kWorthThreads / work);

  parallel_for(all.tasks(), grain, [&](std::int64_t i, std::int64_t end) {
    const BlockMemory memory(p);
    const Taps x{memory.images, taps.data(), pixels.data()};
    for (; i < end; ++i) add_task(p, all, i, x, memory, total);
  });
  add_parts(all, total);

  const Result<float> dw(out);
  for (std::int64_t o = 0; o < all.groups * p.outputs; ++o) {
    const std::int64_t j = o % p.outputs;
    const float* const from = total + (o / p.outputs * all.strips + j / kColumns) * all.strip() + j % kColumns;
    for (std::int64_t i = 0; i < all.depth; ++i) dw.data()[o * all.depth + i] = from[i * kColumns];
  }
  dw.store();
}

}  // namespace

bool f32_weight_gradient(const OpCall& call, Outputs& out) {
  const auto& a = call.get<ConvAttrs>();
  if (cpu_isa() != CpuIsa::avx2 || out[0].dtype() == DType::f64 || current_accumulator()) return false;
  if (out[0].numel() == 0 || call[0].numel() == 0 || a.stride[0] * a.stride[1] != 1) return false;
  const ConvSums p(call, out[0].sizes());
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

namespace gradual::fast {

void register_convolutions() { set_offer(OpId::conv2d_backward_weight, cpu::f32_weight_gradient); }

}  // namespace gradual::fast
