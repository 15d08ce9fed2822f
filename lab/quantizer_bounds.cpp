#include "quantizer_bounds.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/formats/format_table.h"
#include "../core/ops/ops.h"
#include "../core/quantize/block_scales.h"
#include "../core/quantize/quantize_part.h"
#include "../core/quantize/quantizer_kernels.h"
#include "../core/support/throwf.h"

namespace gradual::lab {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kOfF64 = 0x1p-50;  // what sums and differences of doubles lose

// Two numbers, between which another one lies.
struct Ends {
  double low = 0;
  double high = 0;

  void include(double x) {
    low = std::min(low, x);
    high = std::max(high, x);
  }
};

// --- elements and the groups that have one scale ---------------------------------------------------------------------

// A tensor as a quantizer sees it: rows along the axis, which is last.
struct Layout {
  Shape sizes;
  int axis = 0;
  std::int64_t rows = 1;
  std::int64_t k = 1;
  std::int64_t group_rows = 1;
  std::int64_t group_columns = 1;

  Layout(const Shape& of, const RecordedQuantizer& call) : sizes(of) {
    if (!sizes.empty()) axis = call.axis < 0 ? call.axis + sizes.size() : call.axis;
    const std::int64_t elements = numel(sizes);
    if (!sizes.empty()) k = sizes[axis];
    rows = k == 0 ? 0 : elements / k;
    group_rows = std::max<std::int64_t>(1, rows);
    group_columns = std::max<std::int64_t>(1, k);
    const Scaling& scaling = call.quantizer.scaling;
    if (unit_of(scaling) == ScaleUnit::row) group_rows = 1;
    if (unit_of(scaling) != ScaleUnit::block) return;
    group_columns = block_size(scaling);
    group_rows = has_tiles(scaling) ? group_columns : 1;
  }

  std::int64_t columns() const { return (k + group_columns - 1) / group_columns; }
  std::size_t groups() const { return static_cast<std::size_t>((rows + group_rows - 1) / group_rows * columns()); }
  std::size_t group_of(std::size_t element) const {
    const auto at = static_cast<std::int64_t>(element);
    return static_cast<std::size_t>(at / k / group_rows * columns() + at % k / group_columns);
  }

  std::vector<double> in_order(const Tensor& t) const {
    Shape order;
    for (int d = 0; d < sizes.size(); ++d)
      if (d != axis) order.push_back(d);
    if (!sizes.empty()) order.push_back(axis);
    const Tensor rows_of = contiguous(sizes.empty() ? t : permute(t, order));
    const double* const from = rows_of.data<double>();
    return {from, from + rows_of.numel()};
  }
  Tensor as_tensor(const std::vector<double>& values) const {
    const Tensor matrix = from_data(values, {rows, k}, {.dtype = DType::f64});
    return contiguous(detail::with_axis_last(matrix, sizes, axis));
  }
};

// The numbers of f32 between x - e and x + e.
Ends ends_of(double x, double e) {
  if (e == 0) return {x, x};
  if (!std::isfinite(e)) return {-kInfinity, kInfinity};
  const double wide = e + kOfF64 * (std::abs(x) + e);
  auto low = static_cast<float>(x - wide);
  auto high = static_cast<float>(x + wide);
  if (low < x - wide) low = std::nextafter(low, std::numeric_limits<float>::infinity());
  if (high > x + wide) high = std::nextafter(high, -std::numeric_limits<float>::infinity());
  return {std::min<double>(low, x), std::max<double>(high, x)};
}

// --- scales ----------------------------------------------------------------------------------------------------------

// Where a group's scale lies: the factor of its elements, its inverse and its zero point.
struct ScaleEnds {
  Ends forward{1, 1};
  Ends inverse{1, 1};
  Ends zero{0, 0};

  static ScaleEnds of(const detail::Scale& a, const detail::Scale& b) {
    ScaleEnds s{{a.forward, a.forward}, {a.inverse, a.inverse}, {a.zero, a.zero}};
    s.include(b);
    return s;
  }
  void include(const detail::Scale& s) {
    forward.include(s.forward);
    inverse.include(s.inverse);
    zero.include(s.zero);
  }
};

bool is_power(const Ends& x) {
  int exponent = 0;
  return std::frexp(x.low, &exponent) == 0.5 && std::frexp(x.high, &exponent) == 0.5;
}

// A scale that is a power of two is one of a few: each on its own says more than both ends.
constexpr int kMostPowers = 4;
std::vector<ScaleEnds> each_power(const ScaleEnds& s, bool powers) {
  const bool inverses = s.forward.low * s.inverse.high == 1 && s.forward.high * s.inverse.low == 1;
  if (!powers || !inverses || !is_power(s.inverse) || s.inverse.high > std::ldexp(s.inverse.low, kMostPowers - 1))
    return {s};
  std::vector<ScaleEnds> all;
  for (double inverse = s.inverse.low; inverse <= s.inverse.high; inverse *= 2)
    all.push_back({{1 / inverse, 1 / inverse}, {inverse, inverse}, {0, 0}});
  return all;
}

// What a group's elements say of its scale.
struct Extent {
  Ends amax{0, 0};
  Ends lowest{0, 0};  // of zero and the elements
  Ends highest{0, 0};
  bool open = false;  // an element may be anything

  void add(const Ends& x) {
    open = open || !std::isfinite(x.low) || !std::isfinite(x.high);
    const double least = x.low <= 0 && x.high >= 0 ? 0 : std::min(std::abs(x.low), std::abs(x.high));
    amax.low = std::max(amax.low, least);
    amax.high = std::max({amax.high, std::abs(x.low), std::abs(x.high)});
    lowest = {std::min(lowest.low, x.low), std::min(lowest.high, x.high)};
    highest = {std::max(highest.low, x.low), std::max(highest.high, x.high)};
  }
  // An amax of 0 has a scale of its own. All elements are 0 then, and so are the results, under every scale.
  double least_amax() const {
    constexpr double kLeast = 0x1p-149;
    return amax.low == 0 && amax.high > 0 ? kLeast : amax.low;
  }
};

class Scales {
 public:
  Scales(const RecordedQuantizer& call, const Extent& whole)
      : scaling_(call.quantizer.scaling), spec_(detail::scale_spec(call.quantizer)) {
    if (!spec_.two_levels) return;
    const detail::Scale low = detail::nvfp4_global(whole.least_amax(), spec_);
    const detail::Scale high = detail::nvfp4_global(whole.amax.high, spec_);
    of_tensor_ = ScaleEnds::of(low, high);
    // torchao's scale is 1 where a smaller one has no inverse in f32.
    const auto replaced = [&](const detail::Scale& by, double amax) {
      return spec_.oracle == ScaleOracle::torchao && by.inverse == 1 && amax < 1;
    };
    if (replaced(low, whole.least_amax()) && !replaced(high, whole.amax.high)) of_tensor_.include({FLT_MAX, 0x1p-128F});
  }

  // Of NVFP4's tensor; 1 otherwise.
  const ScaleEnds& of_tensor() const { return of_tensor_; }

  std::vector<ScaleEnds> of_group(const Extent& x) const {
    if (const auto* const fixed = std::get_if<FixedScale>(&scaling_)) {
      const detail::Scale s = detail::inverted(static_cast<float>(fixed->value));
      return {ScaleEnds::of(s, s)};
    }
    if (is_any<NoScale>(scaling_)) return {ScaleEnds()};
    if (spec_.zero_point) return {of_range(x)};
    if (spec_.two_levels) return {under_tensor(x)};
    const bool of_tensor = per_tensor(scaling_);
    const auto at = [&](double amax) {
      return of_tensor ? detail::current_scale(amax, spec_) : detail::scale_of(amax, spec_);
    };
    const bool powers = spec_.power_of_two || spec_.form == detail::ScaleForm::power;
    const detail::Scale low = at(x.least_amax());
    const detail::Scale high = at(x.amax.high);
    ScaleEnds s = ScaleEnds::of(low, high);
    if (low.inverse != high.inverse) include_largest_factor(low, s);
    return each_power(s, powers);
  }

 private:
  // Factors fall where scales grow, but for the smallest scale, whose factor may be a small one: 0 if the scale is 0,
  // another one by torchao's rules for 2^-127. The next scale has the largest factor then.
  void include_largest_factor(const detail::Scale& smallest, ScaleEnds& s) const {
    const bool coded = spec_.form == detail::ScaleForm::coded;
    if (coded && smallest.inverse == 0) s.forward.include(std::min<double>(FLT_MAX, 1 / least_stored()));
    const bool torchao = spec_.e8m0 && spec_.oracle == ScaleOracle::torchao;
    if (torchao && smallest.inverse == 0x1p-127F) s.forward.include(0x1p126);
  }

  // The zero point is least - round(low / scale), which grows with either end of the range but for errors of f32.
  ScaleEnds of_range(const Extent& x) const {
    const auto at = [&](double low, double high) {
      detail::Range range;
      range.low = low;
      range.high = high;
      return range.scale(spec_);
    };
    ScaleEnds s = ScaleEnds::of(at(x.lowest.low, x.highest.low), at(x.lowest.low, x.highest.high));
    s.include(at(x.lowest.high, x.highest.low));
    s.include(at(x.lowest.high, x.highest.high));
    const bool moves = x.lowest.low != x.lowest.high || x.highest.low != x.highest.high;
    const bool near = near_tie(x.lowest.low, x.highest.low) || near_tie(x.lowest.low, x.highest.high) ||
                      near_tie(x.lowest.high, x.highest.low) || near_tie(x.lowest.high, x.highest.high);
    if (moves && near) s.zero = {std::max(s.zero.low - 1, spec_.least), std::min(s.zero.high + 1, spec_.most)};
    return s;
  }
  // Whether the roundings of the range, the scale and their quotient to f32, here and between the ends, may decide to
  // which integer the quotient is rounded.
  bool near_tie(double low, double high) const {
    constexpr double kOfQuotient = 8 * 0x1p-24;
    detail::Range range;
    range.low = low;
    range.high = high;
    const double steps = low / static_cast<double>(range.scale(spec_).inverse);
    return std::abs(steps - std::floor(steps) - 0.5) < kOfQuotient * std::abs(steps);
  }

  // The block's scale, which is stored in few bits, grows with its amax and with the tensor's factor.
  ScaleEnds under_tensor(const Extent& x) const {
    const auto stored = [&](double amax, double factor) {
      detail::ScaleSpec spec = spec_;
      detail::set_global(spec, {static_cast<float>(factor),
                                static_cast<float>(factor == of_tensor_.forward.low ? of_tensor_.inverse.high
                                                                                    : of_tensor_.inverse.low)});
      return detail::scale_of(amax, spec);
    };
    const detail::Scale low = stored(x.least_amax(), of_tensor_.forward.low);
    const detail::Scale high = stored(x.amax.high, of_tensor_.forward.high);
    ScaleEnds s = ScaleEnds::of(low, high);
    if (low.inverse == high.inverse) {
      s.include(stored(x.least_amax(), of_tensor_.forward.high));
      s.include(stored(x.amax.high, of_tensor_.forward.low));
      return s;
    }
    // A stored 0 has the factor 0, which is no end of the others. 1 / stored is at most that of the smallest number.
    const double least = low.inverse > 0 ? low.inverse : least_stored();
    s.forward = {std::min<double>(low.forward, of_tensor_.forward.low / high.inverse * (1 - kOfF32)),
                 of_tensor_.forward.high / least * (1 + kOfF32)};
    return s;
  }
  double least_stored() const {
    const auto* const coded = std::get_if<CodedBlocks>(&scaling_);
    const Format& f = coded ? coded->scale_format : std::get<Nvfp4Blocks>(scaling_).scale_format;
    return f.min_positive();
  }

  static constexpr double kOfF32 = 0x1p-22;
  const Scaling& scaling_;
  detail::ScaleSpec spec_;
  ScaleEnds of_tensor_;
};

// --- results ---------------------------------------------------------------------------------------------------------

// The results of one end of all elements, low or high, under the scale that each has in one pass.
class RoundedEnd {
 public:
  RoundedEnd(const RecordedQuantizer& call, bool low) : call_(call), low_(low) {}

  void add(double x, const ScaleEnds& s) {
    // The smallest result is that of the smallest code, under the larger scale if it is negative.
    const double by = (x >= 0) == low_ ? s.forward.low : s.forward.high;
    const bool rounds = product_of(call_.quantizer.scaling) == ScaledProduct::rounded;
    const double product = x * by;
    products_.push_back(rounds ? static_cast<double>(static_cast<float>(product)) : product);
  }
  void round() {
    const Quantizer& q = call_.quantizer;
    const Rounder rounder{detail::rounded_format(q), q.rounding, q.overflow, call_.circumstances.key};
    rounder.round(products_.data(), products_.data(), std::ssize(products_), call_.circumstances.first_element);
  }
  // The code's value less the zero point, times the inverse scale if that is not apart.
  double result(std::size_t i, const ScaleEnds& s, const Ends& inverse) const {
    double code = products_[i];
    if (has_zero_points(call_.quantizer.scaling)) {
      const Format& f = call_.quantizer.format;
      const double zero = low_ ? s.zero.high : s.zero.low;
      code = std::clamp(code, f.min() - zero, f.max() - zero);
    }
    const double times = (code >= 0) == low_ ? inverse.low : inverse.high;
    return static_cast<double>(static_cast<float>(code * times));
  }

 private:
  const RecordedQuantizer& call_;
  bool low_;
  std::vector<double> products_;
};

double apart(const Ends& ends, double y) {
  if (std::isnan(y)) return std::isnan(ends.low) && std::isnan(ends.high) ? 0 : kInfinity;
  if (std::isnan(ends.low) || std::isnan(ends.high)) return kInfinity;
  const auto from_y = [&](double end) { return end == y ? 0 : std::abs(end - y); };
  return std::max(from_y(ends.low), from_y(ends.high));
}

class QuantizerError {
 public:
  QuantizerError(const RecordedOp& op, const Tensor& x, const Tensor& error)
      : op_(op), call_(*op.quantizer), layout_(x.sizes(), call_), extents_(layout_.groups()) {
    const std::vector<double> numbers = layout_.in_order(x);
    const std::vector<double> errors = layout_.in_order(error);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      ends_.push_back(ends_of(numbers[i], errors[i]));
      extents_[layout_.group_of(i)].add(ends_[i]);
      whole_.add(ends_[i]);
    }
    const Scales scales(call_, whole_);
    of_tensor_ = scales.of_tensor();
    for (const Extent& extent : extents_) scales_.push_back(scales.of_group(extent));
  }

  Tensor of_values(const Tensor& y) const {
    std::vector<double> errors = layout_.in_order(y);
    const std::vector<Ends> results = results_between();
    for (std::size_t i = 0; i < errors.size(); ++i) errors[i] = is_open(i) ? kInfinity : apart(results[i], errors[i]);
    return layout_.as_tensor(errors);
  }

  Tensor of_scale(const Tensor& y) const {
    const Tensor in_order = contiguous(y);
    std::vector<double> errors(static_cast<std::size_t>(y.numel()));
    for (std::size_t g = 0; g < errors.size(); ++g) {
      const bool open = !is_fixed() && (errors.size() == 1 ? whole_.open : extents_[g].open);
      const Ends ends = unit_of(call_.quantizer.scaling) == ScaleUnit::block ? of_tensor_.inverse : inverse_of(g);
      errors[g] = open ? kInfinity : apart(ends, in_order.data<double>()[g]);
    }
    return from_data(errors, y.sizes(), {.dtype = DType::f64});
  }

 private:
  bool is_fixed() const { return is_any<NoScale, FixedScale>(call_.quantizer.scaling); }
  // An element may be anything, or its scale.
  bool is_open(std::size_t element) const {
    const Ends& ends = ends_[element];
    if (is_fixed()) return !std::isfinite(ends.low) || !std::isfinite(ends.high);
    return extents_[layout_.group_of(element)].open || (has_two_levels(call_.quantizer.scaling) && whole_.open);
  }
  Ends inverse_of(std::size_t group) const {
    Ends all = scales_[group].front().inverse;
    all.include(scales_[group].back().inverse.high);
    return all;
  }
  // By which inverse scales the results of a group are multiplied here.
  Ends factor_of(const ScaleEnds& s) const {
    const bool of_blocks = unit_of(call_.quantizer.scaling) == ScaleUnit::block;
    const bool apart = call_.circumstances.scale_apart && op_.outputs[1].defined();
    if (apart) return of_blocks ? s.inverse : Ends{1, 1};
    if (!has_two_levels(call_.quantizer.scaling)) return s.inverse;
    // The product with both is rounded once, after it is exact in f64 or nearly so.
    return {s.inverse.low * of_tensor_.inverse.low * (1 - kOfF64),
            s.inverse.high * of_tensor_.inverse.high * (1 + kOfF64)};
  }

  std::vector<Ends> results_between() const {
    std::size_t passes = 1;
    for (const auto& candidates : scales_) passes = std::max(passes, candidates.size());
    std::vector<Ends> results(ends_.size(), Ends{kInfinity, -kInfinity});
    for (std::size_t pass = 0; pass < passes; ++pass) {
      RoundedEnd low(call_, true);
      RoundedEnd high(call_, false);
      const auto scale = [&](std::size_t i) -> const ScaleEnds& {
        const auto& candidates = scales_[layout_.group_of(i)];
        return candidates[std::min(pass, candidates.size() - 1)];
      };
      for (std::size_t i = 0; i < ends_.size(); ++i) {
        low.add(is_open(i) ? 0 : ends_[i].low, scale(i));
        high.add(is_open(i) ? 0 : ends_[i].high, scale(i));
      }
      low.round();
      high.round();
      for (std::size_t i = 0; i < ends_.size(); ++i) {
        const Ends factor = factor_of(scale(i));
        const double least = low.result(i, scale(i), factor);
        const double most = high.result(i, scale(i), factor);
        results[i].low = std::isnan(least) ? least : std::min(results[i].low, least);
        results[i].high = std::isnan(most) ? most : std::max(results[i].high, most);
      }
    }
    return results;
  }

  const RecordedOp& op_;
  const RecordedQuantizer& call_;
  Layout layout_;
  std::vector<Ends> ends_;
  Extent whole_;
  std::vector<Extent> extents_;
  ScaleEnds of_tensor_;
  std::vector<std::vector<ScaleEnds>> scales_;  // of each group: one, or each power of two that it may be
};

// Why a scaling has no bounds; empty: it has.
std::string_view unbounded(const Quantizer& q) {
  if (is_any<EdenBlocks>(q.scaling) || has_random_scales(q.scaling)) return "scales that are rounded at random";
  if (is_any<DoubleBlocks>(q.scaling)) return "scales under those of outer blocks";
  if (is_any<LearnedScale>(q.scaling)) return "a learned scale";
  if (is_any<PowerParts, FloatParts, CodedParts>(q.scaling)) return "scales that parts of a block double";
  const auto* const coded = std::get_if<CodedBlocks>(&q.scaling);
  const auto* const two_levels = std::get_if<Nvfp4Blocks>(&q.scaling);
  const auto* const power = std::get_if<PowerBlocks>(&q.scaling);
  const bool nearest = (!coded || coded->rule == CodedRule::nearest) &&
                       (!two_levels || two_levels->rule == CodedRule::nearest) &&
                       (!power || power->rule != ScaleRule::least_squares);
  if (!nearest) return "scales that are searched for, or not rounded to nearest";
  return q.gradient == QuantizerGradient::straight ? "" : "a gradient that follows from its operand";
}

}  // namespace

void check_quantizer(const RecordedOp& op) {
  const RecordedQuantizer& call = *op.quantizer;
  std::string_view why = unbounded(call.quantizer);
  if (call.circumstances.amax_of_more) why = "a scale from the amax of more than what is rounded";
  if (op.inputs[0].dtype == DType::f64) why = "an operand of f64";
  if (why.empty()) return;
  throwf(
      "tolerance: the quantizer to {} in '{}' has {}, for which there are no bounds; fixed scales have bounds, and "
      "scales from the amax or the range of a tensor, a row or a block",
      describe(call.quantizer), op.module, why);
}

std::array<Tensor, kMaxOutputs> run_quantizer(const RecordedOp& op, const Tensor& x) {
  const RecordedQuantizer& call = *op.quantizer;
  const Tensor source = cast(x, op.inputs[0].dtype);
  const QuantizeOptions options{.axis = call.axis, .key = call.circumstances.key, .stats = {}};
  if (!call.circumstances.scale_apart)
    return {cast(fake_quantize(source, call.quantizer, options), DType::f64), Tensor(), Tensor()};
  const QuantizedOperand rounded =
      quantize_part(source, call.quantizer, options, {.first_element = call.circumstances.first_element});
  Tensor values = cast(rounded.values, DType::f64);
  const Tensor scale = rounded.scale.defined() ? cast(rounded.scale, DType::f64) : full({}, 1, {.dtype = DType::f64});
  if (!op.outputs[1].defined()) return {cast(cast(mul(values, scale), DType::f32), DType::f64), Tensor(), Tensor()};
  return {values, contiguous(scale.expand(op.outputs[1].sizes)).clone(), Tensor()};
}

std::array<Tensor, kMaxOutputs> quantizer_error(const RecordedOp& op, const Tensor& x, const Tensor& error,
                                                const std::array<Tensor, kMaxOutputs>& y) {
  if (x.numel() == 0) return {};
  const QuantizerError found(op, x, error);
  return {found.of_values(y[0]), y[1].defined() ? found.of_scale(y[1]) : Tensor(), Tensor()};
}

}  // namespace gradual::lab
