// What the quality of a trained model is measured by, on the test data.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/tensor/tensor.h"
#include "sample_scores.h"

namespace gradual::lab {

// The name of a metric and how its values read. Shares from 0 to 1 have the unit "%"; others are numbers without one,
// unless the user's metric names it.
inline constexpr std::string_view kShareUnit = "%";
struct MetricInfo {
  std::string name = "accuracy";
  std::string unit = "%";
  Direction better = Direction::higher;
  bool operator==(const MetricInfo&) const = default;

  bool is_share() const { return unit == kShareUnit; }
  bool is_accuracy() const { return *this == MetricInfo{}; }
  // A difference of two values, above 0 if the first is the better one.
  double gain(double difference) const { return better == Direction::higher ? difference : -difference; }
};
// "96.53%", "0.1204", "3.1 K".
std::string value_text(const MetricInfo& info, double value);
// "+0.0120 ± 0.0034"; of a share in points, "-2.22 ± 2.84". Without an interval that is not finite.
std::string difference_text(const MetricInfo& info, double mean, double half);

// The value of a metric for the outputs on all test samples [N, ..], in f32 (f64 of an f64 model), and their targets.
using MetricFunction = std::function<double(const Tensor& outputs, const Tensor& targets)>;

enum class KnownMetric : std::uint8_t { accuracy, top5, loss, perplexity, bits, mse, rmse, mae, r2, f1 };

// A metric: one of metric_names(), or a function with a name.
//   accuracy    share of the right classes (of the right signs, for logits of bce)
//   top5        share of the classes among the five largest logits
//   loss        the loss on the test data
//   perplexity  e to the mean loss; of cross_entropy and of a model that returns it
//   bits        the mean loss / ln 2: of characters, bits per character
//   mse, rmse   the mean of the squared differences, and its root
//   mae         the mean of their magnitudes
//   r2          1 - squared differences / squared differences of the targets from their mean over the samples
//   f1          harmonic mean of precision and recall: of the positive class for one logit, else the mean over classes
struct Metric {
  Metric() = default;                                    // the data's own
  Metric(const char* known) : name(known) {}             // NOLINT(google-explicit-constructor)
  Metric(std::string known) : name(std::move(known)) {}  // NOLINT(google-explicit-constructor)
  Metric(MetricInfo own, MetricFunction f) : name(own.name), function(std::move(f)), info(std::move(own)) {}

  std::string name = {};  // empty: the data's own
  MetricFunction function = {};
  MetricInfo info = {};  // of a function
};
std::vector<std::string> metric_names();
// Error for an unknown name, with the allowed ones.
MetricInfo info_of(const Metric& metric);

// Sums over a sample, or over a few: a metric is a function of the ratio of both.
struct SampleSum {
  double sum = 0;
  double weight = 0;
};
// How a metric follows from sums over samples. Either `sums` or `whole` is set; neither for metrics of the loss, whose
// sums are those of the loss.
struct MetricFormula {
  KnownMetric metric;
  MetricInfo info;
  std::vector<SampleSum> (*sums)(const Tensor& outputs, const Tensor& targets) = nullptr;  // of each sample
  bool of_all = false;  // `sums` is called once with all samples, not batch by batch
  double (*whole)(const Tensor& outputs, const Tensor& targets) = nullptr;
  double (*value)(double ratio) = nullptr;
  double (*slope)(double ratio) = nullptr;  // the derivative of `value`
};
// Null for a metric of the user.
const MetricFormula* formula_of(const std::string& name);
const MetricFormula* formula_of(const Metric& metric);

}  // namespace gradual::lab
