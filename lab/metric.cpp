#include "metric.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "../core/ops/ops.h"
#include "../core/support/message_text.h"
#include "../core/support/throwf.h"

namespace gradual::lab {
namespace {

// Differences and targets of a batch as numbers, and how many a sample has.
struct Numbers {
  std::vector<double> outputs, targets;
  std::int64_t samples = 0;
  std::int64_t each = 0;
};
Numbers numbers_of(const Tensor& outputs, const Tensor& targets) {
  if (outputs.dim() == 0 || targets.dim() == 0 || outputs.numel() != targets.numel())
    throwf("a metric of differences: outputs {} and targets {}; allowed are as many numbers in both",
           to_string(outputs.sizes()), to_string(targets.sizes()));
  Numbers n;
  n.outputs = outputs.to_vector<double>();
  n.targets = targets.to(DType::f64).to_vector<double>();
  n.samples = targets.size(0);
  n.each = targets.numel() / std::max<std::int64_t>(1, n.samples);
  return n;
}

template <class F> std::vector<SampleSum> sums_over(const Tensor& outputs, const Tensor& targets, F f) {
  const Numbers n = numbers_of(outputs, targets);
  std::vector<SampleSum> sums(static_cast<std::size_t>(n.samples));
  for (std::size_t i = 0; i < n.outputs.size(); ++i) {
    SampleSum& s = sums[i / static_cast<std::size_t>(n.each)];
    s.sum += f(n.outputs[i] - n.targets[i]);
    s.weight += 1;
  }
  return sums;
}
std::vector<SampleSum> squares(const Tensor& outputs, const Tensor& targets) {
  return sums_over(outputs, targets, [](double d) { return d * d; });
}
std::vector<SampleSum> magnitudes(const Tensor& outputs, const Tensor& targets) {
  return sums_over(outputs, targets, [](double d) { return std::abs(d); });
}

// Logits of classes as rows [M, C], and the class of each row; of M = N rows or of several a sample.
struct ClassRows {
  std::vector<double> logits;
  std::vector<std::int64_t> classes;
  std::size_t width = 0;
  std::size_t each = 0;
};
ClassRows class_rows(const Tensor& logits, const Tensor& classes) {
  if (logits.dim() != classes.dim() + 1 || logits.numel() == 0)
    throwf("a metric of classes: outputs {} and targets {}; allowed are logits [N, .., C] and class numbers [N, ..]",
           to_string(logits.sizes()), to_string(classes.sizes()));
  ClassRows rows;
  rows.logits = logits.to_vector<double>();
  rows.classes = classes.to(DType::i64).to_vector<std::int64_t>();
  rows.width = static_cast<std::size_t>(logits.sizes().back());
  rows.each = rows.classes.size() / static_cast<std::size_t>(classes.size(0));
  if (rows.logits.size() != rows.classes.size() * rows.width)
    throwf("a metric of classes: outputs {} and targets {} differ in their samples", to_string(logits.sizes()),
           to_string(classes.sizes()));
  return rows;
}
constexpr std::int64_t kIgnored = -100;

bool is_binary(const Tensor& outputs, const Tensor& targets) { return outputs.numel() == targets.numel(); }

// The share of rows whose class is among the `most` largest logits; of equal ones the first is larger.
template <int most> std::vector<SampleSum> right(const Tensor& outputs, const Tensor& targets) {
  if (is_binary(outputs, targets)) {
    if constexpr (most > 1)
      throwf("metric top5: outputs {} are one logit a target; allowed are logits of classes",
             to_string(outputs.sizes()));
    const Numbers n = numbers_of(outputs, targets);
    std::vector<SampleSum> sums(static_cast<std::size_t>(n.samples));
    for (std::size_t i = 0; i < n.outputs.size(); ++i) {
      SampleSum& s = sums[i / static_cast<std::size_t>(n.each)];
      s.sum += (n.outputs[i] > 0) == (n.targets[i] > 0.5);
      s.weight += 1;
    }
    return sums;
  }
  const ClassRows rows = class_rows(outputs, targets);
  std::vector<SampleSum> sums(rows.classes.size() / rows.each);
  for (std::size_t i = 0; i < rows.classes.size(); ++i) {
    if (rows.classes[i] == kIgnored) continue;
    const double* row = rows.logits.data() + i * rows.width;
    const auto its = static_cast<std::size_t>(rows.classes[i]);
    int before = its >= rows.width ? most : 0;
    for (std::size_t c = 0; c < rows.width && before < most; ++c)
      before += row[c] > row[its] || (row[c] == row[its] && c < its) || std::isnan(row[its]);
    SampleSum& s = sums[i / rows.each];
    s.sum += before < most;
    s.weight += 1;
  }
  return sums;
}

// What is left of each sample's squared differences from the mean target.
std::vector<SampleSum> unexplained(const Tensor& outputs, const Tensor& targets) {
  const Numbers n = numbers_of(outputs, targets);
  const auto each = static_cast<std::size_t>(n.each);
  std::vector<double> mean(each, 0);
  for (std::size_t i = 0; i < n.targets.size(); ++i) mean[i % each] += n.targets[i] / static_cast<double>(n.samples);
  std::vector<SampleSum> sums(static_cast<std::size_t>(n.samples));
  for (std::size_t i = 0; i < n.targets.size(); ++i) {
    SampleSum& s = sums[i / each];
    s.sum += (n.outputs[i] - n.targets[i]) * (n.outputs[i] - n.targets[i]);
    s.weight += (n.targets[i] - mean[i % each]) * (n.targets[i] - mean[i % each]);
  }
  return sums;
}

struct Counts {
  double hits = 0;    // others: found and not there
  double others = 0;  // or there and not found
  double f1() const { return hits > 0 ? 2 * hits / (2 * hits + others) : 0; }
};
double f1(const Tensor& outputs, const Tensor& targets) {
  if (is_binary(outputs, targets)) {
    const Numbers n = numbers_of(outputs, targets);
    Counts positive;
    for (std::size_t i = 0; i < n.outputs.size(); ++i) {
      const bool found = n.outputs[i] > 0;
      const bool there = n.targets[i] > 0.5;
      positive.hits += found && there;
      positive.others += found != there;
    }
    return positive.f1();
  }
  const ClassRows rows = class_rows(outputs, targets);
  std::vector<Counts> classes(rows.width);
  std::vector<bool> there(rows.width, false);
  for (std::size_t i = 0; i < rows.classes.size(); ++i) {
    if (rows.classes[i] == kIgnored) continue;
    const auto row = rows.logits.begin() + static_cast<std::ptrdiff_t>(i * rows.width);
    const auto guess =
        static_cast<std::size_t>(std::max_element(row, row + static_cast<std::ptrdiff_t>(rows.width)) - row);
    const auto truth = static_cast<std::size_t>(rows.classes[i]);
    if (truth >= rows.width) continue;
    there[truth] = true;
    if (guess == truth) {
      ++classes[truth].hits;
      continue;
    }
    ++classes[truth].others;
    ++classes[guess].others;
  }
  double sum = 0;
  for (std::size_t c = 0; c < rows.width; ++c) sum += there[c] ? classes[c].f1() : 0;
  return sum / static_cast<double>(std::max<std::ptrdiff_t>(1, std::ranges::count(there, true)));
}

double same(double ratio) { return ratio; }
double one(double) { return 1; }
double rest(double ratio) { return 1 - ratio; }
double minus_one(double) { return -1; }
double half_inverse_root(double ratio) { return 0.5 / std::sqrt(ratio); }
double root(double ratio) { return std::sqrt(ratio); }
double exponential(double ratio) { return std::exp(ratio); }
double in_bits(double ratio) { return ratio / std::numbers::ln2; }
double of_bits(double) { return 1 / std::numbers::ln2; }

const std::vector<MetricFormula>& formulas() {
  using M = KnownMetric;
  static const std::vector<MetricFormula> all{
      {.metric = M::accuracy,
       .info = {"accuracy", "%", Direction::higher},
       .sums = right<1>,
       .value = same,
       .slope = one},
      {.metric = M::top5, .info = {"top5", "%", Direction::higher}, .sums = right<5>, .value = same, .slope = one},
      {.metric = M::loss, .info = {"loss", "", Direction::lower}, .value = same, .slope = one},
      {.metric = M::perplexity,
       .info = {"perplexity", "", Direction::lower},
       .value = exponential,
       .slope = exponential},
      {.metric = M::bits, .info = {"bits", "", Direction::lower}, .value = in_bits, .slope = of_bits},
      {.metric = M::mse, .info = {"mse", "", Direction::lower}, .sums = squares, .value = same, .slope = one},
      {.metric = M::rmse,
       .info = {"rmse", "", Direction::lower},
       .sums = squares,
       .value = root,
       .slope = half_inverse_root},
      {.metric = M::mae, .info = {"mae", "", Direction::lower}, .sums = magnitudes, .value = same, .slope = one},
      {.metric = M::r2,
       .info = {"r2", "", Direction::higher},
       .sums = unexplained,
       .of_all = true,
       .value = rest,
       .slope = minus_one},
      {.metric = M::f1, .info = {"f1", "", Direction::higher}, .whole = f1}};
  return all;
}

}  // namespace

std::string value_text(const MetricInfo& info, double value) {
  if (std::isnan(value)) return "-";
  if (info.is_share()) return fmt::format("{:.2f}%", 100 * value);
  return fmt::format("{:.4g}{}{}", value, info.unit.empty() ? "" : " ", info.unit);
}

std::string difference_text(const MetricInfo& info, double mean, double half) {
  if (info.is_share()) return fmt::format("{:+.2f} ± {:.2f}", 100 * mean, 100 * half);
  if (!std::isfinite(half) || half <= 0) return fmt::format("{:+.2g}", mean);
  const int digits = std::clamp(1 - static_cast<int>(std::floor(std::log10(half))), 0, 5);  // two that mean something
  return fmt::format("{:+.{}f} ± {:.{}f}", mean, digits, half, digits);
}

std::vector<std::string> metric_names() {
  std::vector<std::string> names;
  for (const MetricFormula& formula : formulas()) names.push_back(formula.info.name);
  return names;
}

const MetricFormula* formula_of(const std::string& name) {
  const auto found =
      std::ranges::find(formulas(), name, [](const MetricFormula& formula) { return formula.info.name; });
  return found == formulas().end() ? nullptr : &*found;
}

const MetricFormula* formula_of(const Metric& metric) { return metric.function ? nullptr : formula_of(metric.name); }

MetricInfo info_of(const Metric& metric) {
  if (metric.function) return metric.info;
  if (const MetricFormula* formula = formula_of(metric)) return formula->info;
  throwf("lab: no metric '{}'{}; allowed are {}", metric.name, did_you_mean(metric.name, metric_names()),
         join(metric_names()));
}

}  // namespace gradual::lab
