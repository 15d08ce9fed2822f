#include "decision.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "paired.h"
#include "student_t.h"

namespace gradual::lab {
namespace {

// A difference in the unit of its margin: points, or percent of fp32's loss. Positive is better.
struct Measure {
  Estimate estimate = {};
  double margin = 0;
  bool ignored() const { return std::isinf(margin); }
  double half(double error, int seeds) const { return half_interval(estimate, error, seeds); }
  // The chance of a mean as low, or as high, were the true one `value`.
  double low_tail(double value) const { return 1 - tail_above(estimate, value); }
  double high_tail(double value) const { return tail_above(estimate, value); }
};

Estimate scaled(Estimate e, double factor) {
  e.mean *= factor;
  for (double* variance : {&e.of_seeds, &e.shared, &e.of_samples}) *variance *= factor * factor;
  return e;
}

// The interval mean +- half against the margin.
struct Place {
  bool within = false;
  bool below = false;
  bool above = false;
};
Place place(const Measure& m, double half, int seeds) {
  if (m.ignored()) return {.within = true};
  const double mean = m.estimate.mean;
  Place p{.within = std::abs(mean) + half <= m.margin};
  // Trainings may differ by as much as the margin by chance, and one seed does not tell.
  const bool counts = !p.within && (seeds > 1 || std::abs(mean) > m.margin);
  p.below = counts && mean + half < 0;
  p.above = counts && mean - half > 0;
  return p;
}

// The answer of two intervals.
VerdictKind answer(const Place& accuracy, const Place& loss, int seeds) {
  if (accuracy.below) return VerdictKind::worse;
  if (loss.below) return VerdictKind::worse_loss;
  if (accuracy.above) return VerdictKind::better;
  if (accuracy.within && loss.above) return VerdictKind::better;
  return accuracy.within && loss.within && seeds > 1 ? VerdictKind::matches : VerdictKind::undecided;
}

// The fewest seeds that decide with a chance of 80% if the true differences are the estimated ones; -1: none up to 999.
std::int64_t needed_seeds(const Measure& accuracy, const Measure& loss, double error) {
  constexpr int kMost = 999;
  const double power = 1 + 0.8416 / 1.96;  // normal quantiles of 80% and 97.5%
  const auto decides = [&](int seeds) {
    const double half = power * accuracy.half(error, seeds);
    const double loss_half = loss.ignored() ? 0 : power * loss.half(error, seeds);
    return answer(place(accuracy, half, seeds), place(loss, loss_half, seeds), seeds) != VerdictKind::undecided;
  };
  if (!decides(kMost)) return -1;
  int few = std::max(1, accuracy.estimate.seeds);
  int enough = kMost;
  while (enough - few > 1) {
    const int middle = std::midpoint(few, enough);
    if (decides(middle)) enough = middle;
    else few = middle;
  }
  return enough;
}

// The chance that both lie this far within their margins, were one on its edge. Two sides of both are tested.
double p_of_match(const Measure& accuracy, const Measure& loss) {
  double p = 0;
  for (const Measure* m : {&accuracy, &loss})
    if (!m->ignored()) p = std::max({p, 2 * m->high_tail(-m->margin), 2 * m->low_tail(m->margin)});
  return std::min(1.0, p);
}

double p_of(VerdictKind kind, const Measure& accuracy, const Measure& loss) {
  const bool worse = kind == VerdictKind::worse || kind == VerdictKind::worse_loss;
  if (kind == VerdictKind::matches) return p_of_match(accuracy, loss);
  if (!worse && kind != VerdictKind::better) return std::numeric_limits<double>::quiet_NaN();
  const auto tail = [&](const Measure& m) { return worse ? m.low_tail(0) : m.high_tail(0); };
  const double least = loss.ignored() ? tail(accuracy) : std::min(tail(accuracy), tail(loss));
  return std::min(1.0, 2 * least);
}

// The trained models differ by more than the margin, and by more than their samples explain.
bool looks_worse(const Measure& m) {
  if (m.ignored()) return false;
  const double by_samples = 1.96 * std::sqrt(m.estimate.of_samples / m.estimate.seeds);
  return m.estimate.mean < -m.margin && m.estimate.mean + by_samples < 0;
}

}  // namespace

namespace {

// The metric's difference in points, or in percent of fp32's value.
Measure measure_of(const Difference& difference, const Judging& judging, const Compared& compared) {
  if (compared.metric.is_share()) return {scaled(difference.estimate, 100), judging.margin};
  const double percent = std::max(std::abs(compared.fp32), std::numeric_limits<double>::min()) / 100;
  return {scaled(difference.estimate, compared.metric.gain(1 / percent)), judging.metric_margin};
}

}  // namespace

Outcome decision(const Difference& accuracy, const Difference& loss, double fp32_loss, const Judging& judging,
                 const Compared& compared) {
  const double percent = std::max(std::abs(fp32_loss), std::numeric_limits<double>::min()) / 100;
  const Measure a = measure_of(accuracy, judging, compared);
  const Measure l{scaled(loss.estimate, -1 / percent), judging.loss_margin};
  const int seeds = a.estimate.seeds;
  const double half = a.half(judging.error, seeds);
  const double loss_half = l.half(judging.error, seeds);
  Outcome o{.points = a.estimate.mean, .interval = half, .loss = -l.estimate.mean, .loss_interval = loss_half};
  if (!compared.metric.is_share()) {
    o.metric = compared.metric.name;
    o.change = compared.metric.gain(o.points);
  }
  o.kind = answer(place(a, half, seeds), place(l, loss_half, seeds), seeds);
  o.p = p_of(o.kind, a, l);
  if (o.kind != VerdictKind::undecided) return o;
  o.needed = needed_seeds(a, l, judging.error);
  o.looks_worse = looks_worse(a) || looks_worse(l);
  return o;
}

std::vector<bool> hold_together(const std::vector<double>& p, double error) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::erase_if(order, [&](std::size_t i) { return std::isnan(p[i]); });
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return p[i]; });
  std::vector<bool> holds(p.size());
  for (std::size_t k = 0; k < order.size(); ++k) {
    if (p[order[k]] > error / static_cast<double>(p.size() - k)) break;
    holds[order[k]] = true;
  }
  return holds;
}

}  // namespace gradual::lab
