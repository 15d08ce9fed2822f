#include "accumulator.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "../support/message_text.h"
#include "../support/throwf.h"
#include "accumulator_options.h"
#include "synonyms.h"

namespace gradual {
namespace {

Accumulator from_base(std::string_view base) {
  std::vector<std::string> names;
  for (const NamedAccumulator& known : accumulators()) {
    if (known.name == base) return known.accumulator;
    names.push_back(known.name);
  }
  const std::string own = join(names);
  constexpr std::string_view kSuffix = "-acc";  // of any format, as fp16-acc
  if (base.ends_with(kSuffix)) base.remove_suffix(kSuffix.size());
  for (const NamedFormat& f : named_formats())
    if (f.format.is_signed) names.emplace_back(f.name);
  const bool widths = base.size() > 1 && base[0] == 'e' && std::isdigit(static_cast<unsigned char>(base[1]));
  if (widths || std::find(names.begin(), names.end(), base) != names.end()) return {.format = format(base)};
  throwf("there are {}, formats as bf16 and eXmY (or eXmY-acc); then {}{}", own, accumulator_suffixes(),
         did_you_mean(base, names, format_synonyms()));
}

constexpr std::pair<std::string_view, int Accumulator::*> kCounts[] = {{"chunk", &Accumulator::chunk},
                                                                       {"promote", &Accumulator::promote},
                                                                       {"group", &Accumulator::group},
                                                                       {"fraction", &Accumulator::fraction}};

// By GroupSum.
constexpr std::string_view kWays[] = {"aligned", "exact", "pairwise", "late", "late-even-odd"};

bool has_fraction(GroupSum adds) { return adds != GroupSum::exact && adds != GroupSum::pairwise; }

// The name with those of a's options that `base` lacks.
std::string with_options(std::string name, const Accumulator& base, const Accumulator& a) {
  for (const auto& [option, count] : kCounts)
    if (a.*count != base.*count) name += fmt::format("/{}={}", option, a.*count);
  if (a.adds != base.adds) name += fmt::format("/adds={}", to_string(a.adds));
  if (a.lowest && a.lowest != base.lowest) name += fmt::format("/lowest={}", *a.lowest);
  if (a.product && a.product != base.product) name += fmt::format("/product={}", to_string(*a.product));
  return name;
}

// What an accumulator's text has named so far.
struct Given {
  Accumulator counts;
  bool adds = false;
  bool lowest = false;
  bool product = false;
};

std::optional<int> whole_number(std::string_view text) {
  const char* const end = text.data() + text.size();
  int n = 0;
  const auto [stop, error] = std::from_chars(text.data(), end, n);
  if (error != std::errc() || stop != end) return std::nullopt;
  return n;
}

void refuse_twice(std::string_view option, bool given) {
  if (given) throwf("{} is given twice", option);
}

GroupSum way_of_adding(std::string_view name) {
  const auto* const found = std::ranges::find(kWays, name);
  const std::vector<std::string> all(std::begin(kWays), std::end(kWays));
  if (found == std::end(kWays)) throwf("adds=WAY takes {}, not '{}'{}", join(all), name, did_you_mean(name, all));
  return static_cast<GroupSum>(found - std::begin(kWays));
}

// "chunk=64"
void read_option(std::string_view text, Accumulator& a, Given& given) {
  const std::size_t equals = std::min(text.find('='), text.size());
  const std::string_view option = text.substr(0, equals);
  const std::string_view value = text.substr(std::min(equals + 1, text.size()));
  for (const auto& [name, count] : kCounts) {
    if (option != name) continue;
    const std::optional<int> n = whole_number(value);
    if (!n || *n < 1) throwf("{}=N takes a whole number from 1 on, not '{}'", name, text);
    refuse_twice(name, given.counts.*count != 0);
    a.*count = *n;
    given.counts.*count = *n;
    return;
  }
  if (option == "adds") {
    refuse_twice(option, given.adds);
    a.adds = way_of_adding(value);
    given.adds = true;
    return;
  }
  if (option == "lowest") {
    refuse_twice(option, given.lowest);
    a.lowest = whole_number(value);
    if (!a.lowest) throwf("lowest=N takes a whole number, as -14 of f16, not '{}'", text);
    given.lowest = true;
    return;
  }
  if (option == "product") {
    refuse_twice(option, given.product);
    a.product = format(value);
    given.product = true;
    return;
  }
  const std::vector<std::string>& all = accumulator_options();
  throwf("no option '{}'; there are {}{}", text, join(all), did_you_mean(text, all));
}

void check_groups(const Accumulator& a) {
  const bool cut = has_fraction(a.adds);
  if (a.group < 0 || a.group > 64 || a.fraction < 0 || a.fraction > 40 || (cut && (a.group != 0) != (a.fraction != 0)))
    throwf("accumulator: a group of 1 to 64 products is cut at 1 to 40 fraction bits (both 0: no groups), not {} at {}",
           a.group, a.fraction);
  if (!cut && (a.group == 0 || a.fraction != 0))
    throwf("accumulator: sums that add {} have a group of 1 to 64 products and no fraction bits, not {} at {}",
           to_string(a.adds), a.group, a.fraction);
  if (a.group == 0 && a.lowest) throw_error("accumulator: lowest, an exponent of operands, is for groups");
  if (a.lowest && (*a.lowest < -149 || *a.lowest > 0))
    throwf("accumulator: the lowest exponent of operands is -149 to 0, not {}", *a.lowest);
  if (a.adds == GroupSum::pairwise && a.rounding.mode == RoundingMode::stochastic)
    throw_error("accumulator: pairwise sums are not rounded by chance");
  if (a.f64 && a.group != 0) throw_error("accumulator: f64 sums have no groups");
}

void check_format(std::string_view what, const Format& f) {
  check_valid(f);
  if (!f.is_signed) throwf("accumulator: {} need a sign, which the format {} lacks", what, to_string(f));
  if (f.table) throwf("accumulator: {} have a format of exponent and mantissa, not the table {}", what, to_string(f));
}

}  // namespace

const std::vector<std::string>& accumulator_options() {
  static const std::vector<std::string> all{"chunk=N",  "promote=N", "group=N",       "fraction=N",
                                            "adds=WAY", "lowest=N",  "product=FORMAT"};
  return all;
}

std::string accumulator_suffixes() {
  std::string text = ":ROUNDING";
  for (const std::string& option : accumulator_options()) text += ", /" + option;
  return text;
}

void check_valid(const Accumulator& a) {
  check_format("sums", a.format);
  if (a.product) check_format("products", *a.product);
  if (a.product && (a.group != 0 || a.f64))
    throwf("accumulator: products are rounded one by one (product={}): not in groups, nor for f64 sums",
           to_string(*a.product));
  check_valid(a.rounding);
  if (a.chunk < 0) throwf("accumulator: a chunk has at least 1 product (0: one chain), not {}", a.chunk);
  if (a.promote < 0) throwf("accumulator: it promotes after at least 1 product (0: never), not {}", a.promote);
  check_groups(a);
  if (a.f64 && (a.format != Accumulator().format || a.rounding != Rounding()))
    throw_error("accumulator: f64 sums are doubles, to nearest: leave format and rounding as they are");
}

Accumulator accumulator(std::string_view text) {
  return in_context("accumulator '" + std::string(text) + "'", [&] {
    const std::string_view head = text.substr(0, text.find('/'));
    const std::string_view base = head.substr(0, head.find(':'));
    Accumulator a = from_base(base);
    Given given;
    if (base.size() < head.size()) a.rounding = rounding_from_name(head.substr(base.size() + 1));
    for (std::string_view rest = text.substr(head.size()); !rest.empty();) {
      rest.remove_prefix(1);
      const std::string_view option = rest.substr(0, rest.find('/'));
      read_option(option, a, given);
      rest.remove_prefix(option.size());
    }
    check_valid(a);
    return a;
  });
}

const std::vector<NamedAccumulator>& accumulators() {
  constexpr Rounding kCut{.mode = RoundingMode::toward_zero};
  const Format f32 = Format::ieee(8, 23);
  const Format e8m13 = Format::ieee(8, 13);
  const auto nvidia = [&](int group, int fraction, const Format& f) {
    return Accumulator{.format = f, .rounding = kCut, .group = group, .fraction = fraction};
  };
  const auto amd = [&](int group, GroupSum adds, int fraction = 0, std::optional<int> lowest = std::nullopt) {
    return Accumulator{.format = f32, .group = group, .fraction = fraction, .adds = adds, .lowest = lowest};
  };
  using enum GroupSum;
  static const std::vector<NamedAccumulator> all = {
      {"f32", {}, "as usual"},
      {"f64", {.f64 = true}, "doubles"},
      {"fp16-acc", {.format = Format::ieee(5, 10)}, "f16 sums"},
      {"bf16-acc", {.format = Format::ieee(8, 7)}, "bf16 sums"},
      {"fp16-unfused", {.format = Format::ieee(5, 10), .product = Format::ieee(5, 10)}, "f16 products, f16 sums"},
      {"bf16-unfused", {.format = Format::ieee(8, 7), .product = Format::ieee(8, 7)}, "bf16 products, bf16 sums"},
      {"hopper-fp8-14bit", {.format = e8m13, .rounding = kCut}, "one product after the other, 14 bits, truncated"},
      {"volta-fp16", nvidia(4, 23, f32), "Volta's tensor cores"},
      {"ampere-fp16", nvidia(8, 24, f32), "Turing's, Ampere's and Ada's tensor cores, f16 and bf16"},
      {"ampere-tf32", nvidia(4, 24, f32), "Ampere's and Ada's tensor cores, tf32"},
      {"hopper-fp16", nvidia(16, 25, f32), "Hopper's, Blackwell's and RTX Blackwell's tensor cores, f16 and bf16"},
      {"hopper-tf32", nvidia(8, 25, f32), "Hopper's, Blackwell's and RTX Blackwell's tensor cores, tf32"},
      {"ada-fp8", nvidia(16, 13, e8m13), "Ada's tensor cores, f8"},
      {"hopper-fp8", nvidia(32, 13, e8m13), "Hopper's tensor cores (wgmma), f8"},
      {"blackwell-fp8", nvidia(32, 25, f32), "Blackwell's (tcgen05) and RTX Blackwell's tensor cores, f8"},
      {"cdna1-fp16", amd(4, exact), "AMD CDNA 1's matrix cores, f16"},
      {"cdna1-bf16", amd(2, exact), "AMD CDNA 1's matrix cores, bf16"},
      {"cdna2-fp16", amd(4, pairwise, 0, -14), "AMD CDNA 2's matrix cores, f16"},
      {"cdna2-bf16", amd(2, pairwise, 0, -126), "AMD CDNA 2's matrix cores, bf16"},
      {"cdna2-bf16-1k", amd(4, pairwise, 0, -126), "AMD CDNA 2's matrix cores, bf16 with the suffix _1k"},
      {"cdna3-fp16", amd(8, late, 24), "AMD CDNA 3's matrix cores, f16 and bf16"},
      {"cdna3-tf32", amd(4, late, 24), "AMD CDNA 3's matrix cores, xf32"},
      {"cdna3-fp8", amd(16, late_even_odd, 24), "AMD CDNA 3's matrix cores, fnuz f8"},
  };
  return all;
}

std::string to_string(GroupSum adds) { return std::string(kWays[static_cast<std::size_t>(adds)]); }

std::string to_string(const Accumulator& a) {
  // A name with this rounding and these groups, else one to nearest without groups.
  std::string text = to_string(a.format);
  Accumulator base{.format = a.format};
  for (const auto& [name, known, about] : accumulators()) {
    if (known.format != a.format || known.f64 != a.f64) continue;
    const bool same_groups = known.group == a.group && known.fraction == a.fraction && known.adds == a.adds;
    const bool same_products = known.product == a.product;
    if (known.rounding == a.rounding && same_groups && same_products && (!known.lowest || known.lowest == a.lowest))
      return with_options(name, known, a);
    if (known.rounding == Rounding() && known.group == 0 && !known.product) {
      text = name;
      base = known;
    }
  }
  if (base.rounding != a.rounding) text += ":" + to_string(a.rounding);
  return with_options(text, base, a);
}

AccumulatorScope::AccumulatorScope(const std::optional<Accumulator>& accumulator)
    : Scoped(current_accumulator(), accumulator) {
  if (accumulator) check_valid(*accumulator);
}

}  // namespace gradual
