#include "accumulator.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>
#include <vector>

#include "../support/message_text.h"
#include "../support/throwf.h"
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
  throwf(
      "there are {}, formats as bf16 and eXmY (or eXmY-acc); then :ROUNDING, /chunk=N, /promote=N, /group=N, "
      "/fraction=N{}",
      own, did_you_mean(base, names, format_synonyms()));
}

constexpr std::pair<std::string_view, int Accumulator::*> kCounts[] = {{"chunk", &Accumulator::chunk},
                                                                       {"promote", &Accumulator::promote},
                                                                       {"group", &Accumulator::group},
                                                                       {"fraction", &Accumulator::fraction}};

// The name with those of a's counts that `base` lacks.
std::string with_counts(std::string name, const Accumulator& base, const Accumulator& a) {
  for (const auto& [option, count] : kCounts)
    if (a.*count != base.*count) name += fmt::format("/{}={}", option, a.*count);
  return name;
}

// "chunk=64"
void read_count(std::string_view text, Accumulator& a, Accumulator& given) {
  const std::size_t equals = std::min(text.find('='), text.size());
  for (const auto& [name, count] : kCounts) {
    if (text.substr(0, equals) != name) continue;
    const char* const end = text.data() + text.size();
    int n = 0;
    const auto [stop, error] = std::from_chars(text.data() + std::min(equals + 1, text.size()), end, n);
    if (error != std::errc() || stop != end || n < 1)
      throwf("{}=N takes a whole number from 1 on, not '{}'", name, text);
    if (given.*count != 0) throwf("{} is given twice", name);
    a.*count = given.*count = n;
    return;
  }
  const std::vector<std::string> all{"chunk=N", "promote=N", "group=N", "fraction=N"};
  throwf("no option '{}'; there are {}{}", text, join(all), did_you_mean(text, all));
}

}  // namespace

void check_valid(const Accumulator& a) {
  check_valid(a.format);
  if (!a.format.is_signed) throwf("accumulator: sums need a sign, which the format {} lacks", to_string(a.format));
  if (a.format.table)
    throwf("accumulator: sums have a format of exponent and mantissa, not the table {}", to_string(a.format));
  check_valid(a.rounding);
  if (a.chunk < 0) throwf("accumulator: a chunk has at least 1 product (0: one chain), not {}", a.chunk);
  if (a.promote < 0) throwf("accumulator: it promotes after at least 1 product (0: never), not {}", a.promote);
  if ((a.group != 0) != (a.fraction != 0) || a.group < 0 || a.group > 64 || a.fraction < 0 || a.fraction > 40)
    throwf("accumulator: a group of 1 to 64 products is cut at 1 to 40 fraction bits (both 0: no groups), not {} at {}",
           a.group, a.fraction);
  if (a.f64 && a.group != 0) throw_error("accumulator: f64 sums have no groups");
  if (a.f64 && (a.format != Accumulator().format || a.rounding != Rounding()))
    throw_error("accumulator: f64 sums are doubles, to nearest: leave format and rounding as they are");
}

Accumulator accumulator(std::string_view text) {
  return in_context("accumulator '" + std::string(text) + "'", [&] {
    const std::string_view head = text.substr(0, text.find('/'));
    const std::string_view base = head.substr(0, head.find(':'));
    Accumulator a = from_base(base), given;
    if (base.size() < head.size()) a.rounding = rounding_from_name(head.substr(base.size() + 1));
    for (std::string_view rest = text.substr(head.size()); !rest.empty();) {
      rest.remove_prefix(1);
      const std::string_view option = rest.substr(0, rest.find('/'));
      read_count(option, a, given);
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
  const auto aligned = [&](int group, int fraction, const Format& f) {
    return Accumulator{.format = f, .rounding = kCut, .group = group, .fraction = fraction};
  };
  static const std::vector<NamedAccumulator> all = {
      {"f32", {}, "as usual"},
      {"f64", {.f64 = true}, "doubles"},
      {"fp16-acc", {.format = Format::ieee(5, 10)}, "f16 sums"},
      {"bf16-acc", {.format = Format::ieee(8, 7)}, "bf16 sums"},
      {"hopper-fp8-14bit", {.format = e8m13, .rounding = kCut}, "one product after the other, 14 bits, truncated"},
      {"volta-fp16", aligned(4, 23, f32), "Volta's tensor cores"},
      {"ampere-fp16", aligned(8, 24, f32), "Turing's, Ampere's and Ada's tensor cores, f16 and bf16"},
      {"ampere-tf32", aligned(4, 24, f32), "Ampere's and Ada's tensor cores, tf32"},
      {"hopper-fp16", aligned(16, 25, f32), "Hopper's and Blackwell's tensor cores, f16 and bf16"},
      {"hopper-tf32", aligned(8, 25, f32), "Hopper's and Blackwell's tensor cores, tf32"},
      {"ada-fp8", aligned(16, 13, e8m13), "Ada's tensor cores, f8"},
      {"hopper-fp8", aligned(32, 13, e8m13), "Hopper's tensor cores (wgmma), f8"},
      {"blackwell-fp8", aligned(32, 25, f32), "Blackwell's tensor cores (tcgen05), f8"},
  };
  return all;
}

std::string to_string(const Accumulator& a) {
  // A name with this rounding and these groups, else one to nearest without groups.
  std::string text = to_string(a.format);
  Accumulator base{.format = a.format};
  for (const auto& [name, known, about] : accumulators()) {
    if (known.format != a.format || known.f64 != a.f64) continue;
    if (known.rounding == a.rounding && known.group == a.group && known.fraction == a.fraction)
      return with_counts(name, known, a);
    if (known.rounding == Rounding() && known.group == 0) {
      text = name;
      base = known;
    }
  }
  if (base.rounding != a.rounding) text += ":" + to_string(a.rounding);
  return with_counts(text, base, a);
}

AccumulatorScope::AccumulatorScope(const std::optional<Accumulator>& accumulator)
    : Scoped(current_accumulator(), accumulator) {
  if (accumulator) check_valid(*accumulator);
}

}  // namespace gradual
