#include "statistics.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "objective.h"
#include "verdict.h"

namespace gradual::lab {
namespace {

// The 97.5% quantile of Student's t with 1, 2, .. degrees of freedom.
double student(int degrees) {
  static constexpr double kT[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                  2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086};
  return degrees <= static_cast<int>(std::size(kT)) ? kT[degrees - 1] : 1.96 + 2.4 / degrees;
}

bool ended_well(const Result& r) {
  return r.status == Status::ok && std::isfinite(metric_of(r)) && std::isfinite(r.test_loss);
}

}  // namespace

Spread spread(const std::vector<double>& values) {
  Spread s;
  double sum = 0, squares = 0;
  for (const double v : values)
    if (std::isfinite(v)) sum += v, ++s.count;
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
    if (all.empty() || all.back().first().recipe != r.recipe) all.emplace_back();
    all.back().runs.push_back(&r);
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

namespace {

constexpr double kPrior = 4;  // degrees of freedom of the variance that one seed has

// The interval of a mean over seeds, with the variance that one seed has.
Difference moderated(const Spread& s, double one) {
  if (s.count == 1) return {s.mean, 1.96 * std::sqrt(one)};
  const double squares = (s.count - 1) * s.deviation * s.deviation;
  return {s.mean, student(s.count + 3) * std::sqrt((kPrior * one + squares) / (kPrior + s.count - 1) / s.count)};
}

// The variance of the difference of two runs' metrics, from their samples; none if they have none in common.
std::optional<double> variance_of_samples(const Result& run, const Result& base) {
  const SampleScores &ours = run.samples, &theirs = base.samples;
  if (ours.size() < 2 || ours.sample != theirs.sample || ours.score.size() != ours.size()) return {};
  double all = 0;
  for (const float counted : ours.counted) all += counted;
  const double mean = metric_of(run) - metric_of(base);
  double squares = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double above = static_cast<double>(ours.score[i]) - theirs.score[i] - mean * ours.counted[i];
    squares += above * above;
  }
  const auto count = static_cast<double>(ours.size());
  return squares / (all * all) * count / (count - 1);
}

}  // namespace

Difference accuracy_difference(const Pairs& pairs) {
  std::vector<double> differences;
  double share = 0;
  for (const auto& [run, base] : pairs) {
    differences.push_back(run->test_accuracy - base->test_accuracy);
    share += (run->test_accuracy + base->test_accuracy) / 2;
  }
  const Spread s = spread(differences);
  const auto samples = static_cast<double>(std::max<std::int64_t>(1, pairs[0].second->test_samples));
  share = std::clamp(share / s.count, 1 / samples, 1 - 1 / samples);
  const double one = 2 * share * (1 - share) / samples;
  return moderated(s, one);
}

Difference metric_difference(const Pairs& pairs) {
  if (pairs[0].second->metric == MetricInfo{}) return accuracy_difference(pairs);
  std::vector<double> differences;
  double variance = 0;
  bool by_samples = true;
  for (const auto& [run, base] : pairs) {
    differences.push_back(metric_of(*run) - metric_of(*base));
    const std::optional<double> one = variance_of_samples(*run, *base);
    by_samples = by_samples && one;
    variance += one.value_or(0) / static_cast<double>(pairs.size());
  }
  const Spread s = spread(differences);
  if (by_samples) return moderated(s, variance);
  return {s.mean, s.count > 1 ? student(s.count - 1) * s.deviation / std::sqrt(s.count) : s.deviation};
}

Difference loss_difference(const Pairs& pairs) {
  std::vector<double> differences;
  for (const auto& [run, base] : pairs) differences.push_back(run->test_loss - base->test_loss);
  const Spread s = spread(differences);
  return {s.mean, s.count > 1 ? student(s.count - 1) * s.deviation / std::sqrt(s.count) : s.deviation};
}

}  // namespace gradual::lab
