// Pools, padding and interpolation.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "../core/ops/derived_ops.h"
#include "../core/support/throwf.h"
#include "ops_table.h"

namespace gradual::pt2 {
namespace {

// [C, H, W] gets a batch of one for the call.
template <class F> Tensor batched(const Tensor& x, const F& f) {
  return x.dim() == 3 ? squeeze(f(unsqueeze(x, 0)), 0) : f(x);
}

// --- pools -----------------------------------------------------------------------------------------------------------

struct Window {
  Size2 kernel = 1;
  Size2 stride = 1;
  Size2 padding = 0;
  Size2 extra = 0;  // behind the padding, so that the last window of ceil mode is whole
};

Window window(const Arguments& a, const Tensor& x, int kernel, bool ceil) {
  Window w{a.pair(kernel, 1), a.pair(kernel + 1, a.pair(kernel, 1)), a.pair(kernel + 2, 0)};
  for (int i = 0; i < 2; ++i) {
    if (w.kernel[i] < 1) a.fail(kernel, "sizes of at least 1");
    if (w.stride[i] < 1) a.fail(kernel + 1, "strides of at least 1");
  }
  for (int i = 0; ceil && i < 2; ++i) {
    const std::int64_t n = x.size(2 + i) + 2 * w.padding[i];
    std::int64_t count = (n - w.kernel[i] + w.stride[i] - 1) / w.stride[i] + 1;
    // the last window begins inside the image or the padding before it
    if ((count - 1) * w.stride[i] >= x.size(2 + i) + w.padding[i]) --count;
    w.extra[i] = std::max<std::int64_t>(0, (count - 1) * w.stride[i] + w.kernel[i] - n);
  }
  return w;
}

Tensor padded(const Tensor& x, const Window& w, double value, bool borders) {
  Shape before = Shape::filled(4, 0);
  Shape after = before;
  for (int i = 0; i < 2; ++i) {
    before[2 + i] = borders ? w.padding[i] : 0;
    after[2 + i] = (borders ? w.padding[i] : 0) + w.extra[i];
  }
  return pad(x, before, after, value);
}

constexpr std::int64_t kMostWindow = 1'000'000;
// The largest of the shifted images that the window's places see; of equals the first.
std::pair<Tensor, Tensor> dilated_max(const Arguments& a, const Tensor& x, const Size2& dilation) {
  if (a.flag(5)) a.fail(5, "false where the window is dilated");
  const Window w = window(a, x, 1, false);
  const Tensor wide = padded(x, w, -std::numeric_limits<double>::infinity(), true);
  std::int64_t count[2] = {0, 0};
  for (int i = 0; i < 2; ++i) {
    if (dilation[i] < 1 || dilation[i] > kMostWindow || w.kernel[i] > kMostWindow) a.fail(4, "1 to a million");
    const std::int64_t reach = dilation[i] * (w.kernel[i] - 1) + 1;
    if (wide.size(2 + i) < reach) a.fail(4, "a window within the image");
    count[i] = (wide.size(2 + i) - reach) / w.stride[i] + 1;
  }
  std::vector<Tensor> taps;
  for (std::int64_t i = 0; i < w.kernel[0]; ++i) {
    const std::int64_t top = i * dilation[0];
    const Tensor lines = slice(wide, 2, {top, top + (count[0] - 1) * w.stride[0] + 1, w.stride[0]});
    for (std::int64_t j = 0; j < w.kernel[1]; ++j) {
      const std::int64_t left = j * dilation[1];
      taps.push_back(slice(lines, 3, {left, left + (count[1] - 1) * w.stride[1] + 1, w.stride[1]}));
    }
  }
  return {max_with_indices(stack(taps, 0), 0, false).values, {}};
}

// self kernel_size stride padding dilation ceil_mode
std::pair<Tensor, Tensor> max_pool(const Arguments& a, const Tensor& x) {
  if (const Size2 dilation = a.pair(4, 1); dilation[0] != 1 || dilation[1] != 1) return dilated_max(a, x, dilation);
  const Window w = window(a, x, 1, a.flag(5));
  if (w.extra[0] == 0 && w.extra[1] == 0) return max_pool2d_with_indices(x, {w.kernel, w.stride, w.padding});
  const Tensor wide = padded(x, w, -std::numeric_limits<double>::infinity(), true);
  return {max_pool2d(wide, {w.kernel, w.stride, 0}), {}};
}
Value max_pool_row(const Arguments& a) {
  return batched(a.tensor(0), [&](const Tensor& x) { return max_pool(a, x).first; });
}
Value max_pool_indices(const Arguments& a) {
  const auto [y, indices] = max_pool(a, a.tensor(0));
  if (!indices.defined()) a.fail(5, "false, with a window that is not dilated, where the indices are read");
  return list_of({y, indices});
}
// self kernel_size stride padding ceil_mode count_include_pad divisor_override
Tensor average(const Arguments& a, const Tensor& x) {
  const Window w = window(a, x, 1, a.flag(4));
  const bool whole = w.extra[0] == 0 && w.extra[1] == 0;
  const bool has_padding = w.padding[0] != 0 || w.padding[1] != 0;
  const auto area = static_cast<double>(w.kernel[0] * w.kernel[1]);
  if (!a.none(6)) {
    const Tensor y = avg_pool2d(padded(x, w, 0, true), {w.kernel, w.stride, 0});
    return mul(y, area / a.number(6));
  }
  if (whole && (a.flag(5) || !has_padding)) return avg_pool2d(x, {w.kernel, w.stride, w.padding});
  // The share of each window that counts: the image, with include_pad also the padding, never what ceil mode adds.
  const Tensor image = ones({1, 1, x.size(2), x.size(3)}, options_of(x));
  Window borders = w;
  borders.extra = 0;
  Window rest = w;
  rest.padding = 0;
  const Tensor counted =
      a.flag(5) ? padded(padded(image, borders, 1, true), rest, 0, false) : padded(image, w, 0, true);
  const Tensor share = avg_pool2d(counted, {w.kernel, w.stride, 0});
  return div(avg_pool2d(padded(x, w, 0, true), {w.kernel, w.stride, 0}), share);
}
Value avg_pool_row(const Arguments& a) {
  return batched(a.tensor(0), [&](const Tensor& x) { return average(a, x); });
}
// [N, C, L] as images of height 1.
Value avg_pool1d(const Arguments& a) {
  if (a.flag(4) || (!a.flag(5) && a.pair(3, 0)[1] != 0)) a.fail(4, "false, with count_include_pad");
  const auto one = [&](int i, std::int64_t otherwise) { return a.pair(i, otherwise)[1]; };
  const Pool2dOptions options{{1, one(1, 1)}, {1, one(2, one(1, 1))}, {0, one(3, 0)}};
  return squeeze(avg_pool2d(unsqueeze(a.tensor(0), 2), options), 2);
}
Value max_pool1d(const Arguments& a) {
  if (a.pair(4, 1)[1] != 1 || a.flag(5)) a.fail(4, "1, without ceil_mode");
  const auto one = [&](int i, std::int64_t otherwise) { return a.pair(i, otherwise)[1]; };
  const Pool2dOptions options{{1, one(1, 1)}, {1, one(2, one(1, 1))}, {0, one(3, 0)}};
  return squeeze(max_pool2d(unsqueeze(a.tensor(0), 2), options), 2);
}
Size2 output_size(const Arguments& a, const Tensor& x) {
  const Value::List* const list = a[1].get<Value::List>();
  if (!list) return a.pair(1, 1);
  if (list->size() != 2) a.fail(1, "two sizes");
  Size2 size = 1;
  for (int i = 0; i < 2; ++i) {
    const Value& v = (*list)[static_cast<std::size_t>(i)];
    size[i] = v.get<std::int64_t>() ? *v.get<std::int64_t>() : x.size(2 + i);
  }
  return size;
}
Value adaptive_avg(const Arguments& a) {
  return batched(a.tensor(0), [&](const Tensor& x) {
    const Size2 size = output_size(a, x);
    return adaptive_avg_pool2d(x, size[0], size[1]);
  });
}
// Without the places, which no op of the table reads.
Value adaptive_max(const Arguments& a) {
  const Tensor y = batched(a.tensor(0), [&](const Tensor& x) {
    const Size2 size = output_size(a, x);
    return adaptive_max_pool2d(x, size[0], size[1]);
  });
  return Value::List{y, {}};
}
Value adaptive_avg1d(const Arguments& a) {
  const std::vector<std::int64_t> size = a.integers(1);
  if (size.size() != 1) a.fail(1, "one size");
  return squeeze(adaptive_avg_pool2d(unsqueeze(a.tensor(0), -2), 1, size[0]), -2);
}

// --- padding ---------------------------------------------------------------------------------------------------------

// Row i of a dim of n for each place from -before to n + after.
std::vector<std::int64_t> mirrored(const std::string& mode, std::int64_t n, std::int64_t before, std::int64_t after) {
  if (n < 1) throwf("pad {} of a dim of {}; allowed is at least 1", mode, n);
  std::vector<std::int64_t> rows;
  for (std::int64_t i = -before; i < n + after; ++i) {
    std::int64_t at = i;
    if (mode == "replicate") at = std::clamp<std::int64_t>(i, 0, n - 1);
    if (mode == "circular") at = ((i % n) + n) % n;
    if (mode == "reflect") at = i < 0 ? -i : i >= n ? 2 * (n - 1) - i : i;
    if (at < 0 || at >= n) throwf("pad {} of a dim of {} by {} and {}", mode, n, before, after);
    rows.push_back(at);
  }
  return rows;
}

// `sizes` are pairs (before, after) from the last dim on; negative ones cut.
Tensor padded_by(const Tensor& given, const std::vector<std::int64_t>& sizes, const std::string& mode, double value) {
  if (sizes.size() % 2 != 0 || static_cast<int>(sizes.size() / 2) > given.dim())
    throw_error("pad: the sizes do not fit");
  Tensor x = given;
  Shape before = Shape::filled(x.dim(), 0);
  Shape after = before;
  for (std::size_t i = 0; i < sizes.size() / 2; ++i) {
    const int d = x.dim() - 1 - static_cast<int>(i);
    before[d] = sizes[2 * i];
    after[d] = sizes[2 * i + 1];
  }
  for (int d = 0; d < x.dim(); ++d) {
    const std::int64_t cut_before = std::max<std::int64_t>(0, -before[d]);
    const std::int64_t cut_after = std::max<std::int64_t>(0, -after[d]);
    if (cut_before + cut_after > 0) x = narrow(x, d, cut_before, x.size(d) - cut_before - cut_after);
    before[d] = std::max<std::int64_t>(0, before[d]);
    after[d] = std::max<std::int64_t>(0, after[d]);
  }
  if (mode == "constant") return pad(x, before, after, value);
  for (int d = 0; d < x.dim(); ++d) {
    if (before[d] == 0 && after[d] == 0) continue;
    const std::vector<std::int64_t> rows = mirrored(mode, x.size(d), before[d], after[d]);
    const auto count = static_cast<std::int64_t>(rows.size());
    x = index_select(x, d, from_data(rows, {count}, {.dtype = DType::i64}).to(x.device()));
  }
  return x;
}
Value pad_row(const Arguments& a) {
  return padded_by(a.tensor(0), a.integers(1), a.text(2), a.optional_number(3).value_or(0));
}
Value constant_pad(const Arguments& a) { return padded_by(a.tensor(0), a.integers(1), "constant", a.number(2)); }
Value reflection_pad(const Arguments& a) { return padded_by(a.tensor(0), a.integers(1), "reflect", 0); }
Value replication_pad(const Arguments& a) { return padded_by(a.tensor(0), a.integers(1), "replicate", 0); }

// --- interpolation ---------------------------------------------------------------------------------------------------

struct Target {
  std::int64_t size[3] = {0, 0, 0};
  double scale[3] = {0, 0, 0};  // source pixels a target pixel
};
int spatial_dims(const Arguments& a) {
  const int n = a.tensor(0).dim() - 2;
  if (n < 1 || n > 3) a.fail(0, "signals, images or volumes [N, C, ..]");
  return n;
}

// A scale factor of argument i.
double scale_factor(const Arguments& a, int i, const Value& v) {
  constexpr double kMost = 1e6;
  double factor = 0;
  if (const double* x = v.get<double>()) factor = *x;
  else if (const std::int64_t* n = v.get<std::int64_t>()) factor = static_cast<double>(*n);
  if (!(factor > 0 && factor <= kMost)) a.fail(i, "scale factors above 0 and up to 1e6");
  return factor;
}

// Arguments 1 (sizes) and `factors` (scale factors), of which one is given.
Target target(const Arguments& a, const Tensor& x, int factors, bool corners) {
  Target t;
  std::vector<double> by;
  if (const Value::List* list = a[factors].get<Value::List>())
    for (const Value& v : *list) by.push_back(scale_factor(a, factors, v));
  const int dims = spatial_dims(a);
  const std::vector<std::int64_t> sizes = a.integers(1);
  if (a.none(1) && std::ssize(by) != dims) a.fail(factors, "a scale factor for each dim, where no size is given");
  if (!a.none(1) && std::ssize(sizes) != dims) a.fail(1, "a size for each dim");
  for (int i = 0; i < dims; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (x.size(2 + i) < 1) a.fail(0, "images of at least one pixel");
    const auto n = static_cast<double>(x.size(2 + i));
    t.size[i] = a.none(1) ? static_cast<std::int64_t>(std::floor(n * by[at])) : sizes[at];
    const auto size = static_cast<double>(t.size[i]);
    if (corners) t.scale[i] = size > 1 ? (n - 1) / (size - 1) : 0;
    else t.scale[i] = a.none(1) ? 1 / by[static_cast<std::size_t>(i)] : n / size;
  }
  return t;
}

Tensor rows_at(const Tensor& x, int dim, const std::vector<std::int64_t>& places) {
  const auto count = static_cast<std::int64_t>(places.size());
  return index_select(x, dim, from_data(places, {count}, {.dtype = DType::i64}).to(x.device()));
}

// `middle` is where in a pixel the point is: 0 as PyTorch's nearest has it, 0.5 exactly.
Tensor nearest_at(const Arguments& a, double middle) {
  Tensor x = a.tensor(0);
  const Target t = target(a, x, 2, false);
  for (int i = 0; i < spatial_dims(a); ++i) {
    const std::int64_t n = x.size(2 + i);
    std::vector<std::int64_t> places;
    for (std::int64_t k = 0; k < t.size[i]; ++k)
      places.push_back(
          std::min(n - 1, static_cast<std::int64_t>(std::floor((static_cast<double>(k) + middle) * t.scale[i]))));
    x = rows_at(x, 2 + i, places);
  }
  return x;
}

Value nearest(const Arguments& a) { return nearest_at(a, 0); }
Value nearest_exact(const Arguments& a) { return nearest_at(a, 0.5); }

// Along one dim: the sum over taps of rows times weights.
struct Taps {
  std::vector<std::int64_t> places;
  std::vector<double> weights;
};
Tensor tapped(const Tensor& x, int dim, const std::vector<Taps>& taps) {
  Tensor y;
  for (const Taps& tap : taps) {
    Shape along = Shape::filled(x.dim(), 1);
    along[dim] = static_cast<std::int64_t>(tap.weights.size());
    const Tensor term = mul(rows_at(x, dim, tap.places), from_data(tap.weights, along, options_of(x)));
    y = y.defined() ? add(y, term) : term;
  }
  return y;
}

double source_of(std::int64_t k, double scale, bool corners, bool clamped) {
  const double at = corners ? static_cast<double>(k) * scale : (static_cast<double>(k) + 0.5) * scale - 0.5;
  return clamped ? std::max(0.0, at) : at;
}

// input output_size align_corners scale_factors
Value bilinear_up(const Arguments& a) {
  Tensor x = a.tensor(0);
  const bool corners = a.flag(2);
  const Target t = target(a, x, 3, corners);
  for (int i = 0; i < spatial_dims(a); ++i) {
    const std::int64_t n = x.size(2 + i);
    Taps low;
    Taps high;
    for (std::int64_t k = 0; k < t.size[i]; ++k) {
      const double at = source_of(k, t.scale[i], corners, true);
      const std::int64_t first = std::min(n - 1, static_cast<std::int64_t>(at));
      const double share = std::min(1.0, at - static_cast<double>(first));
      low.places.push_back(first);
      low.weights.push_back(1 - share);
      high.places.push_back(std::min(n - 1, first + 1));
      high.weights.push_back(share);
    }
    if (t.size[i] != n || t.scale[i] != 1) x = tapped(x, 2 + i, {low, high});
  }
  return x;
}

// Keys 1981 with a = -0.75, as in PyTorch.
double cubic(double d) {
  constexpr double kA = -0.75;
  const double x = std::abs(d);
  if (x <= 1) return ((kA + 2) * x - (kA + 3)) * x * x + 1;
  return x < 2 ? ((x - 5) * x + 8) * x * kA - 4 * kA : 0;
}
Value bicubic_up(const Arguments& a) {
  Tensor x = a.tensor(0);
  const bool corners = a.flag(2);
  const Target t = target(a, x, 3, corners);
  for (int i = 0; i < 2; ++i) {
    const std::int64_t n = x.size(2 + i);
    std::vector<Taps> taps(4);
    for (std::int64_t k = 0; k < t.size[i]; ++k) {
      const double at = source_of(k, t.scale[i], corners, false);
      const auto first = static_cast<std::int64_t>(std::floor(at));
      for (std::int64_t j = 0; j < 4; ++j) {
        Taps& tap = taps[static_cast<std::size_t>(j)];
        tap.places.push_back(std::clamp<std::int64_t>(first - 1 + j, 0, n - 1));
        tap.weights.push_back(cubic(at - static_cast<double>(first - 1 + j)));
      }
    }
    x = tapped(x, 2 + i, taps);
  }
  return x;
}

// Antialiased: a filter of `reach` target pixels on each side, stretched where the image shrinks, its weights scaled to
// a sum of 1.
Tensor antialiased(const Arguments& a, double reach, double (*filter)(double)) {
  Tensor x = a.tensor(0);
  const Target t = target(a, x, 3, a.flag(2));
  for (int i = 0; i < 2; ++i) {
    const std::int64_t n = x.size(2 + i);
    if (t.size[i] < 1) a.fail(1, "sizes of at least 1");
    const double stretch = std::max(1.0, t.scale[i]);
    const double support = reach * stretch;
    const auto most = static_cast<std::size_t>(std::ceil(support)) * 2 + 1;
    std::vector<Taps> taps(most);
    for (std::int64_t k = 0; k < t.size[i]; ++k) {
      const double center = t.scale[i] * (static_cast<double>(k) + 0.5);
      const auto first = std::max<std::int64_t>(0, static_cast<std::int64_t>(center - support + 0.5));
      const auto last = std::min<std::int64_t>(n, static_cast<std::int64_t>(center + support + 0.5));
      std::vector<double> weights(most);
      double total = 0;
      for (std::int64_t j = first; j < last && j - first < std::ssize(weights); ++j) {
        const double w = filter((static_cast<double>(j) - center + 0.5) / stretch);
        weights[static_cast<std::size_t>(j - first)] = w;
        total += w;
      }
      for (std::size_t j = 0; j < most; ++j) {
        taps[j].places.push_back(std::min(n - 1, first + static_cast<std::int64_t>(j)));
        taps[j].weights.push_back(total == 0 ? 0 : weights[j] / total);
      }
    }
    x = tapped(x, 2 + i, taps);
  }
  return x;
}
double triangle(double d) { return std::max(0.0, 1 - std::abs(d)); }
// Keys 1981 with a = -0.5, which PyTorch takes where it antialiases.
double sharp_cubic(double d) {
  constexpr double kA = -0.5;
  const double x = std::abs(d);
  if (x < 1) return ((kA + 2) * x - (kA + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * kA : 0;
}
Value bilinear_antialiased(const Arguments& a) { return antialiased(a, 1, triangle); }
Value bicubic_antialiased(const Arguments& a) { return antialiased(a, 2, sharp_cubic); }

Value pixel_shuffle(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const std::int64_t r = a.integer(1);
  if (r < 1 || r > x.size(1)) a.fail(1, "at least 1, and at most the number of channels");
  const std::int64_t c = x.size(1) / (r * r);
  const Tensor parts = reshape(x, {x.size(0), c, r, r, x.size(2), x.size(3)});
  return reshape(permute(parts, {0, 1, 4, 2, 5, 3}), {x.size(0), c, x.size(2) * r, x.size(3) * r});
}
Value pixel_unshuffle(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const std::int64_t r = a.integer(1);
  if (r < 1) a.fail(1, "at least 1");
  const Tensor parts = reshape(x, {x.size(0), x.size(1), x.size(2) / r, r, x.size(3) / r, r});
  return reshape(permute(parts, {0, 1, 3, 5, 2, 4}), {x.size(0), x.size(1) * r * r, x.size(2) / r, x.size(3) / r});
}
Value channel_shuffle(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const std::int64_t groups = a.integer(1);
  if (groups < 1) a.fail(1, "at least 1");
  const Tensor parts = reshape(x, {x.size(0), groups, x.size(1) / groups, x.size(2), x.size(3)});
  return reshape(transpose(parts, 1, 2), x.sizes());
}

constexpr OpRow kImageRows[] = {
    {"aten.max_pool2d.default", "self kernel_size stride=[] padding=0 dilation=1 ceil_mode=False", max_pool_row},
    {"aten.max_pool2d_with_indices.default", "self kernel_size stride=[] padding=0 dilation=1 ceil_mode=False",
     max_pool_indices},
    {"aten.max_pool1d.default", "self kernel_size stride=[] padding=0 dilation=1 ceil_mode=False", max_pool1d},
    {"aten.avg_pool2d.default",
     "self kernel_size stride=[] padding=0 ceil_mode=False count_include_pad=True divisor_override=None", avg_pool_row},
    {"aten.avg_pool1d.default", "self kernel_size stride=[] padding=0 ceil_mode=False count_include_pad=True",
     avg_pool1d},
    {"aten.adaptive_avg_pool2d.default", "self output_size", adaptive_avg},
    {"aten.adaptive_avg_pool1d.default", "self output_size", adaptive_avg1d},
    {"aten.adaptive_max_pool2d.default", "self output_size", adaptive_max},
    {"aten.pad.default", "self pad mode='constant' value=None", pad_row},
    {"aten.constant_pad_nd.default", "self pad value=0", constant_pad},
    {"aten.reflection_pad1d.default", "self padding", reflection_pad},
    {"aten.reflection_pad2d.default", "self padding", reflection_pad},
    {"aten.replication_pad1d.default", "self padding", replication_pad},
    {"aten.replication_pad2d.default", "self padding", replication_pad},
    {"aten.upsample_nearest2d.vec", "input output_size scale_factors", nearest},
    {"aten.upsample_bilinear2d.vec", "input output_size align_corners scale_factors", bilinear_up},
    {"aten.upsample_nearest1d.vec", "input output_size scale_factors", nearest},
    {"aten.upsample_nearest3d.vec", "input output_size scale_factors", nearest},
    {"aten._upsample_nearest_exact1d.vec", "input output_size scale_factors", nearest_exact},
    {"aten._upsample_nearest_exact2d.vec", "input output_size scale_factors", nearest_exact},
    {"aten._upsample_nearest_exact3d.vec", "input output_size scale_factors", nearest_exact},
    {"aten.upsample_linear1d.vec", "input output_size align_corners scale_factors", bilinear_up},
    {"aten.upsample_trilinear3d.vec", "input output_size align_corners scale_factors", bilinear_up},
    {"aten._upsample_bilinear2d_aa.vec", "input output_size align_corners scale_factors", bilinear_antialiased},
    {"aten._upsample_bicubic2d_aa.vec", "input output_size align_corners scale_factors", bicubic_antialiased},
    {"aten.upsample_bicubic2d.vec", "input output_size align_corners scale_factors", bicubic_up},
    {"aten.pixel_shuffle.default", "self upscale_factor", pixel_shuffle},
    {"aten.pixel_unshuffle.default", "self downscale_factor", pixel_unshuffle},
    {"aten.channel_shuffle.default", "self groups", channel_shuffle},
};

}  // namespace

std::span<const OpRow> image_rows() { return kImageRows; }

}  // namespace gradual::pt2
