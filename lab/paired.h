// The difference of two recipes from paired results: the same seeds, and within a seed the same samples.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace gradual::lab {

// The differences of one seed, one a sample, as sums over the targets that count.
struct PairedSeed {
  std::vector<std::uint32_t> sample = {};  // names; a sample that several seeds test has one name
  std::vector<double> counted = {};        // targets
  std::vector<double> difference = {};
  double mean = 0;  // the difference of the runs
};

// The mean difference over seeds, and what its variance is made of (docs/why.md).
struct Estimate {
  int seeds = 0;
  double mean = std::numeric_limits<double>::quiet_NaN();
  double of_seeds = std::numeric_limits<double>::quiet_NaN();  // variance of the difference of one seed
  double degrees_of_seeds = 0;                                 // degrees of freedom of that
  double shared = 0;  // covariance of two seeds: they test the same samples. More seeds do not lower it
  double of_samples = std::numeric_limits<double>::quiet_NaN();  // variance of one seed's difference by its samples

  // Of the mean over so many seeds.
  double variance(int over) const { return of_seeds / over + shared; }
  // Degrees of freedom of that variance (Satterthwaite's, with many samples: Hillis 2007).
  double degrees(int over) const;
};

// Weight, in degrees of freedom, of the assumption that trainings add as much variance as samples do.
inline constexpr double kPriorDegrees = 2;

// seeds is not empty. binary: scores are 0 or 1 a target, and half a discordant pair is added on either side, so that
// equal answers do not count as no variance (Agresti and Min 2005).
Estimate estimate(const std::vector<PairedSeed>& seeds, bool binary);
// Where seeds have no samples: the variance of one seed's difference by its samples is given. NaN: unknown, the seeds
// alone tell.
Estimate estimate(const std::vector<double>& differences, double of_samples);

// Half the interval that has the true mean in it with probability 1 - error, for so many seeds.
double half_interval(const Estimate& estimate, double error, int seeds);
// The probability of a mean as high as the estimated one or higher, were the true one `value`.
double tail_above(const Estimate& estimate, double value);

}  // namespace gradual::lab
