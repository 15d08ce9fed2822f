#include "pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "../inspect/csv_text.h"
#include "decision.h"
#include "objective.h"
#include "paired.h"
#include "statistics.h"

namespace gradual::lab {
namespace {

constexpr double kError = 0.05;

// The runs of the same seeds that ended well.
Pairs common_seeds(const RecipeRuns& first, const RecipeRuns& second) {
  const auto well = [](const Result& r) {
    return r.status == Status::ok && std::isfinite(metric_of(r)) && std::isfinite(r.test_loss);
  };
  Pairs pairs;
  for (const Result* a : first.runs)
    for (const Result* b : second.runs)
      if (a->seed == b->seed && well(*a) && well(*b)) pairs.emplace_back(a, b);
  return pairs;
}

double share_better(const Pairs& pairs) {
  double better = 0;
  for (const auto& [a, b] : pairs) {
    const double gain = a->metric.gain(metric_of(*a) - metric_of(*b));
    better += gain > 0 ? 1 : gain == 0 ? 0.5 : 0;
  }
  return better / static_cast<double>(pairs.size());
}

// Of both sides; NaN where nothing is known of the variance.
double chance_of(const Estimate& e) {
  const double above = tail_above(e, 0);
  return std::min(1.0, 2 * std::min(above, 1 - above));
}

}  // namespace

std::vector<RecipePair> recipe_pairs(const std::vector<Result>& results) {
  const std::vector<RecipeRuns> recipes = by_recipe(results);
  std::vector<RecipePair> all;
  std::vector<double> chances;
  for (std::size_t i = 0; i < recipes.size(); ++i)
    for (std::size_t j = i + 1; j < recipes.size(); ++j) {
      const Pairs pairs = common_seeds(recipes[i], recipes[j]);
      if (pairs.empty()) continue;
      RecipePair& p = all.emplace_back();
      p.first = recipes[i].first().recipe;
      p.second = recipes[j].first().recipe;
      p.seeds = static_cast<int>(pairs.size());
      p.metric = metric_difference(pairs, kError);
      p.loss = loss_difference(pairs, kError);
      p.better = share_better(pairs);
      p.p = chance_of(p.metric.estimate);
      chances.push_back(p.p);
    }
  const std::vector<bool> holds = hold_together(chances, kError);
  for (std::size_t i = 0; i < all.size(); ++i) {
    RecipePair& p = all[i];
    p.holds = holds[i];
    p.half_together = half_interval(p.metric.estimate, kError / static_cast<double>(all.size()), p.seeds);
  }
  return all;
}

std::string pairs_csv(const std::vector<RecipePair>& pairs, const MetricInfo& metric) {
  const double scale = metric.is_share() ? 100 : 1;
  std::string text =
      "first,second,metric,seeds,difference,half_interval,half_interval_together,p,holds_together,share_of_seeds_"
      "better,"
      "loss_difference,loss_half_interval\n";
  const auto number = [](double value) { return std::isfinite(value) ? fmt::format("{:.6g}", value) : std::string(); };
  for (const RecipePair& p : pairs)
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{}\n", inspect::csv_field(p.first),
                        inspect::csv_field(p.second), inspect::csv_field(metric.name), p.seeds,
                        number(scale * p.metric.mean), number(scale * p.metric.half), number(scale * p.half_together),
                        number(p.p), p.holds ? 1 : 0, number(p.better), number(p.loss.mean), number(p.loss.half));
  return text;
}

}  // namespace gradual::lab
