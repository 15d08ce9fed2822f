// docs/formats.md: its tables are made here, from the formats, quantizers and recipes themselves.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <gradual/amp/recipe.h>
#include <gradual/core/formats/format_table.h>
#include <gradual/core/quantize/quantizer.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>

#include "support/source_dir.h"

using namespace gradual;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::string number(double v) {
  if (std::isnan(v)) return "NaN";
  if (std::isinf(v)) return v < 0 ? "-Inf" : "Inf";
  int exponent = 0;
  const double significand = std::frexp(v, &exponent);
  if (std::abs(significand) == 0.5 && (exponent < -1 || exponent > 12))
    return fmt::format("{}2^{}", v < 0 ? "-" : "", exponent - 1);
  return std::abs(v) < 1e9 && std::abs(v) > 1e-3 ? fmt::format("{}", v)
         : v == 0                                ? (std::signbit(v) ? "-0" : "0")
                                                 : fmt::format("{:a}", v);
}

std::string row(const std::vector<std::string>& cells) {
  std::string text = "|";
  for (const std::string& c : cells) text += " " + c + " |";
  return text + "\n";
}
std::string head(const std::vector<std::string>& cells) {
  std::string text = row(cells) + "|";
  for (std::size_t i = 0; i < cells.size(); ++i) text += "---|";
  return text + "\n";
}

double rounded(const Format& f, RoundingMode mode, Overflow overflow, double x) {
  double y = 0;
  Rounder{f, {mode}, overflow}.round(&x, &y, 1);
  return y;
}
std::string code(const Format& f, Overflow overflow, double x) {
  std::uint32_t bits = 0;
  Rounder{f, {}, overflow}.encode(&x, &bits, 1);
  return fmt::format("{:0{}X}", bits, (f.bits() + 3) / 4);
}

// --- the formats -----------------------------------------------------------------------------------------------------

std::string codes(const Format& f, std::optional<std::uint32_t> first, std::uint32_t last) {
  if (!first) return "none";
  const int digits = (f.bits() + 3) / 4;
  std::string text;
  for (const std::uint32_t sign : {0u, f.sign_bit()}) {
    if (sign != 0 || text.empty()) text += text.empty() ? "" : ", ";
    else break;  // unsigned
    text += fmt::format("{:0{}X}", sign | *first, digits);
    if (last > *first) text += fmt::format("-{:0{}X}", sign | last, digits);
    if ((*first & f.sign_bit()) != 0) break;  // the code of -0
  }
  return text;
}
std::string nan_codes(const Format& f) {
  const auto one = f.nan_code();
  const std::uint32_t ones = (1u << (f.bits() - (f.is_signed ? 1 : 0))) - 1;
  return f.nan == NanEncoding::ieee ? codes(f, *f.inf_code() + 1, ones) : codes(f, one, one.value_or(0));
}

std::string overflow_of(const Format& f) {
  const double tie = f.max() + std::ldexp(0.5, f.max_exponent() - f.mantissa_bits);
  const auto at = [&](double x) { return rounded(f, RoundingMode::nearest_even, Overflow::ieee, x); };
  if (std::isfinite(at(2 * tie))) return "stays at the largest";
  return fmt::format("{} {}: {}", std::isfinite(at(tie)) ? "above" : "from", number(tie), number(at(2 * tie)));
}

std::string formats() {
  std::string text = head({"format", "s/e/m", "bias", "largest", "smallest normal", "smallest subnormal", "Inf", "NaN",
                           "-0", "too large, to nearest even", "from"});
  for (const NamedFormat& n : named_formats()) {
    const Format& f = n.format;
    text += row({fmt::format("`{}`", n.name), fmt::format("{:d}/{}/{}", f.is_signed, f.exponent_bits, f.mantissa_bits),
                 fmt::format("{}", f.bias), number(f.max()), number(f.min_normal()),
                 f.subnormals ? number(f.min_positive())
                 : f.has_zero ? "none"
                              : "none, nor zero",
                 codes(f, f.inf_code(), 0), nan_codes(f), f.has_negative_zero ? "yes" : "no", overflow_of(f),
                 std::string(n.about)});
  }
  return text;
}

std::string tables() {
  std::string text = head({"table", "bits", "values", "largest", "smallest above 0", "Inf", "NaN", "from"});
  for (const NamedFormat& n : table_formats()) {
    const ValueTable& t = *n.format.table;
    const auto hex = [&](std::optional<std::uint32_t> c) {
      return c ? fmt::format("{:0{}X}", *c, (t.bits + 3) / 4) : "none";
    };
    text += row({fmt::format("`{}`", n.name), fmt::format("{}", t.bits), fmt::format("{}", t.values.size()),
                 number(n.format.max()), number(n.format.min_positive()), hex(t.inf), hex(t.nan), t.about});
  }
  return text;
}

// --- rounding --------------------------------------------------------------------------------------------------------

constexpr RoundingMode kModes[] = {RoundingMode::nearest_even, RoundingMode::nearest_away, RoundingMode::toward_zero,
                                   RoundingMode::up,           RoundingMode::down,         RoundingMode::to_odd};

std::string rounding_modes() {
  const Format f = format("e4m3fn");
  std::vector<std::string> columns{"into e4m3fn"};
  for (const RoundingMode m : kModes) columns.push_back("`" + to_string(Rounding{m}) + "`");
  columns.emplace_back("`stochastic`");
  std::string text = head(columns);
  for (const double x : {17.0, 19.0, 18.5, -17.0, -18.5, 0x1p-10, 0x1.8p-9, 470.0, 1e6}) {
    std::vector<std::string> cells{number(x)};
    for (const RoundingMode m : kModes) cells.push_back(number(rounded(f, m, Overflow::ieee, x)));
    const double low = rounded(f, RoundingMode::toward_zero, Overflow::ml_dtypes, x);
    const double high = rounded(f, x < 0 ? RoundingMode::down : RoundingMode::up, Overflow::ml_dtypes, x);
    const double gap = std::isfinite(high) ? std::abs(high - low) : 32;
    const double chance = std::abs(x - low) / gap;
    cells.push_back(std::isnan(low)
                        ? number(low)
                        : fmt::format("{}, or {} with probability {}", number(low), number(high), number(chance)));
    text += row(cells);
  }
  return text;
}

std::string overflow_policies() {
  constexpr Overflow kPolicies[] = {Overflow::ieee, Overflow::saturate, Overflow::saturate_finite, Overflow::ml_dtypes};
  std::vector<std::string> columns{"format", "source"};
  for (const Overflow o : kPolicies) columns.push_back(fmt::format("`{}`", to_string(o)));
  std::string text = head(columns);
  const std::pair<const char*, std::vector<double>> cases[] = {
      {"fp16", {65520, kInf, kNan}},     {"e4m3fn", {464, 465, -1e6, kInf, kNan}},
      {"e5m2", {61440, kInf, kNan}},     {"e4m3fnuz", {248, kInf, kNan, -0.0}},
      {"e2m1fn", {7, -1e6, kInf, kNan}}, {"e8m0fnu", {0x1.8p127, kInf, kNan, 0, -1}},
  };
  for (const auto& [format_name, sources] : cases) {
    const Format f = format(format_name);
    for (const double x : sources) {
      std::vector<std::string> cells{fmt::format("`{}`", format_name), number(x)};
      for (const Overflow o : kPolicies)
        cells.push_back(fmt::format("{} ({})", number(rounded(f, RoundingMode::nearest_even, o, x)), code(f, o, x)));
      text += row(cells);
    }
  }
  for (const auto& [mode, x] : {std::pair(RoundingMode::toward_zero, 1e6),
                                {RoundingMode::up, 1e6},
                                {RoundingMode::up, -1e6},
                                {RoundingMode::down, 1e6},
                                {RoundingMode::to_odd, 1e6}}) {
    const Format f = format("fp16");
    std::vector<std::string> cells{"`fp16`, " + to_string(Rounding{mode}), number(x)};
    for (const Overflow o : kPolicies) cells.push_back(number(rounded(f, mode, o, x)));
    text += row(cells);
  }
  return text;
}

// --- scales ----------------------------------------------------------------------------------------------------------

// What the codes of a tensor of one element are multiplied by, and what it becomes.
std::pair<double, double> scale_of(double amax, const std::string& element, const Scaling& scaling) {
  const Tensor x = from_data(std::vector<double>{amax}, {1, 1});
  const QuantizedTensor q = quantize(x, {.format = format(element), .scaling = scaling});
  const double scale = q.scales.defined() ? q.scale_values().item() : 1;
  const double global = q.global_scale.defined() ? q.global_scale.item() : 1;
  return {scale * global, q.dequantize().item()};
}

constexpr PowerBlocks kMx{.scale = ScaleFormat::e8m0};

std::string scale_rules() {
  std::string text = head({"element", "amax of the block", "`floor`", "`rceil`", "`ceil`", "`even`"});
  const std::pair<const char*, std::vector<double>> cases[] = {{"e4m3fn", {150, 448, 449, 500, 511}},
                                                               {"e2m1fn", {4, 5, 6, 7}}};
  for (const auto& [element, amaxes] : cases)
    for (const double amax : amaxes) {
      std::vector<std::string> cells{fmt::format("`{}`", element), number(amax)};
      for (const ScaleRule rule : {ScaleRule::floor, ScaleRule::rceil, ScaleRule::ceil, ScaleRule::even}) {
        PowerBlocks s = kMx;
        s.rule = rule;
        const auto [scale, value] = scale_of(amax, element, s);
        const bool clips = amax / scale > format(element).max();
        cells.push_back(fmt::format("{}: {}{}", number(scale), number(value), clips ? ", clipped" : ""));
      }
      text += row(cells);
    }
  return text;
}

std::string odd_amaxes() {
  std::string text = head({"scaling", "oracle", "amax 0", "amax Inf", "amax NaN"});
  PowerBlocks fine = kMx;
  fine.scale = ScaleFormat::power_of_two;
  fine.rule = ScaleRule::rceil;
  const std::pair<const char*, Scaling> kinds[] = {
      {"one per tensor or row", TensorScale{}}, {"blocks, `e8m0`", kMx}, {"blocks, power of two in f32", fine}};
  for (const auto& [kind, scaling] : kinds)
    for (const ScaleOracle oracle : {ScaleOracle::transformer_engine, ScaleOracle::torchao}) {
      Scaling s = scaling;
      set_oracle(s, oracle);
      std::vector<std::string> cells{kind, oracle == ScaleOracle::torchao ? "torchao" : "Transformer Engine"};
      for (const double amax : {0.0, kInf, kNan}) cells.push_back(number(scale_of(amax, "e4m3fn", s).first));
      text += row(cells);
    }
  std::vector<std::string> cells{"one per tensor, delayed", "Transformer Engine"};
  for (const float amax : {0.0F, static_cast<float>(kInf), static_cast<float>(kNan)}) {
    AmaxHistory history;
    history.scale = 4;
    history.stage(amax);
    history.advance(DelayedScale{}, format("e4m3fn"));
    cells.push_back(history.scale == 4 ? "as before" : number(1 / history.scale));
  }
  return text + row(cells);
}

// --- recipes ---------------------------------------------------------------------------------------------------------

std::string recipes() {
  std::vector<std::string> names = amp::recipe_names();
  names.emplace_back("e4m2");
  names.insert(names.end(), {"e8m7:stochastic", "pure:e5m7", "mx16:e2m0"});
  std::string text;
  for (const std::string& recipe_name : names) {
    const amp::Recipe r = amp::recipe(recipe_name);
    if (!r.quantization) continue;
    text += fmt::format("- **`{}`**: {}\n", recipe_name, r.description);
    for (const amp::OperandGroup& g : describe(*r.quantization))
      text += fmt::format("  - `{}`: {}\n", fmt::join(g.operands, "`, `"), g.quantizer);
  }
  return text;
}

struct Part {
  const char* name;
  std::function<std::string()> make;
};
const Part kParts[] = {{"formats", formats},         {"tables", tables},
                       {"rounding", rounding_modes}, {"overflow", overflow_policies},
                       {"scale-rules", scale_rules}, {"odd-amaxes", odd_amaxes},
                       {"recipes", recipes}};

}  // namespace

TEST_CASE("docs/formats.md agrees with the formats, quantizers and recipes") {
  const std::string path = source_dir() + "/docs/formats.md";
  std::ostringstream read;
  read << std::ifstream(path).rdbuf();
  std::string page = read.str();
  const bool writes = std::getenv("GRADUAL_WRITE_DOCS") != nullptr;
  for (const Part& part : kParts) {
    const std::string begin = fmt::format("<!-- generated: {} -->\n", part.name);
    const std::string end = "<!-- end -->\n";
    const std::size_t from = page.find(begin);
    const std::size_t to = page.find(end, from);
    REQUIRE_MESSAGE(to != std::string::npos, "docs/formats.md has lost the marks around its part ", part.name);
    const std::size_t first = from + begin.size();
    const std::string fresh = part.make();
    if (writes) page.replace(first, to - first, fresh);
    else CHECK_MESSAGE(page.substr(first, to - first) == fresh, "stale; run ./dev docs");
  }
  if (writes) std::ofstream(path) << page;
}
