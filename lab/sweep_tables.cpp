#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "html_page.h"
#include "student_t.h"
#include "sweep.h"

namespace gradual::embedded {
extern const unsigned char sweep_html_in[];
extern const unsigned char sweep_js[];
}  // namespace gradual::embedded

namespace gradual::lab {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kSignificant = 0.05;
constexpr std::size_t kBest = 3;  // combinations that are printed

double percent(const MetricInfo& metric) { return metric.is_share() ? 100 : 1; }

std::string unit(const MetricInfo& metric) { return metric.is_share() ? " in percent" : ""; }

template <class T> std::string counted(T n, const char* what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

// For tables that other programs read.
std::string exact(const SweepResult& r, double value) { return fmt::format("{:.7g}", percent(r.metric) * value); }

std::string number(const SweepResult& r, double value) {
  return fmt::format("{:.{}f}", percent(r.metric) * value, r.metric.is_share() ? 2 : 4);
}

std::string signed_number(const SweepResult& r, double value) {
  return fmt::format("{:+.{}f}", percent(r.metric) * value, r.metric.is_share() ? 2 : 4);
}

std::string with_interval(const SweepResult& r, const TermEffect& e) {
  const std::string effect = signed_number(r, e.effect);
  return std::isnan(e.half) ? effect : effect + " ± " + number(r, e.half);
}

std::string term_name(const SweepResult& r, const FactorialTerm& term) {
  std::string name;
  for (const int f : term.factors) name += (name.empty() ? "" : " x ") + r.factors[static_cast<std::size_t>(f)];
  return name;
}

LevelCounts counts_of(const SweepResult& r) {
  LevelCounts counts;
  for (const std::vector<std::string>& names : r.levels) counts.counts.push_back(static_cast<int>(names.size()));
  return counts;
}

// The names of a combination's levels of these factors.
std::string levels_name(const SweepResult& r, const std::vector<int>& factors, std::size_t combination) {
  LevelCounts counts;
  for (const int f : factors) counts.counts.push_back(static_cast<int>(r.levels[static_cast<std::size_t>(f)].size()));
  const std::vector<int> levels = counts.levels(combination);
  std::string name;
  for (std::size_t k = 0; k < factors.size(); ++k)
    name += (name.empty() ? "" : ", ") +
            r.levels[static_cast<std::size_t>(factors[k])][static_cast<std::size_t>(levels[k])];
  return name;
}

std::vector<int> all_factors(const SweepResult& r) {
  std::vector<int> all(r.factors.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Combinations, the best one first.
std::vector<std::size_t> by_rank(const SweepResult& r) {
  std::vector<std::size_t> order(r.values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return r.metric.gain(mean_of(r.values[a]) - mean_of(r.values[b])) > 0;
  });
  return order;
}

std::vector<const FactorialTerm*> by_share(const SweepResult& r) {
  std::vector<const FactorialTerm*> order;
  for (const FactorialTerm& t : r.effects.terms) order.push_back(&t);
  std::ranges::stable_sort(order, [](const FactorialTerm* a, const FactorialTerm* b) { return a->share > b->share; });
  return order;
}

// Whether a term is more than chance, over all terms together (Bonferroni).
bool holds(const SweepResult& r, const FactorialTerm& term) {
  return term.p * static_cast<double>(r.effects.terms.size()) < kSignificant;
}

std::string p_text(double p) {
  if (std::isnan(p)) return "-";
  return p < 1e-4 ? "<0.0001" : fmt::format("{:.4f}", p);
}

std::size_t width_of(const std::vector<std::string>& texts) {
  std::size_t width = 0;
  for (const std::string& t : texts) width = std::max(width, t.size());
  return width;
}

std::string terms_text(const SweepResult& r) {
  constexpr const char* kHigher = "of three and more";
  constexpr const char* kChance = "seeds";
  std::vector<std::string> names = {kHigher, kChance};
  for (const FactorialTerm& t : r.effects.terms) names.push_back(term_name(r, t));
  const std::size_t width = width_of(names);
  std::string out = fmt::format("{:<{}}    share          F        p\n", "what differs", width);
  for (const FactorialTerm* t : by_share(r))
    out += fmt::format("{:<{}}  {:6.1f}%  {:>9}  {:>7}{}\n", term_name(r, *t), width, 100 * t->share,
                       std::isnan(t->f) ? "-" : fmt::format("{:.1f}", t->f), p_text(t->p), holds(r, *t) ? "*" : "");
  if (r.factors.size() > 2) out += fmt::format("{:<{}}  {:6.1f}%\n", kHigher, width, 100 * r.effects.higher_share);
  if (r.values[0].size() > 1) out += fmt::format("{:<{}}  {:6.1f}%\n", kChance, width, 100 * r.effects.error_share);
  return out;
}

std::string effects_text(const SweepResult& r, const FactorialTerm& term) {
  std::vector<std::string> names;
  for (std::size_t c = 0; c < term.effects.size(); ++c) names.push_back(levels_name(r, term.factors, c));
  const std::string title = term_name(r, term);
  const std::size_t width = std::max(width_of(names), title.size());
  std::string out = fmt::format("\n{:<{}}  {:>9}  effect\n", title, width, r.metric.name.substr(0, 9));
  for (std::size_t c = 0; c < term.effects.size(); ++c)
    out += fmt::format("{:<{}}  {:>9}  {}\n", names[c], width, number(r, term.effects[c].mean),
                       with_interval(r, term.effects[c]));
  return out;
}

TextTable terms_table(const SweepResult& r) {
  TextTable t{.name = "terms", .columns = {"term", "share [%]", "degrees", "F", "p"}};
  t.caption = fmt::format("Analysis of variance of {}; seeds are blocks", r.metric.name);
  for (const FactorialTerm& term : r.effects.terms)
    t.rows.push_back({term_name(r, term), fmt::format("{:.3f}", 100 * term.share), std::to_string(term.degrees),
                      std::isnan(term.f) ? "" : fmt::format("{:.4g}", term.f),
                      std::isnan(term.p) ? "" : fmt::format("{:.4g}", term.p)});
  return t;
}

TextTable effects_table(const SweepResult& r) {
  TextTable t{.name = "effects", .columns = {"term", "levels", r.metric.name, "effect", "half"}, .texts = 2};
  t.caption = fmt::format("Effects on {}{}; half: half the 95% interval", r.metric.name, unit(r.metric));
  for (const FactorialTerm& term : r.effects.terms)
    for (std::size_t c = 0; c < term.effects.size(); ++c) {
      const TermEffect& e = term.effects[c];
      t.rows.push_back({term_name(r, term), levels_name(r, term.factors, c), exact(r, e.mean), exact(r, e.effect),
                        std::isnan(e.half) ? "" : exact(r, e.half)});
    }
  return t;
}

TextTable combinations_table(const SweepResult& r) {
  TextTable t{.name = "combinations", .columns = r.factors, .texts = static_cast<int>(r.factors.size())};
  t.caption = fmt::format("{}{} of each combination and seed", r.metric.name, unit(r.metric));
  t.columns.emplace_back("mean");
  for (std::size_t s = 0; s < r.values[0].size(); ++s) t.columns.push_back(fmt::format("seed {}", s));
  for (std::size_t c = 0; c < r.values.size(); ++c) {
    const std::vector<int> levels = counts_of(r).levels(c);
    std::vector<std::string>& row = t.rows.emplace_back();
    for (std::size_t f = 0; f < levels.size(); ++f) row.push_back(r.levels[f][static_cast<std::size_t>(levels[f])]);
    row.push_back(exact(r, mean_of(r.values[c])));
    for (const double v : r.values[c]) row.push_back(exact(r, v));
  }
  return t;
}

// JSON has no NaN: null stands for it.
Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json term_json(const SweepResult& r, const FactorialTerm& term) {
  Json json = {{"factors", Json::array()}, {"share", finite(term.share)}, {"degrees", term.degrees},
               {"f", finite(term.f)},      {"p", finite(term.p)},         {"effects", Json::array()}};
  for (const int f : term.factors) json["factors"].push_back(r.factors[static_cast<std::size_t>(f)]);
  for (const TermEffect& e : term.effects)
    json["effects"].push_back({{"mean", e.mean}, {"effect", e.effect}, {"half", finite(e.half)}});
  return json;
}

}  // namespace

std::string to_string(const SweepResult& r) {
  const std::size_t seeds = r.values[0].size();
  std::string out =
      fmt::format("{} combinations of {}, {}; {}{}, mean {}\n", r.values.size(), counted(r.factors.size(), "factor"),
                  counted(seeds, "seed"), r.metric.name, unit(r.metric), number(r, r.effects.mean));
  if (r.diverged > 0) out += fmt::format("{} diverged\n", counted(r.diverged, "training"));
  if (r.replaced > 0)
    out += fmt::format("{} without a finite {}; the worst finite one stands for it\n", counted(r.replaced, "training"),
                       r.metric.name);
  if (std::isnan(r.effects.error_share)) return out + "all trainings of a seed end alike: no choice matters\n";
  if (r.effects.error_degrees == 0) out += "no intervals: several seeds or a third factor would give them\n";
  else if (seeds == 1) out += "one seed: interactions of three and more factors count as chance\n";
  out += "\n" + terms_text(r);
  for (const FactorialTerm& t : r.effects.terms)
    if (t.factors.size() == 1 || holds(r, t)) out += effects_text(r, t);
  out += "\nbest combinations\n";
  const std::vector<std::size_t> order = by_rank(r);
  for (std::size_t i = 0; i < std::min(kBest, order.size()); ++i)
    out += fmt::format("{:>9}  {}\n", number(r, mean_of(r.values[order[i]])), levels_name(r, all_factors(r), order[i]));
  return out;
}

std::vector<TextTable> tables_of(const SweepResult& r) {
  return {terms_table(r), effects_table(r), combinations_table(r)};
}

static Json document_of(const SweepResult& r) {
  Json json = {
      {"measure", {{"name", r.metric.name}, {"better", r.metric.better == Direction::higher ? "higher" : "lower"}}},
      {"diverged", r.diverged},
      {"replaced", r.replaced},
      {"mean", r.effects.mean},
      {"higher_share", finite(r.effects.higher_share)},
      {"error_share", finite(r.effects.error_share)},
      {"error_variance", finite(r.effects.error_variance)},
      {"error_degrees", r.effects.error_degrees}};
  for (std::size_t f = 0; f < r.factors.size(); ++f)
    json["factors"].push_back({{"name", r.factors[f]}, {"levels", r.levels[f]}});
  for (const FactorialTerm& term : r.effects.terms) json["terms"].push_back(term_json(r, term));
  for (std::size_t c = 0; c < r.values.size(); ++c) {
    const std::vector<int> levels = counts_of(r).levels(c);
    Json names = Json::array();
    for (std::size_t f = 0; f < levels.size(); ++f) names.push_back(r.levels[f][static_cast<std::size_t>(levels[f])]);
    json["combinations"].push_back({{"levels", names}, {"values", r.values[c]}});
  }
  return json;
}

std::string to_json(const SweepResult& r) { return document_of(r).dump(2) + "\n"; }

std::string options_text(const SweepPart& part) {
  std::string text;
  for (const auto& [name, value] : part.options)
    text += fmt::format(" --{}{}{}", name, value.empty() ? "" : " ", value);
  return text;
}

// Half the 95% interval of a combination's mean over the seeds; NaN without an estimate of chance.
static double half_of_combination(const SweepResult& r) {
  constexpr double kTail = 0.025;
  const Factorial& e = r.effects;
  if (e.error_degrees == 0 || std::isnan(e.error_variance)) return std::nan("");
  return student_quantile(kTail, e.error_degrees) *
         std::sqrt(e.error_variance / static_cast<double>(r.values[0].size()));
}

std::string sweep_html(const SweepResult& r, const std::vector<SweepPart>& parts) {
  Json json = document_of(r);
  json["measure"]["share"] = r.metric.is_share();
  json["combination_half"] = finite(half_of_combination(r));
  for (std::size_t t = 0; t < r.effects.terms.size(); ++t) json["terms"][t]["holds"] = holds(r, r.effects.terms[t]);
  json["parts"] = Json::array();
  for (const SweepPart& part : parts)
    json["parts"].push_back(
        {{"name", part.name}, {"report", part.name + "/report.html"}, {"options", options_text(part)}});
  return html_page(embedded::sweep_html_in, embedded::sweep_js, json.dump());
}

}  // namespace gradual::lab
