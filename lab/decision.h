// The answer that differences of accuracy and loss give: matches, worse, better, or none yet.
#pragma once

#include <vector>

#include "result.h"

namespace gradual::lab {

// What counts as equal, and how often an answer may be wrong.
struct Judging {
  double margin = 0.5;       // points of accuracy
  double loss_margin = 10;   // percent of fp32's test loss; infinite: the loss does not matter
  double metric_margin = 5;  // percent of fp32's value, of a metric that is no share
  double error = 0.05;       // of one look at the results: the intervals hold the true differences but for this chance
};

// What the first of two differences is of.
struct Compared {
  MetricInfo metric = {};
  double fp32 = 0;  // the mean over the same seeds; read if the metric is no share
};

// One of matches, worse, worse_loss, better, undecided, with its facts. fp32_loss: its mean over the same seeds.
// One seed does not tell how much a training differs from another. It never matches, and it is worse or better only by
// more than a margin.
Outcome decision(const Difference& accuracy, const Difference& loss, double fp32_loss, const Judging& judging,
                 const Compared& compared = {});

// Holm's method (1979): of tests with these p, those that hold together with an error of at most `error` over all. NaN
// never holds.
std::vector<bool> hold_together(const std::vector<double>& p, double error);

}  // namespace gradual::lab
