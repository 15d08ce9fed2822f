#include "paired.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "student_t.h"

namespace gradual::lab {
namespace {

// Deviations from the seed's mean by name, as parts of the mean over all its targets.
struct Deviations {
  std::unordered_map<std::uint32_t, double> by_name = {};
  double squares = 0;
  double targets = 0;
};

Deviations deviations(const PairedSeed& seed) {
  Deviations d;
  double sum = 0;
  for (std::size_t i = 0; i < seed.sample.size(); ++i) {
    d.targets += seed.counted[i];
    sum += seed.difference[i];
  }
  d.targets = std::max(1.0, d.targets);
  const double mean = sum / d.targets;
  for (std::size_t i = 0; i < seed.sample.size(); ++i)
    d.by_name[seed.sample[i]] += (seed.difference[i] - seed.counted[i] * mean) / d.targets;
  for (const auto& [name, value] : d.by_name) d.squares += value * value;
  return d;
}

// The variance of the seed's difference if its samples were drawn anew.
double variance_by_samples(const Deviations& d, bool binary) {
  const auto samples = static_cast<double>(d.by_name.size());
  if (samples < 2) return std::numeric_limits<double>::quiet_NaN();
  const double added = binary ? 1 / (d.targets * d.targets) : 0;
  return (d.squares + added) * samples / (samples - 1);
}

// The mean covariance of the differences of two seeds; samples that two seeds test make it.
double covariance(const std::vector<Deviations>& seeds) {
  struct Sums {
    double sum = 0;
    double squares = 0;
  };
  std::unordered_map<std::uint32_t, Sums> by_name;
  for (const Deviations& seed : seeds)
    for (const auto& [name, value] : seed.by_name) {
      Sums& s = by_name[name];
      s.sum += value;
      s.squares += value * value;
    }
  double products = 0;
  for (const auto& [name, s] : by_name) products += s.sum * s.sum - s.squares;
  const auto pairs = static_cast<double>(seeds.size() * (seeds.size() - 1));
  return pairs > 0 ? std::max(0.0, products / pairs) : 0;
}

}  // namespace

double Estimate::degrees(int over) const {
  const double by_seeds = of_seeds / over;
  if (!(by_seeds > 0)) return degrees_of_seeds;
  const double ratio = (by_seeds + shared) / by_seeds;
  return degrees_of_seeds * ratio * ratio;
}

Estimate estimate(const std::vector<double>& differences, double of_samples) {
  Estimate e{.seeds = static_cast<int>(differences.size()), .mean = 0, .of_samples = of_samples};
  for (const double d : differences) e.mean += d / e.seeds;
  double squares = 0;
  for (const double d : differences) squares += (d - e.mean) * (d - e.mean);
  const double prior = std::isnan(of_samples) ? 0 : kPriorDegrees;
  e.degrees_of_seeds = prior + e.seeds - 1;
  const double assumed = prior > 0 ? prior * 2 * of_samples : 0;
  if (e.degrees_of_seeds > 0) e.of_seeds = (assumed + squares) / e.degrees_of_seeds;
  return e;
}

Estimate estimate(const std::vector<PairedSeed>& seeds, bool binary) {
  std::vector<double> means;
  std::vector<Deviations> all;
  double of_samples = 0;
  for (const PairedSeed& seed : seeds) {
    means.push_back(seed.mean);
    all.push_back(deviations(seed));
    of_samples += variance_by_samples(all.back(), binary) / static_cast<double>(seeds.size());
  }
  Estimate e = estimate(means, of_samples);
  e.shared = covariance(all);
  return e;
}

double half_interval(const Estimate& e, double error, int seeds) {
  if (std::isnan(e.of_seeds)) return std::numeric_limits<double>::quiet_NaN();
  Estimate planned = e;
  planned.degrees_of_seeds += seeds - e.seeds;
  return student_quantile(error / 2, planned.degrees(seeds)) * std::sqrt(planned.variance(seeds));
}

double tail_above(const Estimate& e, double value) {
  const double deviation = std::sqrt(e.variance(e.seeds));
  if (!(deviation > 0)) return std::isnan(deviation) ? deviation : e.mean > value ? 0.0 : 1.0;
  return student_tail((e.mean - value) / deviation, e.degrees(e.seeds));
}

}  // namespace gradual::lab
