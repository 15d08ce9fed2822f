#include "verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "run.h"

namespace gradual::lab {
namespace {

// Half the interval of 95% in units of the standard error, for 1, 2, .. degrees of freedom (Student's t).
double student(std::size_t degrees) {
  static constexpr double kT[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                  2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086};
  return degrees <= std::size(kT) ? kT[degrees - 1] : 1.96 + 2.4 / static_cast<double>(degrees);
}

// A difference of accuracies from fp32, and half its interval.
struct Difference {
  double mean = 0, half = 0;
};
Difference difference(const std::vector<std::pair<const Result*, const Result*>>& pairs) {
  const auto n = static_cast<double>(pairs.size());
  Difference d;
  for (const auto& [run, base] : pairs) d.mean += (run->test_accuracy - base->test_accuracy) / n;
  if (pairs.size() == 1) {
    const auto samples = static_cast<double>(std::max<std::int64_t>(1, pairs[0].second->test_samples));
    const double share =
        std::clamp((pairs[0].first->test_accuracy + pairs[0].second->test_accuracy) / 2, 1 / samples, 1 - 1 / samples);
    d.half = 1.96 * std::sqrt(2 * share * (1 - share) / samples);
    return d;
  }
  double squares = 0;
  for (const auto& [run, base] : pairs) squares += std::pow(run->test_accuracy - base->test_accuracy - d.mean, 2);
  d.half = student(pairs.size() - 1) * std::sqrt(squares / (n - 1) / n);
  return d;
}

bool is_baseline(const Result& r) { return r.recipe == "fp32"; }

// The step whose loss is the first that is not finite; -1: none.
std::int64_t bad_step(const Result& r) {
  const auto& loss = r.curve.loss;
  const auto found = std::ranges::find_if(loss, [](double v) { return !std::isfinite(v); });
  return found == loss.end() ? -1 : r.curve.step[static_cast<std::size_t>(found - loss.begin())];
}

double first_loss(const Result& r) { return r.curve.loss.empty() ? std::nan("") : r.curve.loss[0]; }

// What a run alone says; empty: nothing is wrong with it.
std::string alone(const Result& r) {
  if (r.status == "interrupted") return "interrupted";
  if (r.status == "diverged") {
    const std::int64_t step = bad_step(r);
    return step < 0 ? "diverged" : fmt::format("diverged at step {}", step);
  }
  if (r.steps > 0 && 2 * r.skipped_steps >= r.steps)
    return fmt::format("mostly skipped: {} of {} steps", r.skipped_steps, r.steps);
  return "";
}

// Whether the training loss fell by less than a tenth of `fall`.
bool learned_nothing(const Result& r, double fall) { return !(first_loss(r) - r.train_loss >= 0.1 * fall); }

// Whether the loss hardly fell, in a run that is told by itself.
bool hardly_learned(const Result& r) { return !(r.train_loss < 0.95 * first_loss(r)); }

const Result* baseline_of(const std::vector<Result>& results, const Result& r) {
  for (const Result& b : results)
    if (is_baseline(b) && b.seed == r.seed && b.model == r.model && b.data == r.data && b.status != "interrupted")
      return &b;
  return nullptr;
}

std::string verdict(const std::vector<Result>& results, const Result& r) {
  std::string own = alone(r);
  if (own == "interrupted") return own;
  if (is_baseline(r)) return own.empty() ? "baseline" : "baseline, " + own;
  const bool elsewhere = std::ranges::any_of(r.findings, [](const Finding& f) { return !f.precision; });
  const Result* base = baseline_of(results, r);
  if (!base)
    return !own.empty() ? elsewhere ? "not precision: " + own : own : "not judged: fp32 is not among the recipes";
  const bool both_diverge = r.status == "diverged" && base->status == "diverged";
  const bool neither_learns = own.empty() && base->status != "diverged" && hardly_learned(*base) && hardly_learned(r);
  if (both_diverge || neither_learns) return "not precision: fp32 does the same";
  if (!own.empty()) return elsewhere && base->status == "diverged" ? "not precision: " + own : own;
  if (base->status == "diverged") return "not judged: fp32 diverges";
  if (learned_nothing(r, first_loss(*base) - base->train_loss)) return "no learning";
  std::vector<std::pair<const Result*, const Result*>> pairs;
  for (const Result& run : results)
    if (const Result* b = run.recipe == r.recipe && alone(run).empty() ? baseline_of(results, run) : nullptr)
      if (std::isfinite(run.test_accuracy) && std::isfinite(b->test_accuracy)) pairs.emplace_back(&run, b);
  if (pairs.empty()) return "no learning";
  const Difference d = difference(pairs);
  if (d.mean < -d.half) return fmt::format("worse by {:.1f} points", -100 * d.mean);
  return fmt::format("matches fp32 ({:+.1f} points, within {:.1f})", 100 * d.mean, 100 * d.half);
}

Finding from(const inspect::Finding& f, const amp::Recipe& recipe) {
  return {.cause = f.cause,
          .phase = f.phase,
          .op = f.op,
          .site = f.site,
          .step = f.step,
          .sentence = f.sentence,
          .cure = f.cure ? inspect::edit(recipe, *f.cure) : "",
          .remedy = f.remedy,
          .precision = f.precision};
}

}  // namespace

void judge(std::vector<Result>& results) {
  for (Result& r : results) r.verdict = verdict(results, r);
  for (Result& r : results)
    if (r.verdict.starts_with("matches") || r.verdict == "baseline" || r.verdict.starts_with("not judged"))
      r.findings.clear();
    else if (r.verdict == "not precision: fp32 does the same")
      std::erase_if(r.findings, [](const Finding& f) { return f.precision; });
}

std::vector<Finding> explain(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe,
                             std::uint64_t seed, const Options& options, const Result& result,
                             inspect::Evidence evidence) {
  Options quiet = options;
  quiet.progress = {}, quiet.trace.clear(), quiet.profile.clear();
  // Runs again to a step and observes it. Every run of a seed has the same bits.
  const auto observed = [&](std::int64_t step) { return Run(make_model, data, recipe, seed, quiet).replay(step); };
  Run::Replay bad, skip;
  if (const std::int64_t step = bad_step(result); result.status == "diverged" && step >= 0) {
    // The update before it may have made the parameters that give this loss.
    evidence.nonfinite_step = std::max<std::int64_t>(0, step - 1);
    bad = observed(evidence.nonfinite_step);
    if (!bad.nonfinite && evidence.nonfinite_step < step) bad = observed(evidence.nonfinite_step = step);
    evidence.nonfinite = &bad.ledger;
  }
  const auto first_skip = std::ranges::find(result.curve.skipped, true);
  if (2 * result.skipped_steps >= result.steps && first_skip != result.curve.skipped.end()) {
    skip = observed(first_skip - result.curve.skipped.begin());
    evidence.skipped_step = &skip.ledger;
  }
  Run::Replay early;
  if (!evidence.nonfinite && !amp::counted_as_if(recipe) && !recipe.quantization &&
      total(evidence.casts, {amp::Role::activation}).counts.overflow > 0) {
    early = observed(0);
    evidence.overflowing_step = &early.ledger;
  }
  evidence.recipe = &recipe;
  evidence.steps = result.steps, evidence.skipped = result.skipped_steps;
  evidence.last_scale = result.final_scale;
  std::vector<Finding> findings;
  for (const inspect::Finding& f : inspect::diagnose(evidence)) findings.push_back(from(f, recipe));
  return findings;
}

}  // namespace gradual::lab
