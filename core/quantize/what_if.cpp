#include "what_if.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <limits>
#include <numeric>

#include "../ops/dispatch.h"
#include "../ops/ops.h"
#include "../support/message_text.h"
#include "../support/parallel.h"
#include "../support/throwf.h"
#include "block_scales.h"

namespace gradual {
namespace {

// One way to round the whole tensor. Rounding x times a power of two to a format equals rounding x to that format with
// a shifted bias; this needs no multiplication, which could round too.
struct Point {
  Format format;
  double scale = 1;
  bool multiply = false;  // by `scale`, which is no power of two, or for a format without a bias
};

// What is rounded: contiguous, f32 or f64, with zeros for what is not finite.
struct Source {
  Tensor x;
  double unit = 1;                        // squares of doubles times this one's stay within range
  double signal = 0;                      // sum (x * unit)^2
  std::vector<std::int64_t> sample = {};  // at most 4096 elements that are not zero, evenly spaced
};

// The largest k with amax * 2^k <= max.
int fitting_exponent(double max, double amax) {
  const int k = std::ilogb(max) - std::ilogb(amax);
  return k - (std::ldexp(amax, k) > max ? 1 : 0);
}

// sum ((x - q * back) * unit)^2. Eight sums let the loop vectorise with a fixed order of additions.
template <class T>
double noise_of(const Source& s, const Tensor& rounded, double back, std::int64_t begin, std::int64_t end) {
  const T* const x = s.x.data<T>() + begin;
  const T* const q = rounded.data<T>() + begin;
  const std::int64_t n = end - begin;
  double sums[8] = {};
  const auto add = [&](std::int64_t i, double& sum) {
    const double d = (static_cast<double>(x[i]) - static_cast<double>(q[i]) * back) * s.unit;
    sum += d * d;
  };
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int k = 0; k < 8; ++k) add(i + k, sums[k]);
  for (; i < n; ++i) add(i, sums[0]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// The same for all of x, with one sum a chunk, so that the bits are the same for any number of threads.
double noise_of(const Source& s, const Tensor& q, double back) {
  const std::int64_t n = s.x.numel();
  const std::int64_t per = std::max<std::int64_t>(32 * 1024, (n + 63) / 64);
  std::vector<double> parts(static_cast<std::size_t>((n + per - 1) / per));
  parallel_for(n, per, [&](std::int64_t begin, std::int64_t end) {
    parts[static_cast<std::size_t>(begin / per)] =
        (s.x.dtype() == DType::f64 ? noise_of<double> : noise_of<float>)(s, q, back, begin, end);
  });
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

double at(const Tensor& t, std::int64_t i) {
  return t.dtype() == DType::f64 ? t.data<double>()[i] : static_cast<double>(t.data<float>()[i]);
}

WhatIf survey(const Tensor& x) {
  WhatIf w{.elements = x.numel()};
  const Tensor size = abs(x);
  const Tensor kept = logical_and(gt(size, 0), lt(size, HUGE_VAL));
  const auto count = [](const Tensor& t) { return sum(t).item<std::int64_t>(); };
  w.zeros = count(eq(x, 0));
  w.nan = count(ne(x, x));
  w.inf = count(eq(size, HUGE_VAL));
  if (count(kept) == 0) return w;
  w.amax = max(where(kept, size, 0.0)).item();
  w.amin = min(where(kept, size, HUGE_VAL)).item();
  return w;
}

Source source_of(const Tensor& x, const WhatIf& w) {
  Source s{where(lt(abs(x), HUGE_VAL), x, 0.0).contiguous()};
  if (w.amax > 0) s.unit = std::ldexp(1.0, -std::max(std::ilogb(w.amax), -1000));
  s.signal = noise_of(s, zeros_like(s.x), 1);
  const std::int64_t step = std::max<std::int64_t>(1, (x.numel() + 4095) / 4096);
  for (std::int64_t i = 0; i < x.numel(); i += step)
    if (at(s.x, i) != 0) s.sample.push_back(i);
  return s;
}

// The scales of a format: the sweep by rising powers of two, then max / amax.
std::vector<Point> points_of(const Format& f, double amax, int above) {
  if (amax == 0) return {{f}, {f}};
  const int fit = fitting_exponent(f.max(), amax);
  std::vector<Point> points;
  for (int k = std::min(0, fit); k <= std::max(0, fit + above); ++k) {
    if (k < f.max_exponent() - 127 || k > 127 - f.bias || (k != 0 && k > fit + above)) continue;
    points.push_back({.format = f, .scale = std::ldexp(1.0, k), .multiply = f.table != nullptr});
    if (!f.table) points.back().format.bias += k;
  }
  const Quantizer by_amax{.format = f, .scaling = TensorScale{}};
  const float scale = detail::current_scale(amax, detail::scale_spec(by_amax)).forward;
  points.push_back({.format = f, .scale = scale, .multiply = true});
  return points;
}

// The loss of the source if it became q * back.
ScaleLoss loss_of(const Source& s, const Tensor& q, double back, const CastCounts& counts, const WhatIf& w) {
  const std::int64_t left_out = w.zeros + w.nan + w.inf;
  const auto count = static_cast<double>(std::max<std::int64_t>(1, w.elements - left_out));
  ScaleLoss loss;
  // Elements that the product with the scale made zero are lost too.
  loss.underflow = static_cast<double>(counts.underflow + counts.zeros - static_cast<std::uint64_t>(left_out)) / count;
  loss.subnormal = static_cast<double>(counts.subnormal) / count;
  loss.overflow = static_cast<double>(counts.overflow) / count;
  const double noise = noise_of(s, q, back);
  loss.sqnr_db = noise == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(s.signal / noise);
  std::vector<double> errors;
  for (const std::int64_t i : s.sample) errors.push_back(std::abs((at(s.x, i) - at(q, i) * back) / at(s.x, i)));
  if (errors.empty()) return loss;
  const auto middle = errors.begin() + static_cast<std::ptrdiff_t>(errors.size() / 2);
  std::ranges::nth_element(errors, middle);
  loss.median_error = *middle;
  return loss;
}

std::string percent(double share) { return fmt::format("{:.3g}%", 100 * share); }
std::string decibels(double db) { return std::isinf(db) && db > 0 ? "exact" : fmt::format("{:.1f}", db); }

}  // namespace

std::vector<NamedQuantizer> block_quantizers() {
  const auto mx = [](const char* element, int block) {
    return Quantizer{.format = format(element), .scaling = PowerBlocks{.block = block}};
  };
  const Quantizer nvfp4{.format = format("e2m1"), .scaling = Nvfp4Blocks{.block = 16}};
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
  const Scoped<Chain> bare(chain(), {});
  const Tensor values = x.to(Device::cpu()).to(x.dtype() == DType::f64 ? DType::f64 : DType::f32);
  WhatIf w = survey(values);
  w.headroom = o.headroom;
  if (w.amax > 0) w.loss_scale = std::ldexp(1.0, fitting_exponent(65504, w.amax) - o.headroom);
  Source s = source_of(values, w);
  for (const Format& f : formats) {
    FormatLoss& of = w.formats.emplace_back(FormatLoss{.name = to_string(f), .format = f});
    for (const Point& p : points_of(f, w.amax, o.above)) {
      CastCounts counts;
      const Tensor scaled = p.multiply ? s.x.to(DType::f64) * p.scale : s.x;
      const Tensor q =
          fake_quantize(scaled, p.format, o.rounding, Overflow::saturate, {}, {.counts = &counts}).to(s.x.dtype());
      of.sweep.push_back(loss_of(s, q, p.multiply ? 1 / p.scale : 1, counts, w));
      of.sweep.back().scale = p.scale;
    }
    of.amax = of.sweep.back();
    of.sweep.pop_back();
    of.unscaled = *std::ranges::find(of.sweep, 1, &ScaleLoss::scale);
    of.best = of.best_by(Criterion::sqnr);
  }
  s.x = s.x.to(DType::f64);
  for (const NamedQuantizer& q : o.blocks) {
    CastCounts counts;
    const Tensor rounded = fake_quantize(s.x, q.quantizer, {.stats = {.counts = &counts}}).to(DType::f64);
    w.blocks.push_back({q, loss_of(s, rounded, 1, counts, w)});
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

}  // namespace gradual
