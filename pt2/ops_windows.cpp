// Windows of images as columns and back, pools of volumes, and sampling at given points.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "../core/ops/derived_ops.h"
#include "../core/support/throwf.h"
#include "ops_table.h"

namespace gradual::pt2 {
namespace {

// --- columns ---------------------------------------------------------------------------------------------------------

constexpr std::int64_t kMostWindow = 1'000'000;

struct Windows {
  Size2 kernel, dilation, padding, stride;
};

// kernel_size dilation padding stride, from argument i on.
Windows windows(const Arguments& a, int i) {
  Windows w{a.pair(i, 1), a.pair(i + 1, 1), a.pair(i + 2, 0), a.pair(i + 3, 1)};
  for (int d = 0; d < 2; ++d) {
    if (w.kernel[d] < 1 || w.dilation[d] < 1 || w.stride[d] < 1)
      a.fail(i, "sizes, dilations and strides of at least 1");
    if (w.padding[d] < 0) a.fail(i + 2, "at least 0");
    for (const std::int64_t n : {w.kernel[d], w.dilation[d], w.padding[d], w.stride[d]})
      if (n > kMostWindow) a.fail(i, "sizes, dilations, paddings and strides of at most a million");
  }
  return w;
}

// How many windows fit into n elements of dim d.
std::int64_t count_of(const Arguments& a, const Windows& w, int d, std::int64_t n) {
  const std::int64_t reach = w.dilation[d] * (w.kernel[d] - 1) + 1;
  const std::int64_t wide = n + 2 * w.padding[d];
  if (wide < reach) a.fail(0, "at least as large as the window");
  return (wide - reach) / w.stride[d] + 1;
}

// For each place in the window the elements that are there, [N, C, rows, columns]. `outside` fills the padding.
std::vector<Tensor> taps_of(const Arguments& a, const Tensor& x, const Windows& w, double outside) {
  const std::int64_t rows = count_of(a, w, 0, x.size(2));
  const std::int64_t columns = count_of(a, w, 1, x.size(3));
  const Shape border{0, 0, w.padding[0], w.padding[1]};
  const bool padded = w.padding[0] > 0 || w.padding[1] > 0;
  const Tensor wide = padded ? pad(x, border, border, outside) : x;
  std::vector<Tensor> taps;
  for (std::int64_t i = 0; i < w.kernel[0]; ++i) {
    const std::int64_t top = i * w.dilation[0];
    const Tensor lines = slice(wide, 2, {top, top + (rows - 1) * w.stride[0] + 1, w.stride[0]});
    for (std::int64_t j = 0; j < w.kernel[1]; ++j) {
      const std::int64_t left = j * w.dilation[1];
      taps.push_back(slice(lines, 3, {left, left + (columns - 1) * w.stride[1] + 1, w.stride[1]}));
    }
  }
  return taps;
}

// [N, C, H, W] -> [N, C * places in the window, windows]
Value im2col(const Arguments& a) {
  const bool single = a.tensor(0).dim() == 3;
  const Tensor x = single ? unsqueeze(a.tensor(0), 0) : a.tensor(0);
  const std::vector<Tensor> taps = taps_of(a, x, windows(a, 1), 0);
  const Tensor all = stack(taps, 2);
  const Tensor columns = reshape(all, {x.size(0), x.size(1) * std::ssize(taps), taps[0].size(2) * taps[0].size(3)});
  return single ? squeeze(columns, 0) : columns;
}

// self output_size kernel_size dilation padding stride: the sum of the columns at their places, as a transposed
// convolution of each place's channel with a kernel of one 1.
Value col2im(const Arguments& a) {
  const bool single = a.tensor(0).dim() == 2;
  const Tensor x = single ? unsqueeze(a.tensor(0), 0) : a.tensor(0);
  const Size2 size = a.pair(1, 1);
  const Windows w = windows(a, 2);
  const std::int64_t places = w.kernel[0] * w.kernel[1];
  const std::int64_t rows = count_of(a, w, 0, size[0]);
  const std::int64_t columns = count_of(a, w, 1, size[1]);
  if (x.dim() != 3 || x.size(1) % places != 0 || x.size(2) != rows * columns)
    throwf("col2im: {} for windows of {} places, {} rows and {} columns of them", to_string(x.sizes()), places, rows,
           columns);
  const std::int64_t channels = x.size(1) / places;
  ConvTranspose2dOptions options;
  options.stride = w.stride;
  options.padding = w.padding;
  options.dilation = w.dilation;
  options.groups = 1;
  for (int d = 0; d < 2; ++d) {
    const std::int64_t count = d == 0 ? rows : columns;
    const std::int64_t covered = (count - 1) * w.stride[d] + w.dilation[d] * (w.kernel[d] - 1) + 1 - 2 * w.padding[d];
    options.output_padding[d] = size[d] - covered;
  }
  const Tensor kernel = reshape(eye(places, options_of(x)), {places, 1, w.kernel[0], w.kernel[1]});
  const Tensor images = reshape(x, {x.size(0) * channels, places, rows, columns});
  const Tensor y = conv_transpose2d(images, kernel, {}, options);
  const Tensor whole = reshape(y, {x.size(0), channels, size[0], size[1]});
  return single ? squeeze(whole, 0) : whole;
}

// --- pools -----------------------------------------------------------------------------------------------------------

std::vector<std::int64_t> three(const Arguments& a, int i, std::vector<std::int64_t> otherwise) {
  std::vector<std::int64_t> given = a.integers(i);
  if (given.empty()) given = std::move(otherwise);
  if (given.size() == 1) given.resize(3, given[0]);
  if (given.size() != 3) a.fail(i, "one or three integers");
  return given;
}

// Over rows and columns of each slice, then over slices.
template <class Pool> Tensor pooled_volume(const Arguments& a, const Pool& pool) {
  const bool single = a.tensor(0).dim() == 4;
  const Tensor x = single ? unsqueeze(a.tensor(0), 0) : a.tensor(0);
  if (x.dim() != 5) a.fail(0, "volumes [N, C, D, H, W]");
  const std::vector<std::int64_t> kernel = three(a, 1, {1});
  const std::vector<std::int64_t> stride = three(a, 2, kernel);
  const std::vector<std::int64_t> padding = three(a, 3, {0});
  for (std::size_t d = 0; d < 3; ++d) {
    if (kernel[d] < 1) a.fail(1, "sizes of at least 1");
    if (stride[d] < 1) a.fail(2, "strides of at least 1");
  }
  const Tensor slices = reshape(x, {x.size(0) * x.size(1), x.size(2), x.size(3), x.size(4)});
  const Tensor flat =
      pool(slices, Pool2dOptions{{kernel[1], kernel[2]}, {stride[1], stride[2]}, {padding[1], padding[2]}});
  const Tensor depths = reshape(flat, {x.size(0), x.size(1), x.size(2), flat.size(2) * flat.size(3)});
  const Tensor y = pool(depths, Pool2dOptions{{kernel[0], 1}, {stride[0], 1}, {padding[0], 0}});
  const Tensor volumes = reshape(y, {x.size(0), x.size(1), y.size(2), flat.size(2), flat.size(3)});
  return single ? squeeze(volumes, 0) : volumes;
}
// self kernel_size stride padding dilation ceil_mode
Value max_pool3d(const Arguments& a) {
  for (const std::int64_t n : three(a, 4, {1}))
    if (n != 1) a.fail(4, "1");
  if (a.flag(5)) a.fail(5, "false");
  return pooled_volume(a, [](const Tensor& x, const Pool2dOptions& options) { return max_pool2d(x, options); });
}
// self kernel_size stride padding ceil_mode count_include_pad divisor_override
Value avg_pool3d(const Arguments& a) {
  if (a.flag(4)) a.fail(4, "false");
  if (!a.none(6)) a.fail(6, "none");
  const bool has_padding = std::ranges::any_of(three(a, 3, {0}), [](std::int64_t n) { return n != 0; });
  if (!a.flag(5) && has_padding) a.fail(5, "true where there is padding");
  return pooled_volume(a, [](const Tensor& x, const Pool2dOptions& options) { return avg_pool2d(x, options); });
}
Value adaptive_avg3d(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const std::vector<std::int64_t> size = three(a, 1, {1});
  if (x.dim() != 5) a.fail(0, "volumes [N, C, D, H, W]");
  const Tensor slices = reshape(x, {x.size(0) * x.size(1), x.size(2), x.size(3), x.size(4)});
  const Tensor flat = adaptive_avg_pool2d(slices, size[1], size[2]);
  const Tensor depths = reshape(flat, {x.size(0), x.size(1), x.size(2), size[1] * size[2]});
  const Tensor y = adaptive_avg_pool2d(depths, size[0], size[1] * size[2]);
  return reshape(y, {x.size(0), x.size(1), size[0], size[1], size[2]});
}

// --- sampling --------------------------------------------------------------------------------------------------------

// theta [N, 2, 3], size [N, C, H, W], align_corners -> the points [N, H, W, 2], from -1 to 1 (Jaderberg et al. 2015).
Value affine_grid(const Arguments& a) {
  const Tensor& theta = a.tensor(0);
  const std::vector<std::int64_t> size = a.integers(1);
  if (size.size() != 4 || theta.dim() != 3) a.fail(1, "the sizes of images");
  const auto line = [&](std::int64_t n) {
    const double most = a.flag(2) ? 1 : (static_cast<double>(n) - 1) / static_cast<double>(n);
    return n == 1 ? zeros({1}, options_of(theta)) : linspace(-most, most, n, options_of(theta));
  };
  const Shape image{size[2], size[3]};
  const Tensor x = expand(line(size[3]), image);
  const Tensor y = expand(unsqueeze(line(size[2]), 1), image);
  const Tensor points = reshape(stack({x, y, ones(image, options_of(theta))}, -1), {size[2] * size[3], 3});
  return reshape(matmul(points, transpose(theta, 1, 2)), {size[0], size[2], size[3], 2});
}

// Where a coordinate from -1 to 1 is among n elements.
Tensor place_of(const Tensor& x, std::int64_t n, bool corners, std::int64_t padding) {
  const auto count = static_cast<double>(n);
  const Tensor at = corners ? mul(add(x, 1), (count - 1) / 2) : div(sub(mul(add(x, 1), count), 1), 2);
  return padding == 1 ? clamp_strictly(at, 0, count - 1) : at;
}

struct SampledImages {
  Tensor flat;  // [N, C, H * W]
  std::int64_t height = 0;
  std::int64_t width = 0;
};

// The elements at these rows and columns [N, H', W'], whole numbers; 0 outside.
Tensor elements_at(const SampledImages& images, const Tensor& row, const Tensor& column) {
  const auto most_row = static_cast<double>(images.height - 1);
  const auto most_column = static_cast<double>(images.width - 1);
  const Tensor inside =
      logical_and(logical_and(ge(row, 0), le(row, most_row)), logical_and(ge(column, 0), le(column, most_column)));
  const Tensor safe_row = cast(where(inside, row, 0), DType::i64);
  const Tensor safe = add(mul(safe_row, most_column + 1), cast(where(inside, column, 0), DType::i64));
  const std::int64_t count = row.size(1) * row.size(2);
  const Tensor index = expand(reshape(safe, {row.size(0), 1, count}), {row.size(0), images.flat.size(1), count});
  const Tensor found =
      reshape(gather(images.flat, 2, index), {row.size(0), images.flat.size(1), row.size(1), row.size(2)});
  return where(unsqueeze(inside, 1), found, 0);
}

// input grid interpolation_mode padding_mode align_corners
Value grid_sample(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const Tensor& grid = a.tensor(1);
  const std::int64_t mode = a.integer(2);
  if (mode != 0 && mode != 1) a.fail(2, "0 (bilinear) or 1 (nearest)");
  const std::int64_t padding = a.integer(3);
  if (padding != 0 && padding != 1) a.fail(3, "0 (zeros) or 1 (border)");
  if (x.dim() != 4 || grid.dim() != 4 || grid.size(3) != 2) a.fail(1, "points [N, H, W, 2] of images");
  const SampledImages images{reshape(x, {x.size(0), x.size(1), x.size(2) * x.size(3)}), x.size(2), x.size(3)};
  const Tensor column = place_of(select(grid, 3, 0), x.size(3), a.flag(4), padding);
  const Tensor row = place_of(select(grid, 3, 1), x.size(2), a.flag(4), padding);
  if (mode == 1) return elements_at(images, round(row.detach()), round(column.detach()));
  const Tensor top = floor(row.detach());
  const Tensor left = floor(column.detach());
  const Tensor down = sub(row, top);
  const Tensor right = sub(column, left);
  const auto corner = [&](const Tensor& r, const Tensor& c, const Tensor& weight) {
    return mul(elements_at(images, r, c), unsqueeze(weight, 1));
  };
  const Tensor upper =
      add(corner(top, left, mul(sub(1, down), sub(1, right))), corner(top, add(left, 1), mul(sub(1, down), right)));
  const Tensor lower =
      add(corner(add(top, 1), left, mul(down, sub(1, right))), corner(add(top, 1), add(left, 1), mul(down, right)));
  return add(upper, lower);
}

constexpr OpRow kWindowRows[] = {
    {"aten.im2col.default", "self kernel_size dilation padding stride", im2col},
    {"aten.col2im.default", "self output_size kernel_size dilation padding stride", col2im},
    {"aten.max_pool3d.default", "self kernel_size stride=[] padding=0 dilation=1 ceil_mode=False", max_pool3d},
    {"aten.avg_pool3d.default",
     "self kernel_size stride=[] padding=0 ceil_mode=False count_include_pad=True divisor_override=None", avg_pool3d},
    {"aten.adaptive_avg_pool3d.default", "self output_size", adaptive_avg3d},
    {"aten.affine_grid_generator.default", "theta size align_corners", affine_grid},
    {"aten.grid_sampler.default", "input grid interpolation_mode padding_mode align_corners", grid_sample},
    {"aten.grid_sampler_2d.default", "input grid interpolation_mode padding_mode align_corners", grid_sample},
};

}  // namespace

std::span<const OpRow> window_rows() { return kWindowRows; }

}  // namespace gradual::pt2
