#include "block_xray.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "../amp/quantization.h"
#include "../core/ops/ops.h"
#include "../core/quantize/quantizer_call.h"
#include "../core/quantize/quantizer_kernels.h"
#include "../core/support/throwf.h"
#include "csv.h"
#include "numbers.h"

namespace gradual::inspect {
namespace {

using detail::Scale;

// f32 [rows, k] on the CPU: k is the dim `axis`, rows are the other dims in order.
Tensor as_matrix(const Tensor& x, int axis) {
  Shape sizes = x.sizes(), strides = x.strides();
  axis = wrap_dim(axis, x.dim(), "xray");
  const std::int64_t k = sizes.empty() ? 1 : sizes[axis], stride = sizes.empty() ? 1 : strides[axis];
  if (!sizes.empty()) sizes.erase(axis), strides.erase(axis);
  sizes.push_back(k), strides.push_back(stride);
  const Tensor last = as_strided(x.detach(), sizes, strides, x.offset()).to(Device::cpu());
  return contiguous(cast(last, DType::f32)).reshape({k ? x.numel() / k : 0, k});
}

// A matrix in blocks (tiles) of one size, in the order of QuantizedTensor::scales.
struct Blocks {
  const float* x;
  std::int64_t rows, k, height, width, columns = (k + width - 1) / width;

  Blocks(const Tensor& m, int size, bool square)
      : x(m.data<float>()), rows(m.size(0)), k(m.size(1)), height(square ? size : 1), width(size) {}
  std::int64_t count() const { return (rows + height - 1) / height * columns; }
  // f(first, n) for the parts of block b that are contiguous.
  template <class F> void parts(std::int64_t b, const F& f) const {
    const std::int64_t top = b / columns * height, left = b % columns * width;
    for (std::int64_t r = top; r < std::min(top + height, rows); ++r) f(r * k + left, std::min(width, k - left));
  }
  float amax(std::int64_t b) const {
    float most = 0;
    parts(b, [&](std::int64_t first, std::int64_t n) {
      for (std::int64_t i = first; i < first + n; ++i) most = detail::larger_magnitude(x[i], most);
    });
    return most;
  }
};

// The squared error of a block under a scale; its values go to `to`, where that is not null.
double error_at(const Blocks& blocks, std::int64_t b, const Rounder& rounder, Scale scale, float last, float* to) {
  std::vector<float> buffer(static_cast<std::size_t>(blocks.width));
  float* rounded = buffer.data();
  double error = 0;
  blocks.parts(b, [&](std::int64_t first, std::int64_t n) {
    const float* x = blocks.x + first;
    for (std::int64_t i = 0; i < n; ++i) rounded[i] = x[i] * scale.forward;
    rounder.round(rounded, rounded, n, first);
    for (std::int64_t i = 0; i < n; ++i) {
      const float y = rounded[i] * scale.inverse * last;
      error += (static_cast<double>(x[i]) - y) * (static_cast<double>(x[i]) - y);
      if (to) to[first + i] = y;
    }
  });
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

// Each block's least error with a power of two as its scale; 0 for blocks that are not measured. A scale at which
// nothing is clipped is no better than half of it, if that clips nothing either: its values are some of the other's.
// Smaller ones are tried until clipping the largest element alone costs more than the best.
std::vector<double> best_errors(const Blocks& blocks, const Quantizer& q, RandomKey key) {
  const Rounder rounder{q.format, q.rounding, q.overflow, key};
  detail::ScaleSpec spec = detail::scale_spec(q);
  spec.rule = ScaleRule::rceil;
  std::vector<double> all(static_cast<std::size_t>(blocks.count()), 0.0);
  for (std::int64_t b = 0; b < blocks.count(); ++b) {
    const float amax = blocks.amax(b);
    if (amax == 0 || !std::isfinite(amax)) continue;
    double best = std::numeric_limits<double>::infinity();
    for (int e = std::clamp(detail::block_exponent(amax, spec) + 1, -127, 127); e >= -127 && best > 0; --e) {
      const double clipped = std::max(0.0, amax - std::ldexp(spec.most, e));
      if (clipped * clipped >= best) break;
      best = std::min(best, error_at(blocks, b, rounder, detail::power_scale(e), 1, nullptr));
    }
    all[static_cast<std::size_t>(b)] = best;
  }
  return all;
}

// A matrix after rounding, and the scales of its blocks.
struct Rounded {
  Tensor values;  // f32, row-major
  std::vector<float> scales;
  float global = 1;
};

Rounded rounded(const Tensor& x, const Quantizer& q, RandomKey key) {
  const QuantizedTensor codes = quantize(x, q, {.key = key});
  return {codes.dequantize(), codes.scale_values().to_vector<float>(),
          codes.global_scale.defined() ? codes.global_scale.item<float>() : 1};
}

Rounded four_over_six(const Tensor& x, const Blocks& blocks, const Quantizer& q, RandomKey key) {
  detail::ScaleSpec to_largest = detail::scale_spec(q);
  // Relative to 448: scaled to 4, the largest block's scale is 256 * 6 / 4 = 384, which e4m3fn holds.
  to_largest.global = detail::nvfp4_global(absmax(x), to_largest).forward * 256 / 448;
  detail::ScaleSpec to_less = to_largest;
  to_less.most *= 2.0 / 3;
  Rounded r{empty(x.sizes()), {}, 1 / to_largest.global};
  r.scales.reserve(static_cast<std::size_t>(blocks.count()));
  const Rounder rounder{q.format, q.rounding, q.overflow, key};
  for (std::int64_t b = 0; b < blocks.count(); ++b) {
    const float amax = blocks.amax(b);
    Scale scale = detail::nvfp4_scale(amax, to_largest);
    const Scale other = detail::nvfp4_scale(amax, to_less);
    const double error = error_at(blocks, b, rounder, scale, r.global, nullptr);
    if (error_at(blocks, b, rounder, other, r.global, nullptr) < error) scale = other;
    error_at(blocks, b, rounder, scale, r.global, r.values.data<float>());
    r.scales.push_back(scale.inverse);
  }
  return r;
}

XrayRow row_of(const Blocks& blocks, const Rounded& r, double most, const std::vector<double>& best) {
  XrayRow row{.block = static_cast<int>(blocks.width)};
  const float *x = blocks.x, *y = r.values.data<float>();
  for (std::int64_t b = 0; b < blocks.count(); ++b) {
    const auto at = static_cast<std::size_t>(b);
    const float amax = blocks.amax(b), scale = r.scales[at];
    if (amax == 0 || !std::isfinite(amax) || !std::isfinite(r.global)) {
      ++(amax == 0 ? row.zero_blocks : row.nonfinite_blocks);
      continue;
    }
    // Scales that are no powers of two are rounded themselves: the largest element may exceed by an ulp or two.
    int exponent = 0;
    const bool power = std::frexp(scale, &exponent) == 0.5F && r.global == 1;
    const double limit = most * scale * r.global * (power ? 1 : 1 + 0x1p-20);
    ++row.blocks;
    ++row.scales[exponent - 1];
    row.clipped_blocks += amax > limit;
    row.best_error += best[at];
    double error = 0;
    blocks.parts(b, [&](std::int64_t first, std::int64_t n) {
      for (std::int64_t i = first; i < first + n; ++i) {
        const double from = x[i];
        row.elements += from != 0;
        row.clipped += std::abs(from) > limit;
        row.made_zero += from != 0 && y[i] == 0;
        row.squares += from * from;
        error += (from - y[i]) * (from - y[i]);
      }
    });
    row.error += std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
  }
  return row;
}

// The rules that a size is tried with, as quantizers.
std::vector<std::pair<std::string, Quantizer>> rules_of(const Quantizer& q, int size) {
  const bool powers = q.scaling.kind == ScalingKind::block && q.scaling.scale != ScaleFormat::f32;
  Quantizer own = q, edited = q;
  own.scaling.block = size;
  if (!powers) edited.scaling = {.kind = ScalingKind::block, .square = q.scaling.square, .oracle = q.scaling.oracle};
  edited.scaling.block = size;
  std::vector<std::pair<std::string, Quantizer>> all;
  for (const ScaleRule rule : {ScaleRule::floor, ScaleRule::ceil, ScaleRule::rceil, ScaleRule::even}) {
    edited.scaling.rule = rule;
    all.emplace_back(to_string(rule), edited);
  }
  if (!powers) all.emplace_back(q.scaling.kind == ScalingKind::nvfp4 ? "nvfp4" : "f32", own);
  return all;
}

// "2^-3 to 2^2, median 2^0".
std::string range_of(const std::map<int, std::int64_t>& scales, std::int64_t blocks) {
  if (scales.empty()) return "-";
  auto median = scales.begin();
  for (std::int64_t below = median->second; 2 * below < blocks; below += (++median)->second) {}
  return fmt::format("2^{} to 2^{}, median 2^{}", scales.begin()->first, scales.rbegin()->first, median->first);
}

// JSON has no Inf and no NaN: null.
nlohmann::ordered_json json(const XrayObserver::Site& site, const XrayRow& r) {
  nlohmann::ordered_json j, scales = nlohmann::ordered_json::object();
  const auto set = [&j](const char* key, double v) { j[key] = std::isfinite(v) ? nlohmann::ordered_json(v) : nullptr; };
  for (const auto& [exponent, n] : r.scales) scales[std::to_string(exponent)] = n;
  j["layer"] = site.layer, j["operand"] = site.operand, j["quantizer"] = site.xray.quantizer;
  j["rule"] = r.rule, j["block"] = r.block, j["runs"] = r.runs;
  j["blocks"] = r.blocks, j["zero_blocks"] = r.zero_blocks, j["nonfinite_blocks"] = r.nonfinite_blocks;
  j["clipped_blocks"] = r.clipped_blocks, j["elements"] = r.elements;
  j["clipped"] = r.clipped, j["made_zero"] = r.made_zero;
  set("sqnr_db", r.sqnr_db()), set("regret", r.regret());
  set("squares", r.squares), set("error", r.error), set("best_error", r.best_error);
  j["scales"] = std::move(scales);
  return j;
}

}  // namespace

double XrayRow::sqnr_db() const {
  return error == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(squares / error);
}
double XrayRow::regret() const { return error == best_error ? 1 : error / best_error; }
XrayRow& XrayRow::operator+=(const XrayRow& o) {
  blocks += o.blocks, zero_blocks += o.zero_blocks, nonfinite_blocks += o.nonfinite_blocks;
  clipped_blocks += o.clipped_blocks, elements += o.elements, clipped += o.clipped, made_zero += o.made_zero;
  squares += o.squares, error += o.error, best_error += o.best_error;
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

BlockXray& BlockXray::operator+=(const BlockXray& o) {
  if (rows.empty()) return *this = o;
  if (quantizer != o.quantizer) throwf("xray: {} and {} have no sum", quantizer, o.quantizer);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] += o.rows[i];
  return *this;
}

BlockXray xray(const Tensor& x, const Quantizer& q, int axis, RandomKey key) {
  const ScalingKind kind = q.scaling.kind;
  if (kind != ScalingKind::block && kind != ScalingKind::nvfp4)
    throwf("xray: the quantizer '{}' has no scales of blocks; allowed are ScalingKind::block and nvfp4", describe(q));
  if (!x.is_floating()) throwf("xray: takes a floating tensor, not {}", describe(x));
  const Unseen unseen;
  const Tensor matrix = as_matrix(x, axis);
  BlockXray all{.quantizer = describe(q)};
  for (const int size : std::set<int>{8, 16, 32, 64, 128, q.scaling.block}) {
    const Blocks blocks(matrix, size, q.scaling.square);
    const std::vector<double> best = best_errors(blocks, q, key);
    const auto add = [&](const std::string& rule, const Rounded& r, bool runs) {
      all.rows.push_back(row_of(blocks, r, q.format.max(), best));
      all.rows.back().rule = rule, all.rows.back().runs = runs;
    };
    for (const auto& [rule, edited] : rules_of(q, size)) add(rule, rounded(matrix, edited, key), edited == q);
    if (kind == ScalingKind::nvfp4) add("4-over-6", four_over_six(matrix, blocks, q, key), false);
  }
  return all;
}

std::string to_string(const BlockXray& x) {
  std::string text = x.quantizer + "\n" +
                     fmt::format("{:<10} {:>5}  {:>14}  {:>8}  {:>9}  {:>7}  {:>7}  {}\n", "rule", "block",
                                 "clipped blocks", "clipped", "made zero", "SQNR", "regret", "scales");
  for (const XrayRow& r : x.rows)
    text += fmt::format("{:<10} {:>5}  {:>13.3g}%  {:>7.3g}%  {:>8.3g}%  {:>4.1f} dB  {:>7.3g}  {}\n",
                        r.rule + (r.runs ? " *" : ""), r.block, r.clipped_blocks_percent(), r.clipped_percent(),
                        r.made_zero_percent(), r.sqnr_db(), r.regret(), range_of(r.scales, r.blocks));
  return text + "* what runs. regret: squared error / that of the best power of two of each block\n";
}

void XrayObserver::before(const OpCall& call) {
  if (op_info(call.op).kind != OpKind::Custom) return;
  Frame& frame = frames_.emplace_back();
  frame.rewritten = called(call).find(" rewritten by ") != std::string_view::npos;
  for (int i = 0; i < std::min(2, call.inputs.size()); ++i)
    if (call[i].defined()) frame.inputs[amp::storage_id(call[i])] |= 1 << i;
}

void XrayObserver::after(const OpCall& call, const Outputs& out, const CallRecord&) {
  if (op_info(call.op).kind == OpKind::Custom) return frames_.pop_back();
  if (frames_.empty() || !out[0].defined()) return;
  Frame& frame = frames_.back();
  for (int i = 0; i < call.inputs.size(); ++i)
    if (const int from = frame.inputs_of(call[i])) frame.inputs[amp::storage_id(out[0])] |= from;
}

// Inside a rewrite: the recipe's name of the operand.
std::string XrayObserver::operand(const Tensor& from) {
  if (frames_.empty()) return "kept";
  Frame& frame = frames_.back();
  if (!frame.rewritten) return "";
  const int bits = frame.inputs_of(from);
  const int input = bits == 1 || bits == 2 ? bits - 1 : frame.seen++ % 2;
  const amp::Role role = amp::operand_role(input), other = amp::operand_role(1 - input);
  const bool second = role == amp::Role::error ? other != amp::Role::weight : other == amp::Role::error;
  const auto quantizer = amp::kOperandQuantizers[static_cast<int>(role)][second];
  for (const amp::QuantizerField& field : amp::kQuantizerFields)
    if (field.quantizer == quantizer) return field.name;
  return "";
}

void XrayObserver::quantized(const QuantizerCall& call) {
  if (!call.quantizer) return;
  const ScalingKind kind = call.quantizer->scaling.kind;
  if (kind != ScalingKind::block && kind != ScalingKind::nvfp4) return;
  const std::string name = operand(call.from), layer = name == "kept" ? names_.of(call.from) : context().module;
  BlockXray found = xray(call.from, *call.quantizer, call.axis);
  const auto same = std::ranges::find_if(sites_, [&](const Site& s) {
    return s.layer == layer && s.operand == name && s.xray.quantizer == found.quantizer;
  });
  if (same == sites_.end()) sites_.push_back({layer, name, std::move(found)});
  else same->xray += found;
}

std::string XrayObserver::to_string() const {
  std::string text =
      fmt::format("{:<14} {:<10} {:<12} {:>8} {:>8} {:>8} {:>7}  {:<36}  {}\n", "layer", "operand", "runs", "clipped",
                  "elements", "made 0", "regret", "dB by rule, this size", "dB by size, this rule");
  for (const Site& s : sites_) {
    const XrayRow& own = s.xray.running();
    std::string rules, sizes;
    for (const XrayRow& r : s.xray.rows) {
      if (r.block == own.block) rules += fmt::format("{}{} {:.1f}", rules.empty() ? "" : ", ", r.rule, r.sqnr_db());
      if (r.rule == own.rule) sizes += fmt::format("{}{}: {:.1f}", sizes.empty() ? "" : ", ", r.block, r.sqnr_db());
    }
    text += fmt::format("{:<14} {:<10} {:<12} {:>7.3g}% {:>7.3g}% {:>7.3g}% {:>7.3g}  {:<36}  {}\n", s.layer, s.operand,
                        fmt::format("{} {}", own.rule, own.block), own.clipped_blocks_percent(), own.clipped_percent(),
                        own.made_zero_percent(), own.regret(), rules, sizes);
  }
  return text + "clipped: blocks, and elements. regret: squared error / that of the best power of two of each block\n";
}

std::string XrayObserver::to_jsonl() const {
  std::string text;
  for (const Site& s : sites_)
    for (const XrayRow& r : s.xray.rows)
      text += json(s, r).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  return text;
}

std::string XrayObserver::to_csv() const { return csv_of(json({}, {}).dump() + "\n" + to_jsonl()); }

}  // namespace gradual::inspect
