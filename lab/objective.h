// What a run trains on and what its result is measured by.
#pragma once

#include <cstdint>
#include <vector>

#include "loss.h"
#include "metric.h"
#include "result.h"
#include "tasks.h"

namespace gradual::lab {

// The loss and the metric of a run.
struct Objective {
  Loss loss;
  Metric metric;
  MetricInfo info;  // of the metric
};

// The chosen ones, and the data's own where none is chosen. A chosen loss brings its metric along (metric_for). Error
// for unknown names, and for a metric that the loss cannot have.
Objective objective_of(const LabData& data, const Loss& loss, const Metric& metric);

// The loss and the metric on the test data, batch by batch.
class Evaluation {
 public:
  // by_sample: also what each sample gives, for Result::samples.
  Evaluation(const Objective& objective, std::int64_t samples, bool by_sample);

  // Samples a batch should have. Where the model returns its loss, batches are small: each gives one number, and stands
  // for a sample.
  std::int64_t batch() const { return batch_; }
  // The outputs for a batch in evaluation, on any device; the batch is on the CPU.
  void add(const Outputs& outputs, const data::Batch& batch);
  // Sets test_loss, test_samples, the metric, the accuracy where there is one, and the samples. The mean of the
  // samples' scores is the metric. Where that is not a mean, it is so to first order: their spread gives that of the
  // metric.
  void write(Result& result) const;

 private:
  void add_losses(const Outputs& outputs, const data::Batch& batch);
  void add_sums(const Tensor& outputs, const Tensor& targets);
  void set_scores(SampleScores& samples, const std::vector<SampleSum>& sums, double value, double slope) const;

  const Objective& objective_;
  const MetricFormula* formula_;  // null: the user's metric
  bool by_sample_;
  std::int64_t batch_;
  Score score_;  // of cross entropy
  SampleSum loss_;
  std::vector<SampleSum> sums_;            // of the metric, of each sample
  std::vector<Tensor> outputs_, targets_;  // for a metric of all samples
  SampleScores samples_;
};

// The metric of the best output that is the same for all samples (a class, or the mean target): a run that learned is
// better. NaN where it is not known.
double constant_metric(const Objective& objective, const data::Dataset& test);

// Whether a run is better than the best constant output, by more than chance. True if that output is not known.
bool beats_constant(const Result& result);

// The metric of a run: its accuracy, or another one.
double metric_of(const Result& result);

}  // namespace gradual::lab
