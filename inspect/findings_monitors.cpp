// Findings from what monitors see of activations, attention and mixtures of experts. Each is weak: it nominates, and a
// trial of its cure decides.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "../amp/site_name.h"

#include "findings.h"

namespace gradual::inspect::rules {
namespace {

constexpr double kLarge = 100;        // of the mean square of the median of the others: ten times its size
constexpr double kFew = 0.25;         // of the channels
constexpr std::size_t kChannels = 8;  // fewer have no median to speak of
constexpr double kChanged = 0.02;     // of the tokens
constexpr double kMoved = 0.25;       // of a logit
constexpr double kWeak = 0.01;        // of a severity: a sure finding with an equal trial comes first

std::string router_of(const std::string& mixture) { return mixture.empty() ? "router" : mixture + ".router"; }

// The quantisation of a layer's products; null: none.
const amp::Quantization* quantization_of(const Evidence& e, const amp::QuantizationState& state,
                                         const std::string& layer) {
  return e.recipe->quantization ? state.of_module(amp::site_name(layer).layer) : nullptr;
}

// True if elements of different channels of x have one scale.
bool shares_scales(const Quantizer& q) {
  if (is_any<NoScale, FixedScale>(q.scaling)) return false;
  return unit_of(q.scaling) != ScaleUnit::block || block_size(q.scaling) > 1;
}

// The channels that are far larger than the median of the others, and how much larger the largest is. The others are
// all but the largest quarter, without those that are 0 in all samples.
struct LargeChannels {
  std::size_t count = 0;
  double ratio = 0;  // of sizes
};
LargeChannels large_channels(const ActivationRow& row) {
  std::vector<double> squares = row.features;
  const auto is_finite = [](double s) { return std::isfinite(s); };
  if (squares.size() < kChannels || !std::ranges::all_of(squares, is_finite)) return {};
  std::ranges::sort(squares);
  const auto largest = squares.end() - static_cast<std::ptrdiff_t>(kFew * static_cast<double>(squares.size()));
  const auto smallest = std::ranges::upper_bound(squares, 0.0);
  if (!(smallest < largest)) return {};
  const double median = *(smallest + (largest - smallest) / 2);
  const auto first = std::ranges::upper_bound(squares, kLarge * median);
  return {static_cast<std::size_t>(squares.end() - first), std::sqrt(squares.back() / median)};
}

std::string layer_text(const Evidence& e, const std::string& path) {
  return path.empty() ? "the model" : "layer " + e.names(path);
}

Finding finding_of(const Evidence& e, Cause cause, const std::string& site) {
  Finding f{.cause = cause, .site = site};
  f.step = e.late->step;
  f.weak = true;
  f.severity = kWeak;
  return f;
}

// The layer whose large channels are the largest. Its cure changes the recipe's own quantisation: it reaches neither
// layers that have another by `modules` nor later phases of a schedule.
Found of_outlier_channels(const Evidence& e, const amp::QuantizationState& state) {
  if (!e.recipe->schedule.empty()) return {};
  const ActivationRow* worst = nullptr;
  LargeChannels most;
  for (const ActivationRow& row : e.late->activations) {
    const amp::Quantization* const q = quantization_of(e, state, row.layer);
    if (row.operand != kLayerInput || q != &state.quantization() || q->outliers || !q->forward_x ||
        !shares_scales(*q->forward_x))
      continue;
    const LargeChannels large = large_channels(row);
    const bool few = static_cast<double>(large.count) <= kFew * static_cast<double>(row.features.size());
    if (large.count == 0 || !few || large.ratio <= most.ratio) continue;
    worst = &row;
    most = large;
  }
  if (!worst) return {};
  const std::size_t channels = worst->features.size();
  Finding f = finding_of(e, Cause::outlier_channels, worst->layer);
  f.operands = {"forward_x"};
  const bool one = most.count == 1;
  f.sentence = fmt::format(
      "{}: {} of the {} channels of x {} {:.3g} times as large as the median of the others, and {} scales with them",
      layer_text(e, worst->layer), most.count, channels, one ? "is" : "are up to", most.ratio,
      one ? "shares" : "share");
  f.cures = {cures::outlier_channels(*e.recipe, static_cast<double>(most.count) / static_cast<double>(channels))};
  return f;
}

Found of_routes(const Evidence& e, const amp::QuantizationState& state) {
  const RouteRow* worst = nullptr;
  for (const RouteRow& row : e.late->routes) {
    const amp::Quantization* const q = quantization_of(e, state, router_of(row.path));
    if (!q || !(q->forward_x || q->forward_w) || !(row.changed.changed_share() > kChanged)) continue;
    if (!worst || row.changed.changed_share() > worst->changed.changed_share()) worst = &row;
  }
  if (!worst) return {};
  const std::string router = router_of(worst->path);
  Finding f = finding_of(e, Cause::changed_routes, router);
  f.sentence = fmt::format("{}: {} of the tokens go to other experts than in f64", layer_text(e, router),
                           percent(worst->changed.changed_share()));
  f.cures = {cures::router_in_f32(*e.recipe, router, e.names)};
  return f;
}

// What rounding an operand of a product of these scores moves a score by, as a part of it; 0: it is not rounded.
double relative_error(const std::optional<Quantizer>& q) {
  if (!q) return 0;
  return q->format.table ? 0 : std::exp2(-(q->format.mantissa_bits + 1));
}

Found of_logits(const Evidence& e, const amp::QuantizationState& state) {
  const ProbabilityRow* worst = nullptr;
  double most = kMoved;
  for (const ProbabilityRow& row : e.late->probabilities) {
    const amp::Quantization* const q = quantization_of(e, state, row.layer);
    if (!row.attention || !q || !q->attention) continue;
    const double error = std::max(relative_error(q->attention->q), relative_error(q->attention->k));
    if (!(error * row.largest_logit > most)) continue;
    most = error * row.largest_logit;
    worst = &row;
  }
  if (!worst) return {};
  Finding f = finding_of(e, Cause::attention_logits, worst->layer);
  f.sentence = fmt::format(
      "{}: its largest logit is {:.3g}, and rounding q and k moves it by about {:.2g}; the "
      "entropy of its probabilities is {:.2g}",
      layer_text(e, worst->layer), worst->largest_logit, most, worst->entropy());
  for (const char* operand : {"q", "k"}) {
    const std::string site = worst->layer.empty() ? operand : worst->layer + "." + operand;
    f.exact.push_back({.part = ExactPart::operand, .site = site});
  }
  f.cures = {cures::attention_scores_in_f32(*e.recipe)};
  return f;
}

}  // namespace

std::vector<Finding> of_monitors(const Evidence& e) {
  std::vector<Finding> found;
  if (!e.recipe->quantization || !e.late) return found;
  const amp::QuantizationState state(e.quantization ? *e.quantization : *e.recipe->quantization);
  for (const auto rule : {of_outlier_channels, of_routes, of_logits})
    if (Found f = rule(e, state)) found.push_back(*std::move(f));
  return found;
}

}  // namespace gradual::inspect::rules
