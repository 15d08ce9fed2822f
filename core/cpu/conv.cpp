#include "conv.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "../error.h"
#include "../parallel.h"
#include "conv_image.h"
#include "gemm.h"

namespace gradual::cpu {

std::int64_t Axis::reach() const { return taps.empty() ? 0 : *std::max_element(taps.begin(), taps.end()); }

Axis forward_axis(std::int64_t kernel, std::int64_t outputs, std::int64_t stride, std::int64_t pad,
                  std::int64_t dilation) {
  Axis axis;
  axis.pad = pad;
  axis.step = stride;
  axis.count = outputs;
  for (std::int64_t k = 0; k < kernel; ++k) {
    axis.taps.push_back(k * dilation);
    axis.kernel.push_back(k);
  }
  return axis;
}

// Input i and output o meet at tap k where i + pad = o * stride + k * dilation. With i + pad = phase + u * stride that
// is o = u - d, d = (k * dilation - phase) / stride, for the k that leave no remainder.
Axis adjoint_axis(std::int64_t kernel, std::int64_t inputs, std::int64_t stride, std::int64_t pad,
                  std::int64_t dilation, std::int64_t phase) {
  Axis axis;
  axis.stride = stride;
  std::vector<std::int64_t> back;  // d
  for (std::int64_t k = 0; k < kernel; ++k) {
    if (k * dilation % stride != phase) continue;
    back.push_back((k * dilation - phase) / stride);
    axis.kernel.push_back(k);
  }
  const std::int64_t u = pad > phase ? (pad - phase + stride - 1) / stride : 0;
  axis.start = phase + u * stride - pad;
  axis.count = axis.start < inputs ? (inputs - axis.start + stride - 1) / stride : 0;
  const std::int64_t most = back.empty() ? 0 : back.back();
  for (std::int64_t d : back) axis.taps.push_back(most - d);
  axis.pad = most - u;
  return axis;
}

namespace {

inline constexpr std::int64_t kPixels = 1024;              // of the output that one thread takes at a time, about
inline constexpr std::int64_t kPartials = 16;              // sums over parts of the batch, at most
inline constexpr std::int64_t kPartialElements = 1 << 24;  // and all of them together

// out[n, g * outputs + m, ..] = bias + sum over (c, tap) of weights[g * outputs + m][c, tap] * x[n, g * inputs + c, ..]
template <class T> struct Correlation {
  const Tensor& x;
  Axis rows, cols;
  std::int64_t groups, inputs, outputs;
  const T* weights;  // [groups * outputs, inputs * taps]
  const T* bias;     // or null
  T* out;
  Shape out_strides;
  std::int64_t depth() const { return inputs * static_cast<std::int64_t>(rows.taps.size() * cols.taps.size()); }
};

// Offsets of (channel, tap) in a window of the given size.
std::vector<std::int32_t> tap_offsets(const Axis& rows, const Axis& cols, std::int64_t channels, std::int64_t height,
                                      std::int64_t width) {
  std::vector<std::int32_t> offsets;
  for (std::int64_t c = 0; c < channels; ++c)
    for (std::int64_t y : rows.taps)
      for (std::int64_t x : cols.taps) offsets.push_back(static_cast<std::int32_t>((c * height + y) * width + x));
  return offsets;
}

// Neighbouring pixels of one row in a tile.
struct Run {
  std::int64_t from, to;  // elements into the windows and the output
  int col, length;
};

// A band of rows of a few images of one group: windows are loaded once, then tile after tile of pixels is packed and
// multiplied.
template <class T> class Band {
 public:
  Band(const Correlation<T>& p, std::int64_t image, std::int64_t images, std::int64_t group, std::int64_t row,
       std::int64_t rows)
      : p_(p),
        image_(image),
        images_(images),
        group_(group),
        row_(row),
        rows_(rows),
        height_(p.rows.padded(rows)),
        width_(p.cols.padded(p.cols.count)),
        window_(p.inputs * height_ * width_),
        scratch_(static_cast<std::size_t>(images * window_ + kSlack<T>) * sizeof(T)),
        taps_(tap_offsets(p.rows, p.cols, p.inputs, height_, width_)) {
    for (std::int64_t i = 0; i < images; ++i)
      load_window(p.x,
                  {.image = image + i,
                   .channel = group * p.inputs,
                   .channels = p.inputs,
                   .first = row * p.rows.step,
                   .rows = height_,
                   .cols = width_,
                   .pad_rows = p.rows.pad,
                   .pad_cols = p.cols.pad},
                  scratch_.template as<T>() + i * window_);
  }

  void run() const {
    constexpr std::int64_t kCols = kTileCols<T>;
    alignas(64) T packed[kTileDepth * kCols + kSlack<T>];
    const Scratch tile(static_cast<std::size_t>(p_.outputs * kCols) * sizeof(T));
    const std::int64_t pixels = images_ * rows_ * p_.cols.count;
    std::vector<Run> runs;
    for (std::int64_t first = 0; first < pixels; first += kCols) {
      const int cols = static_cast<int>(std::min(kCols, pixels - first));
      find_runs(first, cols, runs);
      const bool direct = p_.out_strides[3] == 1 && consecutive(runs);
      T* c = direct ? p_.out + runs[0].to : tile.as<T>();
      multiply(runs, cols, packed, c, direct ? p_.out_strides[1] : kCols);
      if (!direct) scatter(runs, tile.as<T>());
    }
  }

 private:
  void find_runs(std::int64_t first, int cols, std::vector<Run>& runs) const {
    runs.clear();
    const std::int64_t width = p_.cols.count;
    const Shape& s = p_.out_strides;
    for (int col = 0; col < cols;) {
      const std::int64_t pixel = first + col;
      const std::int64_t x = pixel % width;
      const std::int64_t y = pixel / width % rows_;
      const std::int64_t i = pixel / width / rows_;
      const int length = static_cast<int>(std::min<std::int64_t>(cols - col, width - x));
      runs.push_back({i * window_ + y * p_.rows.step * width_ + x * p_.cols.step,
                      (image_ + i) * s[0] + group_ * p_.outputs * s[1] +
                          (p_.rows.start + (row_ + y) * p_.rows.stride) * s[2] +
                          (p_.cols.start + x * p_.cols.stride) * s[3],
                      col, length});
      col += length;
    }
  }

  bool consecutive(const std::vector<Run>& runs) const {
    if (p_.cols.stride != 1) return false;
    for (std::size_t i = 1; i < runs.size(); ++i)
      if (runs[i].to != runs[i - 1].to + runs[i - 1].length) return false;
    return true;
  }

  // Rows [k, k + depth) of the matrix of shifted pixels. Rows are written in order, so that a copy may run on into
  // the next.
  void pack(const std::vector<Run>& runs, std::int64_t k, std::int64_t depth, T* packed) const {
    constexpr std::int64_t kChunk = kSlack<T> / 2;
    const T* windows = scratch_.template as<T>();
    for (std::int64_t i = 0; i < depth; ++i) {
      const T* from = windows + taps_[static_cast<std::size_t>(k + i)];
      T* to = packed + i * kTileCols<T>;
      for (const Run& run : runs) {
        if (p_.cols.step == 1) {
          for (std::int64_t at = 0; at < run.length; at += kChunk)
            std::memcpy(to + run.col + at, from + run.from + at, kChunk * sizeof(T));
        } else {
          for (int at = 0; at < run.length; ++at) to[run.col + at] = from[run.from + at * p_.cols.step];
        }
      }
    }
  }

  void multiply(const std::vector<Run>& runs, int cols, T* packed, T* c, std::int64_t ldc) const {
    const std::int64_t all = p_.depth();
    const std::int64_t depth = even_part(all, kTileDepth);
    const std::int64_t step = even_part(p_.outputs, kTileRows);
    const T* weights = p_.weights + group_ * p_.outputs * all;
    for (std::int64_t m = 0; p_.bias && m < p_.outputs; ++m)
      std::fill(c + m * ldc, c + m * ldc + cols, p_.bias[group_ * p_.outputs + m]);
    std::int64_t k = 0;
    do {
      Tile<T> t{};
      t.cols = cols;
      t.k = std::min(depth, all - k);
      t.a_stride = 1;
      pack(runs, k, t.k, packed);
      t.b = packed;
      t.b_stride = kTileCols<T>;
      t.initial_stride = t.ldc = ldc;
      for (std::int64_t m = 0; m < p_.outputs; m += step) {
        t.rows = static_cast<int>(std::min(step, p_.outputs - m));
        for (int r = 0; r < t.rows; ++r) t.a[r] = weights + (m + r) * all + k;
        t.c = c + m * ldc;
        t.initial = k || p_.bias ? t.c : nullptr;
        gemm_tile(t);
      }
      k += depth;
    } while (k < all);
  }

  void scatter(const std::vector<Run>& runs, const T* tile) const {
    const std::int64_t step = p_.cols.stride * p_.out_strides[3];
    for (const Run& run : runs) {
      for (std::int64_t m = 0; m < p_.outputs; ++m) {
        T* to = p_.out + run.to + m * p_.out_strides[1];
        for (int i = 0; i < run.length; ++i) to[i * step] = tile[m * kTileCols<T> + run.col + i];
      }
    }
  }

  const Correlation<T>& p_;
  std::int64_t image_, images_, group_, row_, rows_, height_, width_, window_;
  Scratch scratch_;
  std::vector<std::int32_t> taps_;
};

template <class T> void correlate(const Correlation<T>& p) {
  const std::int64_t n = p.x.size(0);
  const std::int64_t pixels = p.rows.count * p.cols.count;
  if (n * pixels * p.outputs == 0) return;
  const std::int64_t rows = even_part(p.rows.count, std::max<std::int64_t>(1, kPixels / p.cols.count));
  const std::int64_t bands = (p.rows.count + rows - 1) / rows;
  const std::int64_t images = bands > 1 ? 1 : even_part(n, std::max<std::int64_t>(1, kPixels / pixels));
  const std::int64_t parts = (n + images - 1) / images;
  for_tasks(parts * bands * p.groups, n * pixels * p.groups * p.outputs * p.depth(), [&](std::int64_t i) {
    const std::int64_t image = i / p.groups / bands * images;
    const std::int64_t row = i / p.groups % bands * rows;
    Band<T>(p, image, std::min(images, n - image), i % p.groups, row, std::min(rows, p.rows.count - row)).run();
  });
}

// The weights of the given taps as [channels out, channels in * taps], by group; `swap` turns the two around.
template <class T>
void arrange_weights(const Tensor& weight, const Loaded<T>& w, std::int64_t groups, bool swap, const Axis& rows,
                     const Axis& cols, T* out) {
  const std::int64_t first = weight.size(0) / groups;
  const std::int64_t second = weight.size(1);
  const Shape& s = w.strides();
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t m = 0; m < (swap ? second : first); ++m)
      for (std::int64_t c = 0; c < (swap ? first : second); ++c) {
        const T* from = w.data() + (g * first + (swap ? c : m)) * s[0] + (swap ? m : c) * s[1];
        for (std::int64_t y : rows.kernel)
          for (std::int64_t x : cols.kernel) *out++ = from[y * s[2] + x * s[3]];
      }
}

template <class T> void conv2d_of(const OpCall& call, Tensor& out) {
  const auto& a = call.get<ConvAttrs>();
  const Tensor& weight = call[1];
  const Loaded<T> w(weight);
  const Scratch arranged(static_cast<std::size_t>(weight.numel()) * sizeof(T) + 1);
  std::optional<Loaded<T>> bias;
  if (call[2].defined()) bias.emplace(call[2], Loaded<T>::As::rows);
  const Result<T> y(out);
  const Axis rows = forward_axis(weight.size(2), out.size(2), a.stride[0], a.padding[0], a.dilation[0]);
  const Axis cols = forward_axis(weight.size(3), out.size(3), a.stride[1], a.padding[1], a.dilation[1]);
  arrange_weights(weight, w, a.groups, false, rows, cols, arranged.as<T>());
  correlate<T>({call[0], rows, cols, a.groups, weight.size(1), weight.size(0) / a.groups, arranged.as<T>(),
                bias ? bias->data() : nullptr, y.data(), out.strides()});
  y.store();
}

template <class T> void backward_input_of(const OpCall& call, Tensor& out) {
  const auto& a = call.get<ConvAttrs>();
  const Tensor& weight = call[1];
  const Loaded<T> w(weight);
  const Scratch arranged(static_cast<std::size_t>(weight.numel()) * sizeof(T) + 1);
  const Result<T> dx(out);
  for (std::int64_t i = 0; i < a.stride[0] * a.stride[1]; ++i) {
    const Axis rows =
        adjoint_axis(weight.size(2), out.size(2), a.stride[0], a.padding[0], a.dilation[0], i / a.stride[1]);
    const Axis cols =
        adjoint_axis(weight.size(3), out.size(3), a.stride[1], a.padding[1], a.dilation[1], i % a.stride[1]);
    arrange_weights(weight, w, a.groups, true, rows, cols, arranged.as<T>());
    correlate<T>({call[0], rows, cols, a.groups, weight.size(0) / a.groups, weight.size(1), arranged.as<T>(), nullptr,
                  dx.data(), out.strides()});
  }
  dx.store();
}

// dw transposed, [inputs * taps, outputs]: row (channel, tap) is its shifted image times dy. The rows are read where
// they lie, through the offsets of the pixels; dy is packed.
template <class T> struct WeightGradient {
  const Tensor &dy, &x;
  Axis rows, cols;
  std::int64_t groups, inputs, outputs;

  std::int64_t depth() const { return inputs * static_cast<std::int64_t>(rows.taps.size() * cols.taps.size()); }

  void add_images(std::int64_t image, std::int64_t end, std::int64_t group, T* sum) const {
    const std::int64_t height = rows.padded(rows.count);
    const std::int64_t width = cols.padded(cols.count);
    const std::int64_t pixels = rows.count * cols.count;
    const std::vector<std::int32_t> taps = tap_offsets(rows, cols, inputs, height, width);
    std::vector<std::int32_t> pixel_offsets;
    for (std::int64_t y = 0; y < rows.count; ++y)
      for (std::int64_t i = 0; i < cols.count; ++i)
        pixel_offsets.push_back(static_cast<std::int32_t>(y * rows.step * width + i * cols.step));
    const Scratch window(static_cast<std::size_t>(inputs * height * width) * sizeof(T));
    const Scratch errors(static_cast<std::size_t>(outputs * pixels) * sizeof(T));
    std::fill(sum, sum + depth() * outputs, T{0});
    for (; image < end; ++image) {
      load_window(x, {image, group * inputs, inputs, 0, height, width, rows.pad, cols.pad}, window.as<T>());
      load_window(dy, {image, group * outputs, outputs, 0, rows.count, cols.count, 0, 0}, errors.as<T>());
      add_image(window.as<T>(), errors.as<T>(), taps, pixel_offsets, sum);
    }
  }

 private:
  void add_image(const T* window, const T* errors, const std::vector<std::int32_t>& taps,
                 const std::vector<std::int32_t>& pixels, T* sum) const {
    alignas(64) T packed[kTileDepth * kTileCols<T>];
    const auto count = static_cast<std::int64_t>(pixels.size());
    const std::int64_t block = even_part(count, kTileDepth);
    const std::int64_t step = even_part(depth(), kTileRows);
    Tile<T> t{};
    t.b = packed;
    t.b_stride = kTileCols<T>;
    t.initial_stride = t.ldc = outputs;
    for (std::int64_t o = 0; o < outputs; o += kTileCols<T>) {
      t.cols = static_cast<int>(std::min<std::int64_t>(kTileCols<T>, outputs - o));
      for (std::int64_t p = 0; p < count; p += block) {
        t.k = std::min(block, count - p);
        t.index = pixels.data() + p;
        pack_columns({errors + o * count + p, 1, count}, t.k, t.cols, packed);
        for (std::int64_t m = 0; m < depth(); m += step) {
          t.rows = static_cast<int>(std::min(step, depth() - m));
          for (int r = 0; r < t.rows; ++r) t.a[r] = window + taps[static_cast<std::size_t>(m + r)];
          t.c = sum + m * outputs + o;
          t.initial = t.c;
          gemm_tile(t);
        }
      }
    }
  }
};

template <class T> void backward_weight_of(const OpCall& call, Tensor& out) {
  const auto& a = call.get<ConvAttrs>();
  const Tensor& dy = call[0];
  const std::int64_t n = dy.size(0);
  const WeightGradient<T> g{dy,
                            call[1],
                            forward_axis(a.size[0], dy.size(2), a.stride[0], a.padding[0], a.dilation[0]),
                            forward_axis(a.size[1], dy.size(3), a.stride[1], a.padding[1], a.dilation[1]),
                            a.groups,
                            out.size(1),
                            out.size(0) / a.groups};
  // Cut by shape alone, and added up in order.
  const std::int64_t elements = out.numel();
  const std::int64_t most = std::clamp<std::int64_t>(kPartialElements / elements, 1, kPartials);
  const std::int64_t images = std::max<std::int64_t>(1, (n + most - 1) / most);
  const std::int64_t parts = (n + images - 1) / images;
  const Scratch sums(static_cast<std::size_t>(parts * elements) * sizeof(T) + 1);
  const std::int64_t each = g.depth() * g.outputs;
  for_tasks(parts * g.groups, n * g.rows.count * g.cols.count * elements, [&](std::int64_t i) {
    const std::int64_t image = i / g.groups * images;
    g.add_images(image, std::min(n, image + images), i % g.groups, sums.as<T>() + i * each);
  });
  const Result<T> dw(out);
  for (std::int64_t group = 0; group < g.groups; ++group)
    for (std::int64_t o = 0; o < g.outputs; ++o)
      for (std::int64_t k = 0; k < g.depth(); ++k) {
        T sum = 0;
        for (std::int64_t part = 0; part < parts; ++part)
          sum += sums.as<T>()[(part * g.groups + group) * each + k * g.outputs + o];
        dw.data()[(group * g.outputs + o) * g.depth() + k] = sum;
      }
  dw.store();
}

}  // namespace

void conv2d(const OpCall& call, Outputs& out) {
  if (out[0].numel() == 0) return;
  visit_floating(out[0].dtype(), [&](auto zero) { conv2d_of<decltype(zero)>(call, out[0]); });
}
void conv2d_backward_input(const OpCall& call, Outputs& out) {
  if (out[0].numel() == 0) return;
  visit_floating(out[0].dtype(), [&](auto zero) { backward_input_of<decltype(zero)>(call, out[0]); });
}
void conv2d_backward_weight(const OpCall& call, Outputs& out) {
  if (out[0].numel() == 0) return;
  visit_floating(out[0].dtype(), [&](auto zero) { backward_weight_of<decltype(zero)>(call, out[0]); });
}

}  // namespace gradual::cpu
