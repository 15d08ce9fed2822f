// Statistics over the seeds of a recipe: seeds are samples.
#pragma once

#include <utility>
#include <vector>

#include "result.h"

namespace gradual::lab {

// Of the finite values alone. deviation: the standard deviation of a sample (divided by n - 1); NaN below two values.
struct Spread {
  int count = 0;
  double mean = std::numeric_limits<double>::quiet_NaN();
  double deviation = std::numeric_limits<double>::quiet_NaN();
};
Spread spread(const std::vector<double>& values);

// The runs of a recipe, one a seed.
struct RecipeRuns {
  std::vector<const Result*> runs = {};
  const Result& first() const { return *runs[0]; }
  template <class T> Spread of(T Result::*field) const {
    std::vector<double> values;
    for (const Result* r : runs) values.push_back(static_cast<double>(r->*field));
    return spread(values);
  }
};
// In the order of the recipes' first runs.
std::vector<RecipeRuns> by_recipe(const std::vector<Result>& results);

// A run and fp32's run of the same seed: both saw the same batches.
using Pairs = std::vector<std::pair<const Result*, const Result*>>;
// The runs of `recipe` that ended well, with fp32's runs in `results` or `references` that did.
Pairs pairs_with_fp32(const std::vector<Result>& results, const std::vector<Result>& references,
                      const std::string& recipe);

// The mean difference of the metric (of accuracy: 0 to 1) and half the interval that has the true one in it with
// probability 1 - error, from the samples of each pair (paired.h). pairs is not empty. Where a file of an earlier
// version has no samples, each seed's variance is taken for that of two shares of as many test samples; a metric that
// is not a mean over samples has the seeds alone.
Difference metric_difference(const Pairs& pairs, double error = 0.05);
// The same of test losses. Without samples the seeds alone tell; half is NaN for one pair.
Difference loss_difference(const Pairs& pairs, double error = 0.05);

}  // namespace gradual::lab
