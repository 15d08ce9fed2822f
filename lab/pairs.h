// Any two recipes of a comparison, not only against fp32: paired differences over the seeds that both have.
#pragma once

#include <string>
#include <vector>

#include "result.h"

namespace gradual::lab {

struct RecipePair {
  std::string first = {};
  std::string second = {};
  int seeds = 0;           // that both have trained to the end
  Difference metric = {};  // first minus second, with its interval of 95% (accuracy: 0 to 1)
  Difference loss = {};    // the same of test losses
  double better = 0;       // the share of the seeds in which the first is better; equal ones count half
  double p = 0;            // the chance of a difference as large or larger in the metric, were there none
  // Over all pairs together: half the interval that has all differences in it with probability 95% (Bonferroni), and
  // whether the difference holds then (Holm).
  double half_together = 0;
  bool holds = false;
};

// Of all recipes that share a finished seed, each pair once, in the order of the recipes.
std::vector<RecipePair> recipe_pairs(const std::vector<Result>& results);

// RFC 4180 with a header, a line a pair; differences of shares in points.
std::string pairs_csv(const std::vector<RecipePair>& pairs, const MetricInfo& metric);

}  // namespace gradual::lab
