#include "objective.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>

#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"

namespace gradual::lab {
namespace {

constexpr std::int64_t kBatch = 256;
constexpr std::int64_t kLossBatches = 64;  // of the test data at least, where each is a number

bool is_loss_metric(const MetricFormula* formula) { return formula && !formula->sums && !formula->whole; }

Tensor wide(const Tensor& x) { return x.dtype() == DType::f64 ? x : x.to(DType::f32); }

bool is_of_classes(const Loss& loss) { return loss.known() == KnownLoss::cross_entropy; }

// What a metric is computed from, with what an error says of it.
struct MetricNeeds {
  std::vector<KnownMetric> metrics;
  std::vector<KnownLoss> losses;  // those whose outputs and targets it reads
  const char* allowed;
};

const std::vector<MetricNeeds>& metric_needs() {
  using M = KnownMetric;
  using enum KnownLoss;
  static const std::vector<MetricNeeds> all{
      {{M::perplexity, M::bits},
       {cross_entropy, output},
       "it is of cross_entropy, and of a model that returns its loss"},
      {{M::top5}, {cross_entropy}, "it is of cross_entropy"},
      {{M::accuracy, M::f1}, {cross_entropy, bce}, "it is of cross_entropy and bce"},
      {{M::mse, M::rmse, M::mae, M::r2},
       {KnownLoss::mse, l1, huber, bce, kl},
       "it is of numbers, and the targets are classes"}};
  return all;
}

void check_fits(const Objective& o) {
  const MetricFormula* formula = formula_of(o.metric);
  const auto fail = [&](const char* allowed) {
    throwf("lab: metric {} does not go with loss {}; {}", o.metric.name, o.loss.name, allowed);
  };
  if (o.loss.is_output() && !is_loss_metric(formula))
    fail("where the model returns its loss, loss, perplexity and bits do");
  const std::optional<KnownLoss> loss = o.loss.known();
  if (!loss || !formula) return;
  for (const MetricNeeds& needs : metric_needs())
    if (std::ranges::count(needs.metrics, formula->metric) > 0 && std::ranges::count(needs.losses, *loss) == 0)
      fail(needs.allowed);
}

}  // namespace

Objective objective_of(const LabData& data, const Loss& loss, const Metric& metric) {
  Objective o{.loss = loss, .metric = metric, .info = {}};
  const bool own_loss = loss.name.empty() && !loss.function;
  if (own_loss) o.loss = Loss(data.loss);
  check_known(o.loss);
  if (metric.name.empty() && !metric.function)
    o.metric = Metric(own_loss || loss.name == data.loss ? data.metric : metric_for(o.loss));
  o.info = info_of(o.metric);
  check_fits(o);
  return o;
}

Evaluation::Evaluation(const Objective& objective, std::int64_t samples, bool by_sample)
    : objective_(objective),
      formula_(formula_of(objective.metric)),
      by_sample_(by_sample),
      batch_(objective.loss.is_output() ? std::clamp<std::int64_t>(samples / kLossBatches, 1, kBatch) : kBatch) {}

// The loss of the batch, and of each of its samples.
void Evaluation::add_losses(const Outputs& outputs, const data::Batch& batch) {
  const auto add_sample = [&](std::int64_t i, double loss, double weight) {
    samples_.sample.push_back(content_name(batch.inputs, batch.targets, i));
    samples_.counted.push_back(static_cast<float>(weight));
    samples_.loss.push_back(static_cast<float>(loss * weight));
  };
  const bool is_output = objective_.loss.is_output();
  const auto size = static_cast<double>(batch.size());
  const double mean = loss_of(objective_.loss, outputs).item();
  loss_.sum += mean * size;
  loss_.weight += size;
  if (!by_sample_) return;
  const StageScope unobserved(chain().observe, nullptr);
  if (is_output) add_sample(0, mean, size);
  for (std::int64_t i = 0; i < batch.size() && !is_output; ++i) {
    const Outputs one{{outputs.all[0].narrow(0, i, 1)}, outputs.targets.narrow(0, i, 1)};
    add_sample(i, loss_of(objective_.loss, one).item(), 1);
  }
}

void Evaluation::add_sums(const Tensor& outputs, const Tensor& targets) {
  if (!formula_ || formula_->whole || formula_->of_all) {
    outputs_.push_back(outputs.to(Device::cpu()));
    targets_.push_back(targets.to(Device::cpu()));
  } else if (formula_->sums) {
    const std::vector<SampleSum> sums = formula_->sums(outputs, targets);
    sums_.insert(sums_.end(), sums.begin(), sums.end());
  }
}

void Evaluation::add(const Outputs& outputs, const data::Batch& batch) {
  const Loss& loss = objective_.loss;
  if (loss.is_output()) return add_losses(outputs, batch);
  const Tensor& first = outputs.all[0];
  if (is_of_classes(loss)) {
    const Tensor classes = fitting_targets(loss, first, outputs.targets);
    add_score(score_, first, classes);
    if (by_sample_) add_samples(samples_, first, {batch.inputs, classes.to(Device::cpu())});
    if (formula_ && formula_->metric == KnownMetric::accuracy) return;
  } else {
    add_losses({{wide(first)}, outputs.targets}, batch);
  }
  const StageScope unobserved(chain().observe, nullptr);
  const Tensor x = wide(first);
  add_sums(x, fitting_targets(loss, x, outputs.targets));
}

void Evaluation::set_scores(SampleScores& samples, const std::vector<SampleSum>& sums, double value,
                            double slope) const {
  SampleSum all;
  double counted = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    all.sum += sums[i].sum;
    all.weight += sums[i].weight;
    counted += samples.counted[i];
  }
  const double ratio = all.sum / all.weight;
  const double each = counted / all.weight;
  samples.score.clear();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const double above = slope * (sums[i].sum - ratio * sums[i].weight) * each;
    samples.score.push_back(static_cast<float>(samples.counted[i] * value + above));
  }
}

void Evaluation::write(Result& r) const {
  const bool of_classes = is_of_classes(objective_.loss);
  if (of_classes) {
    const auto count = static_cast<double>(std::max<std::int64_t>(1, score_.counted));
    r.test_loss = score_.loss / count;
    r.test_accuracy = static_cast<double>(score_.correct) / count;
    r.test_samples = score_.counted;
  } else {
    r.test_loss = loss_.sum / loss_.weight;
    r.test_samples = static_cast<std::int64_t>(loss_.weight);
  }
  r.metric = objective_.info;
  r.samples = samples_;
  r.samples.metric = objective_.info.name;
  r.samples.better = objective_.info.better;
  if (formula_ && formula_->metric == KnownMetric::accuracy && of_classes) return;
  if (!formula_ || formula_->whole) {
    const Tensor all = cat(outputs_, 0);
    const Tensor targets = cat(targets_, 0);
    r.test_metric = formula_ ? formula_->whole(all, targets) : objective_.metric.function(all, targets);
    r.samples = {};  // the metric is of all samples together: seeds alone tell
    return;
  }
  std::vector<SampleSum> sums = formula_->of_all ? formula_->sums(cat(outputs_, 0), cat(targets_, 0)) : sums_;
  double ratio = r.test_loss;
  if (formula_->sums) {
    SampleSum all;
    for (const SampleSum& s : sums) {
      all.sum += s.sum;
      all.weight += s.weight;
    }
    ratio = all.sum / all.weight;
  } else {
    for (std::size_t i = 0; i < samples_.size(); ++i) sums.push_back({samples_.loss[i], samples_.counted[i]});
  }
  r.test_metric = formula_->value(ratio);
  if (formula_->metric == KnownMetric::accuracy) r.test_accuracy = r.test_metric;
  if (by_sample_) set_scores(r.samples, sums, r.test_metric, formula_->slope(ratio));
}

namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// The shares of the classes, the largest first.
std::vector<double> shares_of(const Tensor& classes) {
  std::map<std::int64_t, double> counts;
  double all = 0;
  for (const std::int64_t c : classes.to_vector<std::int64_t>()) {
    if (c == -100) continue;
    counts[c] += 1;
    all += 1;
  }
  std::vector<double> shares;
  for (const auto& [c, count] : counts) shares.push_back(count / all);
  std::ranges::sort(shares, std::greater());
  return shares;
}

// NaN: not known.
double of_constant_class(const MetricFormula& formula, const std::vector<double>& shares) {
  const auto largest = [&](std::size_t count) {
    double sum = 0;
    for (std::size_t i = 0; i < std::min(count, shares.size()); ++i) sum += shares[i];
    return sum;
  };
  if (formula.metric == KnownMetric::accuracy) return largest(1);
  if (formula.metric == KnownMetric::top5) return largest(5);
  double entropy = 0;
  for (const double share : shares) entropy -= share * std::log(share);
  return is_loss_metric(&formula) ? formula.value(entropy) : kUnknown;
}

double of_constant_number(const MetricFormula& formula, const Tensor& y) {
  switch (formula.metric) {
    case KnownMetric::accuracy: {
      const Tensor ones = mean(gt(y, 0.5), {0});
      return mean(maximum(ones, 1 - ones)).item();
    }
    case KnownMetric::r2: return 0;
    case KnownMetric::mse:
    case KnownMetric::rmse: return formula.value(mean(square(y - mean(y, {0}, true))).item());
    default: return kUnknown;
  }
}

}  // namespace

double constant_metric(const Objective& o, const data::Dataset& test) {
  const MetricFormula* formula = formula_of(o.metric);
  if (!formula || o.loss.is_output() || !test.fields.empty() || test.size() == 0) return kUnknown;
  // A loss of the user may be of classes too: integers are no 0 and 1 of logits.
  const bool of_numbers = test.targets.is_floating() || (test.targets.dim() != 1 && test.classes <= 2);
  const bool of_right_classes = formula->metric == KnownMetric::accuracy || formula->metric == KnownMetric::top5;
  const bool of_classes = o.loss.function && !of_numbers && of_right_classes;
  if (is_of_classes(o.loss) || of_classes) return of_constant_class(*formula, shares_of(test.targets));
  return of_constant_number(*formula, test.targets.to(DType::f64));
}

bool beats_constant(const Result& r) {
  if (std::isnan(r.constant_metric)) return true;
  const double gain = r.metric.gain(metric_of(r) - r.constant_metric);
  if (!r.metric.is_share()) return gain > 0.05 * std::abs(r.constant_metric);
  const double p = r.constant_metric;
  const double samples = static_cast<double>(std::max<std::int64_t>(1, r.test_samples));
  return gain > 1.96 * std::sqrt(p * (1 - p) / samples);
}

double metric_of(const Result& r) { return r.metric.is_accuracy() ? r.test_accuracy : r.test_metric; }

}  // namespace gradual::lab
