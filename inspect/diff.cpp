#include "diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "../core/formats/format.h"

#include "csv_text.h"

namespace gradual::inspect {
namespace {

// The key by which rows of two recipes are paired; empty for rows that a recipe adds. A fused op has the key of its
// first op.
std::string key(const ShadowRow& r) {
  if (r.id == OpId::cast || r.id == OpId::unscale_ || r.source == Source::quantizer) return "";
  if (r.cause_kind == CauseKind::loss_scaling) return "";
  const auto fusion = std::ranges::find(fusions(), r.id, &Fusion::whole);
  const std::string_view op = fusion != fusions().end() ? gradual::to_string(fusion->first) : r.op;
  const std::string shape = r.results.substr(0, r.results.find(']'));
  return fmt::format("{}|{}|{}|{}|{}", gradual::to_string(r.phase), r.module, r.parameter, op, shape);
}

using Keyed = std::vector<std::pair<std::string, const ShadowRow*>>;

// The rows with a key.
Keyed keyed(const Shadow& shadow) {
  Keyed found;
  for (const ShadowRow& r : shadow.rows())
    if (std::string k = key(r); !k.empty()) found.emplace_back(std::move(k), &r);
  return found;
}

// The longest common subsequence of keys.
std::vector<ShadowDiff::Pair> aligned(const Keyed& a, const Keyed& b) {
  const std::size_t n = a.size();
  const std::size_t m = b.size();
  std::vector<std::uint32_t> best((n + 1) * (m + 1), 0);
  const auto at = [&](std::size_t i, std::size_t j) -> std::uint32_t& { return best[i * (m + 1) + j]; };
  for (std::size_t i = n; i-- > 0;)
    for (std::size_t j = m; j-- > 0;)
      at(i, j) = a[i].first == b[j].first ? at(i + 1, j + 1) + 1 : std::max(at(i + 1, j), at(i, j + 1));
  std::vector<ShadowDiff::Pair> pairs;
  for (std::size_t i = 0, j = 0; i < n && j < m;)
    if (a[i].first == b[j].first) pairs.push_back({a[i++].second, b[j++].second});
    else if (at(i + 1, j) >= at(i, j + 1)) ++i;
    else ++j;
  return pairs;
}

// The half dtype that the step's first half result has.
std::optional<DType> half_of(const Shadow& shadow) {
  const auto found = std::ranges::find_if(shadow.rows(), [](const ShadowRow& r) { return is_half(r.to); });
  return found == shadow.rows().end() ? std::nullopt : std::optional(found->to);
}

double half_ulp_of_one(DType dtype) { return std::ldexp(1.0, -format_of(dtype).mantissa_bits - 1); }

// Whether the result is one number, as a loss.
bool is_number(const ShadowRow& r) { return r.results.starts_with("[]"); }

// " (FILE:LINE)" if the line is the program's.
std::string in_program(const ShadowRow& r) { return r.own_line ? "" : fmt::format(" ({})", r.line); }

std::string describe(const ShadowRow& r, const std::string& recipe) {
  return fmt::format("  {:<16} total error {:.2e} of its size: {:.2e} its own, {:.2e} inherited; stored in {}\n",
                     recipe, r.total.relative(), r.local.relative(), r.inherited.relative(), gradual::to_string(r.to));
}

}  // namespace

double ShadowDiff::Pair::error(const ShadowRow& row, double unit) const {
  constexpr double kRoundingOfF32 = 0x1p-18;  // of sums too; less of it is chance
  const bool one = is_number(row);
  if (!has_two_units() && !one) return row.total.relative();
  const bool half = is_half(a->to) || is_half(b->to);
  const double own = row.local.relative();
  const double local = half || own > kRoundingOfF32 ? own : 0;
  return (one ? local : local + row.inherited.relative()) / unit;
}

bool ShadowDiff::Pair::departs() const {
  const auto [low, high] = std::minmax({error(*a, unit_a), error(*b, unit_b)});
  return a->total.lost != b->total.lost || (high > 0 && high > kDeparts * low);
}

ShadowDiff::ShadowDiff(const Shadow& a, const Shadow& b) : a_(a), b_(b), pairs_(aligned(keyed(a), keyed(b))) {
  const std::optional<DType> half_a = half_of(a);
  const std::optional<DType> half_b = half_of(b);
  if (!half_a || !half_b || half_a == half_b) return;
  for (Pair& pair : pairs_) {
    pair.unit_a = half_ulp_of_one(*half_a);
    pair.unit_b = half_ulp_of_one(*half_b);
  }
}

const ShadowDiff::Pair* ShadowDiff::first_departure() const {
  const auto found = std::ranges::find_if(pairs_, &Pair::departs);
  return found == pairs_.end() ? nullptr : &*found;
}

std::vector<ShadowDiff::Contribution> ShadowDiff::contributions() const {
  std::map<std::string, Contribution> of;
  for (const ShadowRow& r : a_.rows()) of[r.module].a += r.share;
  for (const ShadowRow& r : b_.rows()) of[r.module].b += r.share;
  std::vector<Contribution> all;
  for (const auto& [layer, c] : of)
    if (c.a != 0 || c.b != 0) all.push_back({layer, c.a, c.b});
  std::ranges::sort(all, {}, [](const Contribution& c) { return -std::abs(c.a - c.b); });
  return all;
}

std::string ShadowDiff::to_string(const std::string& name_a, const std::string& name_b, const LayerNames& layer) const {
  const Attribution a = a_.attribution();
  const Attribution b = b_.attribution();
  std::string text = fmt::format("loss of {} {:.9g}, of {} {:.9g}: difference {:+.3e}\n", name_a, a.loss, name_b,
                                 b.loss, a.loss - b.loss);
  if (const Pair* first = first_departure())
    text += fmt::format("The first op whose error departs: {} {}{}\n", gradual::to_string(first->a->phase),
                        first->a->site(layer), in_program(*first->a)) +
            describe(*first->a, name_a) + describe(*first->b, name_b);
  else text += fmt::format("No op's error departs by more than a factor of {}.\n", kDeparts);
  text += fmt::format("What the layers contribute to the difference of the losses ({:+.3e} of it explained):\n",
                      a.explained - b.explained);
  text += fmt::format("  {:<28}  {:>11}  {:>16}  {:>16}\n", "layer", "difference", name_a, name_b);
  const std::vector<Contribution> all = contributions();
  for (const Contribution& c : all) {
    if (std::abs(c.a - c.b) < 1e-4 * std::abs(all.front().a - all.front().b)) continue;
    text += fmt::format("  {:<28}  {:>+11.2e}  {:>+16.2e}  {:>+16.2e}\n", c.layer.empty() ? "-" : layer(c.layer),
                        c.a - c.b, c.a, c.b);
  }
  return text;
}

std::string ShadowDiff::to_csv() const {
  std::string text = "phase,op,layer,line,local_a,inherited_a,total_a,local_b,inherited_b,total_b,departs\n";
  for (const Pair& p : pairs_)
    text += fmt::format("{},{},{},{},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{}\n", gradual::to_string(p.a->phase),
                        csv_field(p.a->op), csv_field(p.a->module), csv_field(p.a->line), p.a->local.relative(),
                        p.a->inherited.relative(), p.a->total.relative(), p.b->local.relative(),
                        p.b->inherited.relative(), p.b->total.relative(), p.departs() ? 1 : 0);
  return text;
}

}  // namespace gradual::inspect
