#include "what_if.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <limits>
#include <mutex>

#include "../ops/dispatch.h"
#include "../ops/ops.h"
#include "../support/message_text.h"
#include "../support/parallel.h"
#include "../support/throwf.h"

namespace gradual {
namespace {

constexpr std::int64_t kBlock = 1024;  // elements that stay in the L1 cache for all formats and scales

// One way to round the whole tensor. Rounding x times a power of two to a format equals rounding x to that format with
// a shifted bias; this needs no multiplication, which could round too.
struct Point {
  Rounder rounder;
  double scale = 1;
  bool multiply = false;  // by `scale`, which is no power of two, or for a format without a bias
};
struct Sums {
  CastCounts counts;
  double noise = 0;
  double median_error = 0;
};

// The largest k with amax * 2^k <= max.
int fitting_exponent(double max, double amax) {
  const int k = std::ilogb(max) - std::ilogb(amax);
  return k - (std::ldexp(amax, k) > max ? 1 : 0);
}

// sum ((x - q * back) * unit)^2. Eight sums let the loop vectorise with a fixed order of additions.
template <class T> double noise_of(const T* x, const T* q, std::int64_t n, double back, double unit) {
  double sums[8] = {};
  const auto add = [&](std::int64_t i, double& sum) {
    const double d = (static_cast<double>(x[i]) - static_cast<double>(q[i]) * back) * unit;
    sum += d * d;
  };
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int k = 0; k < 8; ++k) add(i + k, sums[k]);
  for (; i < n; ++i) add(i, sums[0]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// Elements [first, first + n) of a contiguous tensor; Inf and NaN become zeros and are counted.
template <class T> void load(const Tensor& x, std::int64_t first, std::int64_t n, T* out, WhatIf* counts) {
  const void* from = static_cast<const char*>(x.raw()) + static_cast<std::size_t>(first) * size_of(x.dtype());
  fetch_and_cast(x.dtype(), from, 1, out, n);
  for (std::int64_t i = 0; i < n; ++i) {
    const bool nan = std::isnan(out[i]), inf = std::isinf(out[i]);
    if (counts) counts->zeros += out[i] == 0, counts->nan += nan, counts->inf += inf;
    if (nan || inf) out[i] = 0;
  }
}

// Squares of doubles times this one's stay within range.
double unit_of(double amax) { return amax > 0 ? std::ldexp(1.0, -std::max(std::ilogb(amax), -1000)) : 1; }

std::int64_t chunk_of(std::int64_t n) { return std::max<std::int64_t>(32 * kBlock, (n + 63) / 64); }

template <class T> WhatIf survey(const Tensor& x) {
  WhatIf total{.elements = x.numel(), .amin = std::numeric_limits<double>::infinity()};
  std::mutex mutex;
  parallel_for(x.numel(), chunk_of(x.numel()), [&](std::int64_t begin, std::int64_t end) {
    WhatIf mine;
    T most = 0, least = std::numeric_limits<T>::infinity(), values[kBlock];
    for (std::int64_t first = begin; first < end; first += kBlock) {
      const std::int64_t n = std::min(kBlock, end - first);
      load(x, first, n, values, &mine);
      for (std::int64_t i = 0; i < n; ++i) {
        const T magnitude = std::abs(values[i]);
        most = std::max(most, magnitude);
        if (magnitude > 0) least = std::min(least, magnitude);
      }
    }
    const std::lock_guard lock(mutex);
    total.zeros += mine.zeros, total.nan += mine.nan, total.inf += mine.inf;
    total.amax = std::max<double>(total.amax, most);
    total.amin = std::min<double>(total.amin, least);
  });
  if (total.amax == 0) total.amin = 0;
  return total;
}

// The scales of a format: the sweep by rising powers of two, then max / amax.
std::vector<Point> points_of(const Format& f, double amax, const WhatIfOptions& o) {
  const Rounder plain{f, o.rounding, Overflow::saturate};
  if (amax == 0) return {{plain}, {plain}};
  const int fit = fitting_exponent(f.max(), amax);
  std::vector<Point> points;
  for (int k = std::min(0, fit); k <= std::max(0, fit + o.above); ++k) {
    if (k < f.max_exponent() - 127 || k > 127 - f.bias || (k != 0 && k > fit + o.above)) continue;
    points.push_back({.rounder = plain, .scale = std::ldexp(1.0, k), .multiply = f.table != nullptr});
    if (!f.table) points.back().rounder.format.bias += k;
  }
  const float scale = std::min(static_cast<float>(f.max()) / static_cast<float>(amax), FLT_MAX);  // as in Quantizer
  points.push_back({.rounder = plain, .scale = scale, .multiply = true});
  return points;
}

// The sums of every point, and of x^2 at the end, over one chunk. `unit` keeps squares of doubles within range.
template <class T>
void add_sums(const Tensor& x, std::int64_t begin, std::int64_t end, const std::vector<Point>& points, double unit,
              std::vector<Sums>& sums) {
  T values[kBlock], rounded[kBlock];
  constexpr T kZeros[kBlock] = {};
  for (std::int64_t first = begin; first < end; first += kBlock) {
    const std::int64_t n = std::min(kBlock, end - first);
    load(x, first, n, values, nullptr);
    for (std::size_t p = 0; p < points.size(); ++p) {
      const Point& point = points[p];
      round_point(point, values, rounded, n, first, {.counts = &sums[p].counts});
      sums[p].noise += noise_of(values, rounded, n, point.multiply ? 1 / point.scale : 1, unit);
    }
    sums.back().noise += noise_of(values, kZeros, n, 1, unit);
  }
}

// x * scale, rounded.
template <class T>
void round_point(const Point& p, const T* x, T* rounded, std::int64_t n, std::int64_t first, CastStats stats) {
  if (p.multiply) {
    for (std::int64_t i = 0; i < n; ++i) rounded[i] = x[i] * static_cast<T>(p.scale);
    x = rounded;
  }
  p.rounder.round(x, rounded, n, first, stats);
}

constexpr std::int64_t kSample = 4096;

// Elements of x, at most kSample, evenly spaced, where `source` is finite and not zero.
template <class T> std::vector<T> sample_of(const Tensor& x, const Tensor& source) {
  std::vector<T> sample;
  const std::int64_t step = std::max<std::int64_t>(1, (x.numel() + kSample - 1) / kSample);
  for (std::int64_t i = 0; i < x.numel(); i += step) {
    T v = 0;
    load(source, i, 1, &v, nullptr);
    if (v == 0) continue;
    load(x, i, 1, &v, nullptr);
    sample.push_back(v);
  }
  return sample;
}

template <class T> double median_error(const std::vector<T>& x, const std::vector<T>& q, double back) {
  std::vector<double> errors(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    errors[i] = std::abs((static_cast<double>(x[i]) - static_cast<double>(q[i]) * back) / static_cast<double>(x[i]));
  if (errors.empty()) return 0;
  const auto middle = errors.begin() + static_cast<std::ptrdiff_t>(errors.size() / 2);
  std::ranges::nth_element(errors, middle);
  return *middle;
}

template <class T> std::vector<Sums> all_sums(const Tensor& x, const std::vector<Point>& points, double amax) {
  const std::int64_t n = x.numel(), per = chunk_of(n);
  const double unit = unit_of(amax);
  // Each chunk has its own sums, which are added in order: the bits are the same for any number of threads.
  std::vector<std::vector<Sums>> parts(static_cast<std::size_t>((n + per - 1) / per));
  parallel_for(n, per, [&](std::int64_t begin, std::int64_t end) {
    auto& mine = parts[static_cast<std::size_t>(begin / per)];
    mine.resize(points.size() + 1);
    add_sums<T>(x, begin, end, points, unit, mine);
  });
  std::vector<Sums> total(points.size() + 1);
  for (const auto& part : parts)
    for (std::size_t p = 0; p < part.size(); ++p) total[p].counts += part[p].counts, total[p].noise += part[p].noise;
  const std::vector<T> sample = sample_of<T>(x, x);
  std::vector<T> rounded(sample.size());
  for (std::size_t p = 0; p < points.size(); ++p) {
    round_point(points[p], sample.data(), rounded.data(), static_cast<std::int64_t>(sample.size()), 0, {});
    total[p].median_error = median_error(sample, rounded, points[p].multiply ? 1 / points[p].scale : 1);
  }
  return total;
}

ScaleLoss loss_of(const Point& point, const Sums& s, double signal, const WhatIf& w) {
  const std::int64_t left_out = w.zeros + w.nan + w.inf;
  const auto count = static_cast<double>(std::max<std::int64_t>(1, w.elements - left_out));
  ScaleLoss loss{.scale = point.scale};
  // Elements that the product with the scale made zero are lost too.
  loss.underflow =
      static_cast<double>(s.counts.underflow + s.counts.zeros - static_cast<std::uint64_t>(left_out)) / count;
  loss.subnormal = static_cast<double>(s.counts.subnormal) / count;
  loss.overflow = static_cast<double>(s.counts.overflow) / count;
  loss.median_error = s.median_error;
  loss.sqnr_db = s.noise == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(signal / s.noise);
  return loss;
}

FormatLoss format_loss(const Format& f, std::vector<ScaleLoss> losses) {
  FormatLoss out{.name = to_string(f), .format = f};
  out.amax = losses.back();
  losses.pop_back();
  for (const ScaleLoss& l : losses)
    if (l.scale == 1) out.unscaled = l;
  out.sweep = std::move(losses);
  out.best = out.best_by(Criterion::sqnr);
  return out;
}

// The quantizer on x with zeros for what is not finite.
BlockLoss block_loss(const NamedQuantizer& named, const Tensor& x, const WhatIf& w, double unit) {
  Sums sums;
  const Tensor wide = x.to(DType::f64);
  const Tensor finite = where(lt(abs(wide), std::numeric_limits<double>::infinity()), wide, 0.0);
  const Tensor rounded = fake_quantize(finite, named.quantizer, {.stats = {.counts = &sums.counts}}).to(DType::f64);
  const auto *from = finite.data<double>(), *to = rounded.data<double>();
  const std::vector<double> zeros(static_cast<std::size_t>(x.numel()));
  sums.noise = noise_of(from, to, x.numel(), 1, unit);
  sums.median_error = median_error(sample_of<double>(finite, finite), sample_of<double>(rounded, finite), 1);
  return {named.name, named.quantizer, loss_of({}, sums, noise_of(from, zeros.data(), x.numel(), 1, unit), w)};
}

std::string percent(double share) { return fmt::format("{:.3g}%", 100 * share); }
std::string decibels(double db) { return std::isinf(db) && db > 0 ? "exact" : fmt::format("{:.1f}", db); }

}  // namespace

std::vector<NamedQuantizer> block_quantizers() {
  const auto mx = [](const char* element, int block) {
    return Quantizer{.format = format(element), .scaling = {.kind = ScalingKind::block, .block = block}};
  };
  const Quantizer nvfp4{.format = format("e2m1"), .scaling = {.kind = ScalingKind::nvfp4, .block = 16}};
  return {{"mxfp8", mx("e4m3fn", 32)},  {"mxfp6", mx("e3m2", 32)},    {"mxfp4", mx("e2m1", 32)},
          {"mxint8", mx("mxint8", 32)}, {"msfp12", mx("msfp12", 16)}, {"nvfp4", nvfp4}};
}

const ScaleLoss& FormatLoss::best_by(Criterion criterion) const {
  // Larger is better, in order.
  const auto rank = [criterion](const ScaleLoss& l) {
    const double near = -std::abs(std::log2(l.scale));
    if (criterion == Criterion::sqnr) return std::array{l.sqnr_db, near, 0.0};
    if (criterion == Criterion::kept) return std::array{l.kept(), -l.median_error, near};
    return std::array{-l.median_error, near, 0.0};
  };
  return *std::ranges::max_element(sweep, {}, rank);
}

const FormatLoss& WhatIf::of(std::string_view wanted) const {
  std::vector<std::string> names;
  for (const FormatLoss& f : formats) {
    if (f.name == wanted) return f;
    names.push_back(f.name);
  }
  const Format meant = format(wanted);
  for (const FormatLoss& f : formats)
    if (f.format == meant) return f;
  throwf("what_if: {} was not among the formats; they are {}, and those of WhatIfOptions::also", wanted, join(names));
}

WhatIf what_if(const Tensor& x, const WhatIfOptions& o) {
  if (!x.is_floating()) throwf("what_if: takes a floating tensor, not {}", to_string(x.dtype()));
  if (o.above < 0 || o.above > 256)
    throwf("what_if: the sweep goes 0 to 256 powers of two beyond the first overflow, not {}", o.above);
  std::vector<Format> formats;
  for (const NamedFormat& n : named_formats())
    if (n.common && n.format.has_zero) formats.push_back(n.format);
  for (const Format& f : o.also) {
    check_valid(f);
    if (!f.has_zero) throwf("what_if: {} has no zero: it holds scales, not values", to_string(f));
    if (std::find(formats.begin(), formats.end(), f) == formats.end()) formats.push_back(f);
  }
  if (o.headroom < 0 || o.headroom > 64) throwf("what_if: a headroom is 0 to 64 powers of two, not {}", o.headroom);
  // The ops that run here are not part of the program.
  const StageScope amp(chain().amp, nullptr), autograd(chain().autograd, nullptr), quiet(chain().observe, nullptr);
  const Tensor values = x.to(Device::cpu()).contiguous();
  const bool wide = x.dtype() == DType::f64;
  WhatIf w = wide ? survey<double>(values) : survey<float>(values);
  w.headroom = o.headroom;
  if (w.amax > 0) w.loss_scale = std::ldexp(1.0, fitting_exponent(65504, w.amax) - o.headroom);
  std::vector<Point> points;
  std::vector<std::size_t> ends;
  for (const Format& f : formats) {
    for (Point& p : points_of(f, w.amax, o)) points.push_back(std::move(p));
    ends.push_back(points.size());
  }
  const std::vector<Sums> sums =
      wide ? all_sums<double>(values, points, w.amax) : all_sums<float>(values, points, w.amax);
  for (std::size_t f = 0, p = 0; f < formats.size(); ++f) {
    std::vector<ScaleLoss> losses;
    for (; p < ends[f]; ++p) losses.push_back(loss_of(points[p], sums[p], sums.back().noise, w));
    w.formats.push_back(format_loss(formats[f], std::move(losses)));
  }
  for (const NamedQuantizer& q : o.blocks) {
    check_valid(q.quantizer);
    w.blocks.push_back(block_loss(q, values, w, unit_of(w.amax)));
  }
  return w;
}

std::string scale_text(double scale) {
  int exponent = 0;
  return scale != 1 && std::frexp(scale, &exponent) == 0.5 ? fmt::format("2^{}", exponent - 1)
                                                           : fmt::format("{:.4g}", scale);
}

std::string to_string(const WhatIf& w) {
  std::string text = fmt::format("{} elements: {} zero, {} NaN, {} Inf", w.elements, w.zeros, w.nan, w.inf);
  if (w.amax == 0) return text + "; nothing else\n";
  text += fmt::format(", the others from {:.4g} to {:.4g} in magnitude\n", w.amin, w.amax);
  std::size_t width = 9;
  for (const FormatLoss& f : w.formats) width = std::max(width, f.name.size());
  text += fmt::format("{:<{}} | {:^36} | {:^36} | max / amax\n", "", width, "as it is", "best power of two");
  static constexpr char kLine[] = "{:<{}} | {:>9} {:>9} {:>9} {:>6} | {:>6} {:>9} {:>9} {:>9} | {:>10} {:>7}\n";
  text += fmt::format(kLine, "format", width, "to zero", "subnormal", "too large", "SQNR", "scale", "to zero",
                      "too large", "SQNR", "scale", "SQNR");
  for (const auto& [name, format, as_it_is, best, amax, sweep] : w.formats)
    text += fmt::format(kLine, name, width, percent(as_it_is.underflow), percent(as_it_is.subnormal),
                        percent(as_it_is.overflow), decibels(as_it_is.sqnr_db), scale_text(best.scale),
                        percent(best.underflow), percent(best.overflow), decibels(best.sqnr_db), scale_text(amax.scale),
                        decibels(amax.sqnr_db));
  text +=
      fmt::format("\n{:<{}} | {:>9} {:>9} {:>6} {:>8}\n", "blocks", width, "to zero", "too large", "SQNR", "median");
  for (const BlockLoss& b : w.blocks)
    text += fmt::format("{:<{}} | {:>9} {:>9} {:>6} {:>8}\n", b.name, width, percent(b.loss.underflow),
                        percent(b.loss.overflow), decibels(b.loss.sqnr_db), percent(b.loss.median_error));
  for (const FormatLoss& f : w.formats)
    for (const auto& [criterion, name] : {std::pair(Criterion::kept, "kept"), {Criterion::median, "median"}})
      if (const ScaleLoss& l = f.best_by(criterion); l.scale != f.best.scale)
        text += fmt::format("{:<{}} | best by {:<6}: {:>6} {:>6} {:>8}\n", f.name, width, name, scale_text(l.scale),
                            percent(l.kept()), percent(l.median_error));
  return text +
         fmt::format(
             "SQNR in dB: 10 log10(sum x^2 / sum (x - q(x))^2). Shares are of the finite elements that are not zero.\n"
             "kept: neither vanishes nor overflows; median: of |x - q(x)| / |x|. Outliers decide SQNR alone.\n"
             "As gradients in f16: loss scale {} = 2^(floor(log2(65504 / {:.4g})) - {})\n",
             scale_text(w.loss_scale), w.amax, w.headroom);
}

std::string to_string(const FormatLoss& loss) {
  static constexpr char kLine[] = "{:>8} {:>9} {:>9} {:>9} {:>7}{}\n";
  std::string text = loss.name + "\n";
  text += fmt::format(kLine, "scale", "to zero", "subnormal", "too large", "SQNR", "");
  for (const ScaleLoss& l : loss.sweep)
    text += fmt::format(kLine, scale_text(l.scale), percent(l.underflow), percent(l.subnormal), percent(l.overflow),
                        decibels(l.sqnr_db), l.scale == loss.best.scale ? "  best" : "");
  return text;
}

}  // namespace gradual
