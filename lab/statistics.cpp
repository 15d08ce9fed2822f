#include "statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "objective.h"
#include "verdict.h"

namespace gradual::lab {
namespace {

bool ended_well(const Result& r) {
  return r.status == Status::ok && std::isfinite(metric_of(r)) && std::isfinite(r.test_loss);
}

// True if the two runs of each pair have results of the same samples.
bool have_samples(const Pairs& pairs) {
  return std::ranges::all_of(pairs, [](const auto& pair) {
    const auto& [run, base] = pair;
    return !run->samples.empty() && run->samples.sample == base->samples.sample;
  });
}

PairedSeed paired(const Result& run, const Result& base, std::vector<float> SampleScores::*field, double mean) {
  PairedSeed seed{.sample = run.samples.sample, .mean = mean};
  const std::vector<float>& ours = run.samples.*field;
  const std::vector<float>& theirs = base.samples.*field;
  for (std::size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
    seed.counted.push_back(run.samples.counted[i]);
    seed.difference.push_back(static_cast<double>(ours[i]) - theirs[i]);
  }
  return seed;
}

// Of the difference of two accuracies on different samples.
double variance_of_shares(const Pairs& pairs) {
  double share = 0;
  for (const auto& [run, base] : pairs)
    share += (metric_of(*run) + metric_of(*base)) / 2 / static_cast<double>(pairs.size());
  const auto samples = static_cast<double>(std::max<std::int64_t>(1, pairs[0].second->test_samples));
  share = std::clamp(share, 1 / samples, std::max(1 / samples, 1 - 1 / samples));
  return 2 * share * (1 - share) / samples;
}

Difference with_interval(const Estimate& e, double error) {
  return {e.mean, half_interval(e, error, e.seeds), error, e};
}

}  // namespace

Spread spread(const std::vector<double>& values) {
  Spread s;
  double sum = 0;
  double squares = 0;
  for (const double v : values) {
    if (!std::isfinite(v)) continue;
    sum += v;
    ++s.count;
  }
  if (s.count == 0) return s;
  s.mean = sum / s.count;
  for (const double v : values)
    if (std::isfinite(v)) squares += (v - s.mean) * (v - s.mean);
  if (s.count > 1) s.deviation = std::sqrt(squares / (s.count - 1));
  return s;
}

std::vector<RecipeRuns> by_recipe(const std::vector<Result>& results) {
  std::vector<RecipeRuns> all;
  for (const Result& r : results) {
    const auto of_recipe = [&](const RecipeRuns& row) { return row.first().recipe == r.recipe; };
    auto row = std::ranges::find_if(all, of_recipe);
    if (row == all.end()) row = all.emplace(all.end());
    row->runs.push_back(&r);
  }
  return all;
}

Pairs pairs_with_fp32(const std::vector<Result>& results, const std::vector<Result>& references,
                      const std::string& recipe) {
  Pairs pairs;
  for (const Result& r : results) {
    const Result* base = r.recipe == recipe && ended_well(r) ? baseline(results, references, r) : nullptr;
    if (base && ended_well(*base)) pairs.emplace_back(&r, base);
  }
  return pairs;
}

Difference metric_difference(const Pairs& pairs, double error) {
  std::vector<double> differences;
  std::vector<PairedSeed> seeds;
  for (const auto& [run, base] : pairs) {
    differences.push_back(metric_of(*run) - metric_of(*base));
    seeds.push_back(paired(*run, *base, &SampleScores::score, differences.back()));
  }
  const bool binary = pairs[0].first->metric.is_accuracy();
  if (have_samples(pairs)) return with_interval(estimate(seeds, binary), error);
  const bool is_accuracy = pairs[0].second->metric.is_accuracy();
  const double by_samples = is_accuracy ? variance_of_shares(pairs) : std::numeric_limits<double>::quiet_NaN();
  return with_interval(estimate(differences, by_samples), error);
}

Difference loss_difference(const Pairs& pairs, double error) {
  std::vector<double> differences;
  std::vector<PairedSeed> seeds;
  for (const auto& [run, base] : pairs) {
    differences.push_back(run->test_loss - base->test_loss);
    seeds.push_back(paired(*run, *base, &SampleScores::loss, differences.back()));
  }
  if (have_samples(pairs)) return with_interval(estimate(seeds, false), error);
  return with_interval(estimate(differences, std::numeric_limits<double>::quiet_NaN()), error);
}

}  // namespace gradual::lab
