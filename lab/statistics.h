// Statistics over the seeds of a recipe: seeds are samples.
#pragma once

#include <utility>
#include <vector>

#include "result.h"

namespace gradual::lab {

// Of the finite values alone. deviation: the standard deviation of a sample (divided by n - 1); NaN below two values.
struct Spread {
  int count = 0;
  double mean = std::numeric_limits<double>::quiet_NaN(), deviation = std::numeric_limits<double>::quiet_NaN();
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
// In the order of the results, in which a recipe's runs follow each other.
std::vector<RecipeRuns> by_recipe(const std::vector<Result>& results);

// A run and fp32's run of the same seed: both saw the same batches.
using Pairs = std::vector<std::pair<const Result*, const Result*>>;
// The runs of `recipe` that ended well, with fp32's runs in `results` or `references` that did.
Pairs pairs_with_fp32(const std::vector<Result>& results, const std::vector<Result>& references,
                      const std::string& recipe);

// The mean difference of test accuracies (0 to 1) and half its interval of 95%. pairs is not empty. With one seed: the
// difference of two shares of as many test samples (normal approximation). With several: the mean of paired
// differences. A few seeds estimate its variance badly, so the variance of one seed is added with the weight of four
// seeds (a moderated t: Smyth 2004).
Difference accuracy_difference(const Pairs& pairs);
// Of the runs' metric: accuracy_difference(), or of another one the mean of paired differences. The variance of one seed
// is that of the paired differences of its samples (Result::samples), and enters as there. Without samples: the interval
// of Student's t over the seeds; NaN for one seed.
Difference metric_difference(const Pairs& pairs);
// Of test losses: the mean of paired differences and half the interval of Student's t; NaN for one pair.
Difference loss_difference(const Pairs& pairs);

}  // namespace gradual::lab
