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
  Evaluation(const Objective& objective, std::int64_t samples);

  // Samples a batch should have. Where the model returns its loss, batches are small, because each gives one number.
  std::int64_t batch() const { return batch_; }
  // The outputs of a batch in evaluation, on any device.
  void add(const Outputs& outputs, std::int64_t samples);
  // Sets test_loss, test_samples, the metric, and the accuracy where there is one.
  void write(Result& result) const;

 private:
  void add_losses(const Tensor& outputs, const Tensor& targets);

  const Objective& objective_;
  const MetricRule* rule_;  // null: the user's metric
  std::int64_t batch_, chunk_;
  Score score_;                            // of cross entropy
  std::vector<SampleSum> losses_, sums_;   // of parts of the test data; sums_ of the metric
  std::vector<Tensor> outputs_, targets_;  // for a metric of all samples
};

// The metric of a run: its accuracy, or another one.
double metric_of(const Result& result);

}  // namespace gradual::lab
