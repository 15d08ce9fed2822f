#include "block_xray.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <ranges>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "../core/ops/ops.h"
#include "../core/quantize/quantizer_call.h"
#include "../core/quantize/quantizer_kernels.h"
#include "../core/support/throwf.h"
#include "csv_text.h"

namespace gradual::inspect {
namespace {

using detail::Scale, detail::ScaleSpec;

constexpr std::int64_t kMostBlocks = 1024;  // that are kept one by one
constexpr double kInf = std::numeric_limits<double>::infinity();

// The tensor with the dim `axis` behind the others; a number is a vector of one element.
Tensor with_axis_last(const Tensor& x, int axis) {
  Tensor t = x.dim() == 0 ? x.detach().reshape({1}) : x.detach();
  for (int d = wrap_dim(axis, t.dim(), "xray"); d + 1 < t.dim(); ++d) t = t.transpose(d, d + 1);
  return t;
}

// The reverse.
Tensor with_axis_back(const Tensor& x, int axis) {
  Tensor t = x;
  const int dim = wrap_dim(axis, t.dim(), "xray");
  for (int d = t.dim() - 1; d > dim; --d) t = t.transpose(d, d - 1);
  return t;
}

// x as f32 (f64 for f64) [rows, k] on the CPU: k is the dim `axis`, rows are the other dims in order.
Tensor as_matrix(const Tensor& x, int axis) {
  const Tensor t = with_axis_last(x.to(Device::cpu()), axis);
  const std::int64_t k = t.sizes().back();
  return contiguous(x.dtype() == DType::f64 ? t : cast(t, DType::f32)).reshape({k ? t.numel() / k : 0, k});
}

// A rule for the scales, for one size of blocks. If there are several specs, each block takes the one with the smallest
// squared error.
struct Candidate {
  std::vector<ScaleSpec> specs;
  XrayRow row;
};

// `amax` is that of the tensor.
std::vector<Candidate> candidates_of(const Quantizer& q, int size, double amax) {
  const bool nvfp4 = has_two_levels(q.scaling);
  Quantizer edited = q;
  set_block(edited.scaling, size);
  std::vector<Candidate> all;
  const auto add = [&](std::string_view name) {
    ScaleSpec spec = detail::scale_spec(edited);
    if (has_two_levels(edited.scaling)) set_global(spec, detail::nvfp4_global(amax, spec));
    all.push_back({{spec}, {.rule = std::string(name), .block = size, .runs = edited == q}});
  };
  if (!rule_of(q.scaling)) {
    add(nvfp4 ? "nvfp4" : "f32");
    edited.scaling = PowerBlocks{.block = size, .square = has_tiles(q.scaling), .oracle = oracle_of(q.scaling)};
  }
  for (const ScaleRule rule : {ScaleRule::floor, ScaleRule::ceil, ScaleRule::rceil, ScaleRule::even}) {
    set_rule(edited.scaling, rule);
    add(to_string(rule));
  }
  if (!nvfp4) return all;
  // 256 instead of 448: a largest block that is scaled to 4 has the scale 256 * 6 / 4 = 384, which e4m3fn holds.
  ScaleSpec six = all.front().specs[0];
  six.global = six.global * 256 / 448;
  ScaleSpec four = six;
  four.most *= 2.0 / 3;
  all.push_back({{six, four}, {.rule = std::string(to_string(CodedRule::four_over_six)), .block = size}});
  return all;
}

// Adds an element that rounding takes `from` one number `to` another. limit: the largest magnitude that is not clipped.
void add_element(XrayRow& row, double from, double to, double limit) {
  row.elements += from != 0;
  row.made_zero += from != 0 && to == 0;
  row.clipped += std::abs(from) > limit;
  row.squares += from * from;
  const double error = to - from;
  if (!std::isfinite(error)) return;  // it does not add up
  row.error_sum += error;
  row.along += error * from;
  row.along_squares += error * from * (error * from);
  row.zeroed_squares += error == -from ? from * from : 0;
}

// What a row has counted before a block.
struct Counted {
  std::int64_t clipped, elements;
  explicit Counted(const XrayRow& row) : clipped(row.clipped), elements(row.elements) {}
};

// Adds a block whose elements have been added to the row. error, best: the squared errors of the block as it is, and
// with its best power of two as its scale.
BlockXray::Block add_block(XrayRow& row, const Counted& before, double error, double best, double scale) {
  const std::int64_t clipped = row.clipped - before.clipped;
  row.best_error += best;
  row.error += error;
  ++row.blocks;
  row.clipped_blocks += clipped > 0;
  if (scale > 0) ++row.scales[std::ilogb(scale)];
  return {percent_of(clipped, row.elements - before.elements) / 100, error, best};
}

// A matrix as blocks (or tiles) of one size, which are rounded one by one. T: float or double.
template <class T> struct Blocks {
  const Tensor& m;
  const Quantizer& q;
  std::int64_t size;
  const T* x = m.data<T>();
  std::int64_t rows = m.size(0);
  std::int64_t k = m.size(1);
  std::int64_t height = has_tiles(q.scaling) ? size : 1;
  std::int64_t columns = (k + size - 1) / size;
  Rounder rounder{q.format, q.rounding, q.overflow};
  bool exact = product_of(q.scaling) == ScaledProduct::exact;
  std::vector<double> scaled = std::vector<double>(static_cast<std::size_t>(size));

  std::int64_t count() const { return (rows + height - 1) / height * columns; }

  // Calls f(first, n) for the contiguous parts of block b.
  template <class F> void parts(std::int64_t b, const F& f) const {
    const std::int64_t top = b / columns * height;
    const std::int64_t left = b % columns * size;
    for (std::int64_t r = top; r < std::min(top + height, rows); ++r) f(r * k + left, std::min(size, k - left));
  }

  T amax(std::int64_t b) const {
    T most = 0;
    parts(b, [&](std::int64_t first, std::int64_t n) {
      for (std::int64_t i = first; i < first + n; ++i) most = detail::larger_magnitude(x[i], most);
    });
    return most;
  }

  // The largest magnitude that is not clipped. A rounded scale may put the largest element an ulp or two above the
  // format's limit. That is not clipping.
  double limit(Scale scale, float last) const {
    const bool power = last == 1 && scale.inverse == detail::floor_power(scale.inverse);
    return q.format.max() * scale.inverse * last * (power ? 1 : 1 + 0x1p-20);
  }

  // As the quantizer: of a float, a double holds the exact product.
  double product(T value, float by) const {
    if (!exact) return value * by;
    return sizeof(T) == sizeof(double) ? detail::times_to_odd(static_cast<double>(value), by)
                                       : static_cast<double>(value) * by;
  }

  // The squared error of block b, whose codes are multiples of scale.inverse * last. Adds to the elementwise sums of a
  // row.
  double error(std::int64_t b, Scale scale, float last, XrayRow* row = nullptr) {
    const double limit = this->limit(scale, last);
    double sum = 0;
    parts(b, [&](std::int64_t first, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) scaled[static_cast<std::size_t>(i)] = product(x[first + i], scale.forward);
      rounder.round(scaled.data(), scaled.data(), n, first);
      for (std::int64_t i = 0; i < n; ++i) {
        const auto value = static_cast<float>(scaled[static_cast<std::size_t>(i)]);
        const double from = x[first + i];
        const double to = detail::unscaled(value, scale.inverse, last);
        sum += (to - from) * (to - from);
        if (row) add_element(*row, from, to, limit);
      }
    });
    return std::isnan(sum) ? kInf : sum;
  }

  // The smallest error of a block with a power of two as its scale. The first scale clips nothing. As long as half of a
  // scale clips nothing either, the half is no worse: it has all values of the larger scale. Smaller scales are tried
  // until the error of the clipped largest element alone exceeds the best.
  double best_error(std::int64_t b, T amax) {
    double best = kInf;
    for (int e = std::clamp(std::ilogb(amax) - q.format.max_exponent() + 1, -127, 127); e >= -127 && best > 0; --e) {
      const double clipped = std::max(0.0, amax - std::ldexp(q.format.max(), e));
      if (clipped * clipped >= best) break;
      best = std::min(best, error(b, detail::power_scale(e), 1));
    }
    return best;
  }

  // Adds block b, whose elements are finite and not all 0.
  BlockXray::Block add_to(Candidate& candidate, std::int64_t b, T amax, double best) {
    const float last = 1 / candidate.specs[0].global;
    Scale scale = detail::scale_of(amax, candidate.specs[0]);
    for (const ScaleSpec& spec : candidate.specs | std::views::drop(1))
      if (const Scale s = detail::scale_of(amax, spec); error(b, s, last) < error(b, scale, last)) scale = s;
    const Counted before(candidate.row);
    const double sum = error(b, scale, last, &candidate.row);
    return add_block(candidate.row, before, sum, best, scale.inverse);
  }
};

// Calls f(blocks) with the matrix as blocks of this size.
template <class F> void with_blocks(const Tensor& matrix, const Quantizer& q, std::int64_t size, const F& f) {
  if (matrix.dtype() == DType::f64) f(Blocks<double>{matrix, q, size});
  else f(Blocks<float>{matrix, q, size});
}

// True if the scaling tries several scales on a block's elements.
bool searches_scales(const Scaling& scaling) {
  return of_kind(
      scaling, false, [](const auto& kind) requires requires { kind.search(); } { return kind.search() != nullptr; });
}

// The rule of scales with a format of their own; none if they are others.
std::optional<CodedRule> coded_rule_of(const Scaling& scaling) {
  return of_kind(
      scaling, std::optional<CodedRule>(),
      [](const auto& kind) requires std::is_same_v<decltype(kind.rule), CodedRule> {
        return std::optional<CodedRule>(kind.rule);
      });
}

// Scales that do not follow from a block's amax alone: those of parts, coded, searched and random ones. The quantizer
// itself rounds the whole matrix with them.
bool wants_whole(const Quantizer& q) {
  if (is_any<PowerParts, FloatParts, CodedBlocks, CodedParts, EdenBlocks, DoubleBlocks>(q.scaling)) return true;
  return searches_scales(q.scaling) || coded_rule_of(q.scaling).value_or(CodedRule::nearest) != CodedRule::nearest;
}

bool is_allowed(const Quantizer& q) {
  try {
    check_valid(q);
  } catch (const Error&) { return false; }
  return true;
}

// The quantizer's own name for its scales, where they follow no rule for powers of two.
std::string own_rule(const Quantizer& q) {
  if (const auto rule = coded_rule_of(q.scaling); rule && *rule != CodedRule::nearest)
    return std::string(to_string(*rule));
  if (is_any<EdenBlocks, DoubleBlocks>(q.scaling)) return std::string(kind_name(q.scaling));
  if (has_two_levels(q.scaling)) return "nvfp4";
  return of_kind(
      q.scaling, std::string("f32"),
      [](const auto& kind) requires requires { kind.scale_format; } { return to_string(kind.scale_format); });
}

struct NamedQuantizer {
  std::string rule;
  Quantizer quantizer;
};

// This quantizer's scales for blocks of one size by each rule that they have. Empty if blocks of this size do not part.
std::vector<NamedQuantizer> rules_of_whole(const Quantizer& q, int size) {
  std::vector<NamedQuantizer> all;
  const auto add = [&](const Quantizer& edited, const std::string& name) {
    const bool known = std::ranges::find(all, edited, &NamedQuantizer::quantizer) != all.end();
    if (!known && is_allowed(edited)) all.push_back({name, edited});
  };
  Quantizer edited = q;
  set_block(edited.scaling, size);
  if (rule_of(q.scaling)) {
    for (const ScaleRule rule :
         {ScaleRule::floor, ScaleRule::ceil, ScaleRule::rceil, ScaleRule::even, ScaleRule::least_squares}) {
      set_rule(edited.scaling, rule);
      add(edited, std::string(to_string(rule)));
    }
    return all;
  }
  add(edited, own_rule(edited));
  // A kind without rules stays as it is, and is added once.
  for (const CodedRule rule : {CodedRule::nearest, CodedRule::four_over_six, CodedRule::least_squares}) {
    set_rule(edited.scaling, rule);
    add(edited, own_rule(edited));
  }
  return all;
}

// The scales under which MS-EDEN rounds elements, before it corrects them: f32 [rows, columns].
Tensor scales_before_correction(const Tensor& matrix, const Quantizer& q) {
  ScaleSpec spec = detail::scale_spec(q);
  set_global(spec, detail::nvfp4_global(absmax(matrix), spec));
  Tensor scales;
  with_blocks(matrix, q, block_size(q.scaling), [&](const auto& blocks) {
    scales = empty({blocks.rows, blocks.columns});
    for (std::int64_t b = 0; b < blocks.count(); ++b)
      scales.data<float>()[b] = detail::scale_of(blocks.amax(b), spec).inverse / spec.global;
  });
  return scales;
}

// A matrix as a quantizer rounds it, and the largest magnitude that is not clipped of each element.
struct Whole {
  Tensor values;  // f32
  Tensor scales;  // f32, of the innermost parts [tiles, columns]
  Tensor first;   // those under which elements were rounded, in the same sizes
  std::int64_t rows_of_scale, columns_of_scale;
  double most;

  Whole(const Tensor& matrix, const Quantizer& q) : most(q.format.max()) {
    const QuantizedTensor codes = quantize(matrix, q);
    values = codes.dequantize();
    scales = codes.scale_values();
    if (codes.global_scale.defined()) scales = mul(scales, codes.global_scale);
    rows_of_scale = codes.block_rows;
    columns_of_scale = codes.block_cols;
    first = is_any<EdenBlocks>(q.scaling) ? scales_before_correction(matrix, q) : scales;
  }
  double at(const Tensor& of, std::int64_t row, std::int64_t column) const {
    return of.data<float>()[row / rows_of_scale * of.size(1) + column / columns_of_scale];
  }
  double scale(std::int64_t row, std::int64_t column) const { return at(scales, row, column); }
  // A scale that is no power of two may put the largest element an ulp or two above the format's limit.
  double limit(std::int64_t row, std::int64_t column) const {
    const double by = at(first, row, column);
    int exponent = 0;
    const bool power = std::frexp(by, &exponent) == 0.5;
    return most * by * (power ? 1 : 1 + 0x1p-20);
  }
};

// Adds block b, whose elements are finite and not all 0.
template <class T>
BlockXray::Block add_whole(const Blocks<T>& blocks, const Whole& whole, std::int64_t b, double best, XrayRow& row) {
  const auto* values = whole.values.data<float>();
  const Counted before(row);
  double sum = 0;
  double largest_scale = 0;
  blocks.parts(b, [&](std::int64_t first, std::int64_t n) {
    for (std::int64_t i = first; i < first + n; ++i) {
      const double from = blocks.x[i];
      const double to = values[i];
      sum += (to - from) * (to - from);
      add_element(row, from, to, whole.limit(i / blocks.k, i % blocks.k));
      largest_scale = std::max(largest_scale, whole.scale(i / blocks.k, i % blocks.k));
    }
  });
  return add_block(row, before, std::isnan(sum) ? kInf : sum, best, largest_scale);
}

bool has_blocks(const Quantizer& q) { return unit_of(q.scaling) == ScaleUnit::block && !has_zero_points(q.scaling); }

}  // namespace

// With the errors e = y - x and the gain g = <e, x> / <x, x>, e = g x + rest, and rest is at right angles to x: of an
// element that becomes zero it is -(1 + g) x.
XrayRow::Parts XrayRow::parts() const {
  if (!(error > 0) || !std::isfinite(error)) return {};
  Parts parts;
  parts.scale = 100 * gain() * gain() * squares / error;
  parts.dead_zone = 100 * (1 + gain()) * (1 + gain()) * zeroed_squares / error;
  parts.grid = std::max(0.0, 100 - parts.scale - parts.dead_zone);
  return parts;
}

XrayRow& XrayRow::operator+=(const XrayRow& o) {
  blocks += o.blocks;
  zero_blocks += o.zero_blocks;
  nonfinite_blocks += o.nonfinite_blocks;
  clipped_blocks += o.clipped_blocks;
  elements += o.elements;
  clipped += o.clipped;
  made_zero += o.made_zero;
  squares += o.squares;
  error += o.error;
  best_error += o.best_error;
  error_sum += o.error_sum;
  along += o.along;
  along_squares += o.along_squares;
  zeroed_squares += o.zeroed_squares;
  for (const auto& [exponent, n] : o.scales) scales[exponent] += n;
  return *this;
}

const XrayRow& BlockXray::running() const {
  return rows.at(static_cast<std::size_t>(std::ranges::find_if(rows, &XrayRow::runs) - rows.begin()));
}

const XrayRow& BlockXray::of(std::string_view rule, int block) const {
  std::string known;
  for (const XrayRow& r : rows) {
    if (r.rule == rule && r.block == block) return r;
    known += fmt::format("{}{} {}", known.empty() ? "" : ", ", r.rule, r.block);
  }
  throwf("xray: no row for the rule '{}' and blocks of {}; there are {}", rule, block, known);
}

namespace {

// Keeps block b of the quantizer itself: all blocks of every n-th row of blocks, so that there are not too many.
template <class T> void keep(BlockXray& all, const Blocks<T>& blocks, std::int64_t b, const BlockXray::Block& block) {
  const std::int64_t n = blocks.count() / kMostBlocks + 1;
  if (b / blocks.columns % n == 0 && std::ssize(all.blocks) < kMostBlocks) all.blocks.push_back(block);
}

// Whether a block has an error: not one of zeros, nor with Inf or NaN.
bool is_measured(double amax) { return amax != 0 && std::isfinite(amax); }

// Counts a block that has none.
void add_unmeasured(XrayRow& row, double amax) {
  if (amax == 0) ++row.zero_blocks;
  else ++row.nonfinite_blocks;
}

// Adds all blocks to the rules' rows, and those of the quantizer itself to `all`, one by one.
template <class T> void measure(Blocks<T> blocks, std::vector<Candidate>& candidates, BlockXray& all) {
  if (blocks.size == block_size(blocks.q.scaling)) all.columns = blocks.columns;
  for (std::int64_t b = 0; b < blocks.count(); ++b) {
    const T amax = blocks.amax(b);
    const bool measured = is_measured(amax);
    const double best = measured ? blocks.best_error(b, amax) : 0;
    for (Candidate& candidate : candidates) {
      BlockXray::Block block;
      if (measured) block = blocks.add_to(candidate, b, amax, best);
      else add_unmeasured(candidate.row, amax);
      if (candidate.row.runs) keep(all, blocks, b, block);
    }
  }
}

// The same for a quantizer of wants_whole(), which rounds the matrix once for each rule.
template <class T> void measure_whole(Blocks<T> blocks, int size, bool others, BlockXray& all) {
  const Quantizer& q = blocks.q;
  if (blocks.size == block_size(q.scaling)) all.columns = blocks.columns;
  std::vector<double> best;
  std::vector<T> amaxes;
  for (std::int64_t b = 0; b < blocks.count(); ++b) {
    amaxes.push_back(blocks.amax(b));
    best.push_back(is_measured(amaxes.back()) ? blocks.best_error(b, amaxes.back()) : 0);
  }
  for (const NamedQuantizer& named : rules_of_whole(q, size)) {
    XrayRow row{.rule = named.rule, .block = size, .runs = named.quantizer == q};
    if (!others && !row.runs) continue;
    const Whole whole(blocks.m, named.quantizer);
    for (std::int64_t b = 0; b < blocks.count(); ++b) {
      const T amax = amaxes[static_cast<std::size_t>(b)];
      BlockXray::Block block;
      if (is_measured(amax)) block = add_whole(blocks, whole, b, best[static_cast<std::size_t>(b)], row);
      else add_unmeasured(row, amax);
      if (row.runs) keep(all, blocks, b, block);
    }
    all.rows.push_back(std::move(row));
  }
}

}  // namespace

BlockXray xray(const Tensor& x, const Quantizer& q, int axis, bool others) {
  check_valid(q);
  const bool changes = q.hadamard || q.center;
  if (!has_blocks(q) || changes)
    throwf("xray: the quantizer '{}' {}has no scales of blocks; allowed are the kinds block and nvfp4", describe(q),
           changes ? "transforms or centers, or " : "");
  if (!x.is_floating()) throwf("xray: takes a floating tensor, not {}", describe(x));
  const Unseen unseen;
  const Tensor matrix = as_matrix(x, axis);
  const double most = absmax(matrix);
  BlockXray all{.quantizer = describe(q)};
  std::set<int> sizes = {block_size(q.scaling)};
  if (others) sizes.insert({8, 16, 32, 64, 128});
  for (const int size : sizes) {
    if (wants_whole(q)) {
      with_blocks(matrix, q, size, [&](const auto& blocks) { measure_whole(blocks, size, others, all); });
      continue;
    }
    std::vector<Candidate> candidates = candidates_of(q, size, most);
    if (!others) std::erase_if(candidates, [](const Candidate& r) { return !r.row.runs; });
    with_blocks(matrix, q, size, [&](const auto& blocks) { measure(blocks, candidates, all); });
    for (Candidate& candidate : candidates) all.rows.push_back(std::move(candidate.row));
  }
  return all;
}

// Of each element, the largest magnitude that the scale of its block holds. limit_of(amax of a block) gives a function
// of the element's index. Blocks of zeros, Inf or NaN have no limit.
template <class T, class F> static Tensor limits_of(const Blocks<T>& blocks, const F& limit_of) {
  Tensor limits = full(blocks.m.sizes(), kInf, {.dtype = blocks.m.dtype()});
  T* limit = limits.data<T>();
  for (std::int64_t b = 0; b < blocks.count(); ++b) {
    const T amax = blocks.amax(b);
    if (!is_measured(amax)) continue;
    const auto of_element = limit_of(amax);
    blocks.parts(b, [&](std::int64_t first, std::int64_t n) {
      for (std::int64_t i = first; i < first + n; ++i) limit[i] = static_cast<T>(of_element(i));
    });
  }
  return limits;
}

Tensor beyond_range(const Tensor& x, const Quantizer& q, int axis, const Tensor& scaled) {
  const Unseen unseen;
  if (!has_blocks(q)) return gt(abs(scaled), q.format.max());
  const Tensor matrix = as_matrix(x, axis);
  const int size = block_size(q.scaling);
  Tensor limits;
  if (wants_whole(q)) {
    const Whole whole(matrix, q);
    with_blocks(matrix, q, size, [&](const auto& blocks) {
      const auto of_element = [&](std::int64_t i) { return whole.limit(i / blocks.k, i % blocks.k); };
      limits = limits_of(blocks, [&](auto) { return of_element; });
    });
  } else {
    ScaleSpec spec = detail::scale_spec(q);
    if (has_two_levels(q.scaling)) set_global(spec, detail::nvfp4_global(absmax(matrix), spec));
    with_blocks(matrix, q, size, [&](const auto& blocks) {
      limits = limits_of(blocks, [&](auto amax) {
        const double most = blocks.limit(detail::scale_of(amax, spec), 1 / spec.global);
        return [most](std::int64_t) { return most; };
      });
    });
  }
  const Tensor mask = gt(abs(matrix), limits).reshape(with_axis_last(x, axis).sizes());
  return with_axis_back(mask, axis).reshape(x.sizes()).to(x.device());
}

void XrayObserver::before(const OpCall& call, const CallRecord& record) {
  if (op_info(call.op).kind != OpKind::Contraction || !record.within || !record.within->replaces) return;
  for (auto& [to, site] : rounded_)
    for (const int input : {0, 1})
      if (to.shares_storage(call[input])) site.operand = operand_name(*record.within->replaces, input);
}

void XrayObserver::after(const OpCall& call, const Outputs&, const CallRecord&) {
  if (op_info(call.op).kind != OpKind::Custom) return;
  for (auto& [to, site] : std::exchange(rounded_, {})) add(std::move(site));
}

void XrayObserver::quantized(const QuantizerCall& call) {
  if (!call.quantizer || !has_blocks(*call.quantizer)) return;
  Site site{context().module, "", xray(call.from, *call.quantizer, call.axis, others_)};
  if (call.within && call.within->replaces) {
    rounded_.emplace_back(call.to, std::move(site));
    return;
  }
  if (!call.within && *context().backward_of) {
    site.operand = "backward";  // of an op that has no frame of its own there: attention
  } else if (!call.within) {
    site.layer = names_.of(call.from);
    site.operand = "kept";
  }
  add(std::move(site));
}

void XrayObserver::add(Site site) {
  const auto same = std::ranges::find_if(sites_, [&](const Site& s) {
    return s.layer == site.layer && s.operand == site.operand && s.xray.quantizer == site.xray.quantizer;
  });
  if (same == sites_.end()) return sites_.push_back(std::move(site));
  for (std::size_t i = 0; i < site.xray.rows.size(); ++i) same->xray.rows[i] += site.xray.rows[i];
}

static std::string parts_text(const XrayRow::Parts& p) {
  return fmt::format("{:.0f}, {:.0f}, {:.0f}%", p.scale, p.dead_zone, p.grid);
}

std::string XrayObserver::to_string(const LayerNames& name) const {
  std::string text =
      fmt::format("{:<14} {:<10} {:<12} {:>8} {:>8} {:>8} {:>7}  {:<18}  {:<14}  {:<36}  {:<46}  {}\n", "layer",
                  "operand", "runs", "clipped", "elements", "made 0", "regret", "size", "of the error",
                  "dB by rule, this size", "dB by size, this rule", "made 0 by size, this rule");
  for (const Site& s : sites_) {
    const XrayRow& own = s.xray.running();
    std::string rules;
    std::string sizes;
    std::string zeros;
    for (const XrayRow& r : s.xray.rows) {
      if (r.block == own.block) rules += fmt::format("{}{} {:.1f}", rules.empty() ? "" : ", ", r.rule, r.sqnr_db());
      if (r.rule != own.rule) continue;
      sizes += fmt::format("{}{}: {:.1f}", sizes.empty() ? "" : ", ", r.block, r.sqnr_db());
      zeros += fmt::format("{}{}: {:.3g}%", zeros.empty() ? "" : ", ", r.block, r.made_zero_percent());
    }
    text +=
        fmt::format("{:<14} {:<10} {:<12} {:>7.3g}% {:>7.3g}% {:>7.3g}% {:>7.3g}  {:<18}  {:<14}  {:<36}  {:<46}  {}\n",
                    name(s.layer), s.operand, fmt::format("{} {}", own.rule, own.block), own.clipped_blocks_percent(),
                    percent_of(own.clipped, own.elements), own.made_zero_percent(), own.regret(),
                    with_interval(own.gain(), own.gain_interval()), parts_text(own.parts()), rules, sizes, zeros);
  }
  return text +
         "clipped: blocks, and elements. made 0: of the elements that are not 0; beside a large element dB do not\n"
         "show it. regret: squared error / that of the best power of two of each block. size: -0.02 +- 0.001 are "
         "numbers\n"
         "2% too small. of the error: percent of the squared error from a common factor, from elements that become 0,\n"
         "and from the grid\n";
}

std::string XrayObserver::to_csv() const {
  std::string text =
      "layer,operand,quantizer,rule,block,runs,blocks,zero_blocks,nonfinite_blocks,clipped_blocks,elements,clipped,"
      "made_zero,sqnr_db,regret,gain,gain_interval,scale_percent,dead_zone_percent,grid_percent,scales\n";
  for (const Site& s : sites_)
    for (const XrayRow& r : s.xray.rows)
      text +=
          fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{:.6g},{:.6g},{:.6g},{:.2g},{:.3g},{:.3g},{:.3g},{}\n",
                      csv_field(s.layer), s.operand, csv_field(s.xray.quantizer), r.rule, r.block, r.runs, r.blocks,
                      r.zero_blocks, r.nonfinite_blocks, r.clipped_blocks, r.elements, r.clipped, r.made_zero,
                      r.sqnr_db(), r.regret(), r.gain(), r.gain_interval(), r.parts().scale, r.parts().dead_zone,
                      r.parts().grid, csv_field(fmt::format("{}", r.scales)));
  return text;
}

}  // namespace gradual::inspect
