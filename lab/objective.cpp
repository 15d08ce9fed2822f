#include "objective.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "../core/ops/ops.h"
#include "../core/support/throwf.h"

namespace gradual::lab {
namespace {

constexpr std::int64_t kBatch = 256;
constexpr std::int64_t kMostParts = 512;  // of the test data
constexpr std::int64_t kLossParts = 64;   // where each is a run of the model

bool is_loss_metric(const MetricRule* rule) { return rule && !rule->sums && !rule->whole; }

Tensor wide(const Tensor& x) { return x.dtype() == DType::f64 ? x : x.to(DType::f32); }

// The targets that a loss counts: without those of class -100.
double counted(const Loss& loss, const Tensor& targets) {
  if (loss.function || loss.name != "cross_entropy") return static_cast<double>(targets.size(0));
  const std::vector<std::int64_t> classes = targets.to_vector<std::int64_t>();
  return static_cast<double>(std::ranges::count_if(classes, [](std::int64_t c) { return c != -100; }));
}

SampleSum total(const std::vector<SampleSum>& parts) {
  SampleSum all;
  for (const SampleSum& p : parts) {
    all.sum += p.sum;
    all.weight += p.weight;
  }
  return all;
}

// Neighbours added up, so that there are at most kMostParts.
std::vector<SampleSum> gathered(const std::vector<SampleSum>& parts) {
  const std::size_t size = (parts.size() + kMostParts - 1) / kMostParts;
  if (size <= 1) return parts;
  std::vector<SampleSum> all;
  for (std::size_t at = 0; at < parts.size(); at += size) {
    const auto first = parts.begin() + static_cast<std::ptrdiff_t>(at);
    const std::size_t count = std::min(size, parts.size() - at);
    all.push_back(total({first, first + static_cast<std::ptrdiff_t>(count)}));
  }
  return all;
}

void check_fits(const Objective& o) {
  const MetricRule* rule = o.metric.function ? nullptr : rule_of(o.metric.name);
  const auto fail = [&](const char* allowed) {
    throwf("lab: metric {} does not go with loss {}; {}", o.metric.name, o.loss.name, allowed);
  };
  if (o.loss.is_output() && !is_loss_metric(rule))
    fail("where the model returns its loss, loss, perplexity and bits do");
  if (o.loss.function) return;
  const bool of_classes = o.loss.name == "cross_entropy", of_signs = o.loss.name == "bce";
  const std::string& m = o.metric.name;
  if (rule && (m == "perplexity" || m == "bits") && !of_classes && !o.loss.is_output())
    fail("it is of cross_entropy, and of a model that returns its loss");
  if (rule && m == "top5" && !of_classes) fail("it is of cross_entropy");
  if (rule && (m == "accuracy" || m == "f1") && !of_classes && !of_signs) fail("it is of cross_entropy and bce");
  if (rule && of_classes && (m == "mse" || m == "rmse" || m == "mae" || m == "r2"))
    fail("it is of numbers, and the targets are classes");
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

Evaluation::Evaluation(const Objective& objective, std::int64_t samples)
    : objective_(objective),
      rule_(objective.metric.function ? nullptr : rule_of(objective.metric.name)),
      batch_(objective.loss.is_output() ? std::clamp<std::int64_t>(samples / kLossParts, 1, kBatch) : kBatch),
      chunk_(std::max<std::int64_t>(1, samples / kMostParts)) {}

void Evaluation::add_losses(const Tensor& outputs, const Tensor& targets) {
  for (std::int64_t at = 0; at < outputs.size(0); at += chunk_) {
    const std::int64_t size = std::min(chunk_, outputs.size(0) - at);
    const Outputs part{{outputs.narrow(0, at, size)}, targets.narrow(0, at, size)};
    const double weight = counted(objective_.loss, part.targets);
    if (weight > 0) losses_.push_back({weight * loss_of(objective_.loss, part).item(), weight});
  }
}

void Evaluation::add(const Outputs& outputs, std::int64_t samples) {
  const Loss& loss = objective_.loss;
  if (loss.is_output()) {
    const auto weight = static_cast<double>(samples);
    losses_.push_back({weight * loss_of(loss, outputs).item(), weight});
    return;
  }
  const Tensor& first = outputs.all[0];
  const bool of_classes = !loss.function && loss.name == "cross_entropy";
  if (of_classes) {
    fitting_targets(loss, first, outputs.targets);
    add_score(score_, first, outputs.targets);
  }
  const bool is_accuracy = rule_ && rule_->info == MetricInfo{};
  if (of_classes && is_accuracy) return;
  const Tensor x = wide(first);
  const Tensor y = fitting_targets(loss, x, outputs.targets);
  if (!of_classes || is_loss_metric(rule_)) add_losses(x, y);
  if (!rule_ || rule_->whole) {
    outputs_.push_back(x.to(Device::cpu()));
    targets_.push_back(y.to(Device::cpu()));
  } else if (rule_->sums) {
    const std::vector<SampleSum> sums = rule_->sums(x, y);
    sums_.insert(sums_.end(), sums.begin(), sums.end());
  }
}

void Evaluation::write(Result& r) const {
  const bool of_classes = !objective_.loss.function && objective_.loss.name == "cross_entropy";
  const SampleSum loss = total(losses_);
  if (of_classes) {
    const auto count = static_cast<double>(std::max<std::int64_t>(1, score_.counted));
    r.test_loss = score_.loss / count;
    r.test_accuracy = static_cast<double>(score_.correct) / count;
    r.test_samples = score_.counted;
  } else {
    r.test_loss = loss.weight > 0 ? loss.sum / loss.weight : std::numeric_limits<double>::quiet_NaN();
    r.test_samples = static_cast<std::int64_t>(loss.weight);
  }
  r.metric = objective_.info;
  r.metric_parts.clear();
  if (of_classes && rule_ && rule_->info == MetricInfo{}) return;  // the accuracy
  if (!rule_ || rule_->whole) {
    const Tensor all = cat(outputs_, 0), targets = cat(targets_, 0);
    r.test_metric = rule_ ? rule_->whole(all, targets) : objective_.metric.function(all, targets);
    return;
  }
  const std::vector<SampleSum> parts = gathered(rule_->sums ? sums_ : losses_);
  const SampleSum sum = total(parts);
  const double ratio = sum.sum / sum.weight, slope = rule_->slope(ratio);
  r.test_metric = rule_->value(ratio);
  const double each = sum.weight / static_cast<double>(parts.size());
  // To first order: their mean is the metric, and their spread gives that of the metric.
  for (const SampleSum& p : parts) r.metric_parts.push_back(r.test_metric + slope * (p.sum - ratio * p.weight) / each);
}

double metric_of(const Result& r) { return r.metric == MetricInfo{} ? r.test_accuracy : r.test_metric; }

}  // namespace gradual::lab
