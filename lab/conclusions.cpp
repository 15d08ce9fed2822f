#include "conclusions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <span>
#include <tuple>

#include "../amp/recipe.h"
#include "../core/support/error.h"
#include "launch.h"
#include "objective.h"
#include "statistics.h"
#include "verdict.h"

namespace gradual::lab {
namespace {

// A recipe, its first run, and means over its runs.
struct Summary {
  const Result* first = nullptr;
  std::optional<amp::Quantization> quantization = {};
  double accuracy = 0;  // percent
  double loss = 0;      // or the value of another metric; -
  double zero = 0;      // percent
  bool failed = false;
};

// Not only a guess, as for a run that is undecided.
bool is_known_to_fail(const Verdict& v) {
  return verdict_info(v.kind).fails || (v.own && verdict_info(v.own->kind).fails);
}

std::vector<Summary> summaries(const std::vector<Result>& results) {
  std::vector<Summary> all;
  for (const RecipeRuns& r : by_recipe(results)) {
    Summary& s = all.emplace_back(Summary{.first = &r.first()});
    std::vector<double> values;
    for (const Result* run : r.runs) values.push_back((s.first->metric.is_share() ? 100 : 1) * metric_of(*run));
    s.accuracy = spread(values).mean;
    s.loss = r.of(&Result::test_loss).mean;
    s.zero = r.of(&Result::zero_percent).mean;
    s.failed = std::ranges::any_of(r.runs, [](const Result* run) { return is_known_to_fail(run->verdict); });
    try {
      if (!s.first->definition.empty()) s.quantization = amp::recipe_from_json(s.first->definition).quantization;
    } catch (const Error&) {}  // of a later version
  }
  return all;
}

constexpr auto kOperands = std::span(amp::kQuantizerFields).first<6>();  // of the three products

// f of the formats of all operands of products is the same in both, and both round all operands.
template <class F> bool alike(const Summary& a, const Summary& b, F f) {
  return a.quantization && b.quantization && std::ranges::all_of(kOperands, [&](const amp::QuantizerField& o) {
           const auto& qa = (*a.quantization).*o.quantizer;
           const auto& qb = (*b.quantization).*o.quantizer;
           return qa && qb && std::invoke(f, qa->format) == std::invoke(f, qb->format);
         });
}
bool scaled(const Summary& s) {
  return s.quantization && s.quantization->forward_x && !is_any<NoScale>(s.quantization->forward_x->scaling);
}
// The most bits of an operand; 0: one is not rounded.
int most_bits(const Summary& s) {
  int most = 0;
  for (const amp::QuantizerField& o : kOperands) {
    if (!s.quantization || !((*s.quantization).*o.quantizer)) return 0;
    most = std::max(most, ((*s.quantization).*o.quantizer)->format.bits());
  }
  return most;
}

// The accuracy of a is above that of b by more than both intervals.
bool better(const Summary& a, const Summary& b) {
  const auto half = [](const Summary& s) {
    return s.first->difference ? (s.first->metric.is_share() ? 100 : 1) * s.first->difference->half : 0;
  };
  return std::isfinite(a.accuracy) && !a.failed &&
         (b.failed || a.first->metric.gain(a.accuracy - b.accuracy) > std::hypot(half(a), half(b)));
}
std::string with_stop(std::string sentence) { return sentence.ends_with('.') ? sentence : sentence + "."; }

// The step that commands look at where none is named: one that the run has, before it diverges.
constexpr std::int64_t kUsualStep = 50;
StepOfRun usual_step(const Summary& s) {
  std::int64_t last = s.first->steps - 1;
  if (s.first->verdict.step >= 0) last = std::min(last, s.first->verdict.step - 1);
  return {std::clamp<std::int64_t>(last, 0, kUsualStep), s.first->seed};
}

// True if what repeats the run is a call in C++.
bool is_code(const Summary& s) { return s.first->origin.program.empty(); }

Conclusion failure(const Summary& s) {
  const Finding& f = s.first->findings[0];
  std::string sentence = fmt::format("{} {}", s.first->recipe, to_string(s.first->verdict));
  if (f.cause != inspect::Cause::unknown) sentence += fmt::format(": {}", inspect::cause_info(f.cause).sentence);
  sentence += fmt::format(". {}", with_stop(f.sentence));
  if (!f.remedy.empty()) sentence += " Cure: " + with_stop(f.remedy);
  return {Effect::failure, sentence, step_command(s.first->origin, {std::max<std::int64_t>(0, f.step), s.first->seed}),
          is_code(s)};
}

std::string percents(const Summary& s) {
  if (!std::isfinite(s.accuracy)) return "no result";
  const MetricInfo& metric = s.first->metric;
  return metric.is_share() ? fmt::format("{:.1f}%", s.accuracy)
                           : fmt::format("{} {}", metric.name, value_text(metric, s.accuracy));
}

// The value of the metric without its name.
std::string number(const Summary& s) {
  return s.first->metric.is_share() ? percents(s) : value_text(s.first->metric, s.accuracy);
}
// "accuracy and loss", or the loss alone.
std::string what_ends(const Summary& s) {
  const MetricFormula* formula = formula_of(s.first->metric.name);
  const bool is_loss = formula && formula->metric == KnownMetric::loss;
  return is_loss ? "loss" : s.first->metric.name + " and loss";
}

Conclusion scale_effect(const Summary& with, const Summary& without) {
  return {
      Effect::scale,
      fmt::format("{} and {} round to the same {} bits. {} has scales and reaches {}; without scales {} reaches {}.",
                  with.first->recipe, without.first->recipe, most_bits(with), with.first->recipe, percents(with),
                  without.first->recipe, percents(without)),
      diff_command(without.first->origin, with.first->origin, usual_step(without)), is_code(without)};
}

Conclusion range_effect(const Summary& wide, const Summary& fine) {
  const auto exponent = [](const Summary& s) { return s.quantization->forward_x->format.exponent_bits; };
  return {
      Effect::range,
      fmt::format("{} and {} have {} bits each and no scales. With {} bits for the exponent {:.0f}% of the gradients "
                  "are zero and the {} is {}; with {} bits it is {:.0f}% and {}.",
                  wide.first->recipe, fine.first->recipe, most_bits(wide), exponent(wide), wide.zero,
                  wide.first->metric.name, number(wide), exponent(fine), fine.zero, number(fine)),
      diff_command(fine.first->origin, wide.first->origin, usual_step(fine)), is_code(fine)};
}

Conclusion loss_effect(const Summary& s, double fp32) {
  const Difference& d = *s.first->loss_difference;
  const std::string interval = std::isnan(d.half) ? "" : fmt::format(" ± {:.3f}", d.half);
  return {Effect::loss,
          fmt::format("The {} of {} is not certainly {} fp32's, but its test loss is above: {:.3f}, and fp32's "
                      "{:.3f} (+{:.3f}{}).",
                      s.first->metric.name, s.first->recipe, s.first->metric.is_share() ? "below" : "worse than",
                      s.loss, fp32, d.mean, interval),
          step_command(s.first->origin, usual_step(s)), is_code(s)};
}

}  // namespace

std::vector<Conclusion> conclusions(const std::vector<Result>& results) {
  const std::vector<Summary> all = summaries(results);
  const auto base = std::ranges::find_if(all, [](const Summary& s) { return s.first->recipe == kBaseline; });
  const double fp32 = base == all.end() ? std::nan("") : base->loss;
  std::vector<Conclusion> made;
  std::vector<const Summary*> told;  // the worse ones of pairs
  // The first pair, in the order of the recipes, that shows the effect.
  const auto pair = [&](auto shows, auto effect) {
    for (const Summary& a : all)
      for (const Summary& b : all) {
        if (&a == &b || !better(a, b) || !shows(a, b)) continue;
        told.push_back(&b);
        made.push_back(effect(a, b));
        return;
      }
  };
  const auto fields = [](const Format& f) { return std::tuple(f.exponent_bits, f.mantissa_bits, f.table); };
  const auto more_range = [](const Summary& a, const Summary& b) {
    const Format& x = a.quantization->forward_x->format;
    const Format& y = b.quantization->forward_x->format;
    return !x.table && !y.table && x.exponent_bits > y.exponent_bits && y.exponent_bits > 1;  // no integers
  };
  pair([&](auto& a, auto& b) { return scaled(a) && !scaled(b) && alike(a, b, fields); }, scale_effect);
  pair([&](auto& a, auto& b) { return !scaled(a) && !scaled(b) && alike(a, b, &Format::bits) && more_range(a, b); },
       range_effect);
  std::vector<Conclusion> failures;
  for (const Summary& s : all)
    if (s.failed && s.first->verdict.kind != VerdictKind::worse_loss && !s.first->findings.empty() &&
        std::ranges::find(told, &s) == told.end() && failures.size() < 2)
      failures.push_back(failure(s));
  made.insert(made.begin(), failures.begin(), failures.end());
  const Summary* loser = nullptr;
  const Summary* narrowest = nullptr;
  for (const Summary& s : all) {
    const VerdictKind kind = s.first->verdict.kind;
    if (kind == VerdictKind::worse_loss && s.first->loss_difference && (!loser || s.loss > loser->loss)) loser = &s;
    if (kind != VerdictKind::matches || most_bits(s) == 0) continue;
    if (!narrowest || most_bits(s) < most_bits(*narrowest)) narrowest = &s;
  }
  if (loser) made.push_back(loss_effect(*loser, fp32));
  if (narrowest && std::isfinite(fp32) && !base->failed && beats_constant(*base->first))
    made.push_back({Effect::narrowest,
                    fmt::format("{} rounds every operand of a product to {} bits or fewer and ends where fp32 does, in "
                                "{}. No recipe here does so with fewer.",
                                narrowest->first->recipe, most_bits(*narrowest), what_ends(*narrowest)),
                    search_command(narrowest->first->origin, usual_step(*narrowest)), is_code(*narrowest)});
  if (made.size() > 5) made.resize(5);
  return made;
}

}  // namespace gradual::lab
