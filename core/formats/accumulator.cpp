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

std::optional<Accumulator> checked(const std::optional<Accumulator>& accumulator) {
  if (accumulator) check_valid(*accumulator);
  return accumulator;
}

const std::vector<std::pair<std::string, Accumulator>>& presets() {
  static const std::vector<std::pair<std::string, Accumulator>> all = {
      {"f32", {}},
      {"f64", {.f64 = true}},
      {"fp16-acc", {.format = Format::ieee(5, 10)}},
      {"bf16-acc", {.format = Format::ieee(8, 7)}},
      {"hopper-fp8-14bit", {.format = Format::ieee(8, 13), .rounding = {.mode = RoundingMode::toward_zero}}},
  };
  return all;
}

Accumulator from_base(std::string_view base) {
  std::vector<std::string> names;
  for (const auto& [name, accumulator] : presets()) {
    if (name == base) return accumulator;
    names.push_back(name);
  }
  const std::string own = join(names);
  for (const NamedFormat& f : named_formats())
    if (f.format.is_signed) names.emplace_back(f.name);
  const bool widths = base.size() > 1 && base[0] == 'e' && std::isdigit(static_cast<unsigned char>(base[1]));
  if (widths || std::find(names.begin(), names.end(), base) != names.end()) return {.format = format(base)};
  throwf("there are {}, formats as bf16 and eXmY; then :ROUNDING, /chunk=N, /promote=N{}", own,
         did_you_mean(base, names, format_synonyms()));
}

constexpr std::pair<std::string_view, int Accumulator::*> kCounts[] = {{"chunk", &Accumulator::chunk},
                                                                       {"promote", &Accumulator::promote}};

// "chunk=64"
void read_count(std::string_view text, Accumulator& a) {
  const std::size_t equals = std::min(text.find('='), text.size());
  for (const auto& [name, count] : kCounts) {
    if (text.substr(0, equals) != name) continue;
    const std::string_view digits = text.substr(std::min(equals + 1, text.size()));
    const char* const end = digits.data() + digits.size();
    int n = 0;
    const auto [stop, error] = std::from_chars(digits.data(), end, n);
    if (error != std::errc() || stop != end || n < 1)
      throwf("{}=N takes a whole number from 1 on, not '{}'", name, text);
    if (a.*count != 0) throwf("{} is given twice", name);
    a.*count = n;
    return;
  }
  throwf("no option '{}'; there are chunk=N and promote=N{}", text, did_you_mean(text, {"chunk=N", "promote=N"}));
}

}  // namespace

void check_valid(const Accumulator& a) {
  check_valid(a.format);
  if (!a.format.is_signed) throwf("accumulator: sums have a sign, the format {} has none", to_string(a.format));
  if (a.rounding.mode == RoundingMode::stochastic) throw_error("accumulator: its rounding is not stochastic");
  if (a.chunk < 0) throwf("accumulator: a chunk has at least 1 product (0: one chain), not {}", a.chunk);
  if (a.promote < 0) throwf("accumulator: it promotes after at least 1 product (0: never), not {}", a.promote);
  if (a.f64 && (a.format != Accumulator().format || a.rounding != Rounding()))
    throw_error("accumulator: f64 sums are doubles, to nearest: leave format and rounding as they are");
}

Accumulator accumulator(std::string_view text) {
  return in_context("accumulator '" + std::string(text) + "'", [&] {
    const std::string_view head = text.substr(0, text.find('/'));
    const std::string_view base = head.substr(0, head.find(':'));
    Accumulator a = from_base(base);
    if (base.size() < head.size()) a.rounding = rounding_from_name(head.substr(base.size() + 1));
    for (std::string_view rest = text.substr(head.size()); !rest.empty();) {
      rest.remove_prefix(1);
      const std::string_view option = rest.substr(0, rest.find('/'));
      read_count(option, a);
      rest.remove_prefix(option.size());
    }
    check_valid(a);
    return a;
  });
}

std::string to_string(const Accumulator& a) {
  std::string text;
  for (const auto& [name, preset] : presets()) {
    const bool same = preset.format == a.format && preset.f64 == a.f64;
    if (same && preset.rounding == a.rounding) text = name;
    else if (same && preset.rounding == Rounding()) text = name + ":" + to_string(a.rounding);
  }
  if (text.empty()) {
    text = to_string(a.format);
    if (a.rounding != Rounding()) text += ":" + to_string(a.rounding);
  }
  for (const auto& [name, count] : kCounts)
    if (a.*count != 0) text += fmt::format("/{}={}", name, a.*count);
  return text;
}

std::optional<Accumulator>& current_accumulator() {
  thread_local std::optional<Accumulator> accumulator;
  return accumulator;
}

AccumulatorScope::AccumulatorScope(const std::optional<Accumulator>& accumulator)
    : Scoped(current_accumulator(), checked(accumulator)) {}

}  // namespace gradual
