#include "verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "../core/support/error.h"
#include "run.h"
#include "statistics.h"

namespace gradual::lab {
namespace {

bool is_baseline(const Result& r) { return r.recipe == "fp32"; }

// The step from which on no loss is finite; -1: the last one is.
std::int64_t bad_step(const Result& r) {
  const auto& loss = r.curve.loss;
  std::size_t i = loss.size();
  while (i > 0 && !std::isfinite(loss[i - 1])) --i;
  return i == loss.size() ? -1 : r.curve.step[i];
}

// Of the first step whose loss is finite.
double first_loss(const Result& r) {
  const auto found = std::ranges::find_if(r.curve.loss, [](double v) { return std::isfinite(v); });
  return found == r.curve.loss.end() ? std::nan("") : *found;
}

// What a run alone says; empty: nothing is wrong with it.
std::string alone(const Result& r) {
  if (r.status == "interrupted") return "interrupted";
  if (r.status == "diverged") {
    const std::int64_t step = bad_step(r);
    return step < 0 ? "diverged in evaluation" : fmt::format("diverged at step {}", step);
  }
  if (r.steps > 0 && 2 * r.skipped_steps >= r.steps)
    return fmt::format("mostly skipped: {} of {} steps", r.skipped_steps, r.steps);
  return "";
}

// The mean training loss of the last epoch, without losses that are not finite: their steps were skipped.
double last_loss(const Result& r) {
  if (std::isfinite(r.train_loss)) return r.train_loss;
  const auto steps = std::ssize(r.curve.loss) / std::max<std::int64_t>(1, r.epochs);
  return spread({r.curve.loss.end() - steps, r.curve.loss.end()}).mean;
}
double fall(const Result& r) { return first_loss(r) - last_loss(r); }

// Whether the training loss fell by less than a tenth of what fp32's fell.
bool learned_nothing(const Result& r, const Result& fp32) { return !(fall(r) >= 0.1 * fall(fp32)); }

// Whether the loss hardly fell, in a run that is told by itself.
bool hardly_learned(const Result& r) { return !(last_loss(r) < 0.95 * first_loss(r)); }

using Results = std::vector<Result>;

// The verdict on a run whose fp32 fails.
std::string where_fp32_fails(const Result& r, const Result& base, const std::string& own) {
  const std::string there = alone(base).empty() ? "learns nothing" : alone(base);
  const bool better = own.empty() && !hardly_learned(r);
  // Where both end, the accuracies say whether one learned more.
  if (better && alone(base).empty()) {
    const Difference d = accuracy_difference({{&r, &base}});
    if (!(d.mean > d.half)) return "not precision: fp32 does the same";
  }
  if (better) return fmt::format("matches: it learns, and fp32 {}", there);
  if (r.status == base.status) return "not precision: fp32 does the same";
  return fmt::format("not precision: {}, and fp32 {}", own.empty() ? "no learning" : own, there);
}

std::string verdict(const Results& results, const Results& references, const Result& r) {
  const std::string own = alone(r);
  if (own == "interrupted") return "interrupted";
  if (is_baseline(r) && own.empty()) return hardly_learned(r) ? "baseline, no learning" : "baseline";
  if (is_baseline(r)) return "baseline, " + own;
  const bool elsewhere = !r.findings.empty() && !r.findings[0].precision;
  const auto failure = [&](const std::string& what) { return elsewhere ? "not precision: " + what : what; };
  const Result* base = baseline(results, references, r);
  if (!base) return !own.empty() ? failure(own) : "interrupted: fp32 was not trained";
  if (base->status == "diverged" || hardly_learned(*base)) return where_fp32_fails(r, *base, own);
  if (!own.empty()) return failure(own);
  if (learned_nothing(r, *base) || !r.difference) return failure("no learning");
  const Difference d = *r.difference;
  if (d.mean < -d.half) return failure(fmt::format("worse by {:.1f} points", -100 * d.mean));
  return fmt::format("matches fp32 ({:+.1f} points, within {:.1f})", 100 * d.mean, 100 * d.half);
}

Finding from(const inspect::Finding& f, const amp::Recipe& recipe) {
  Finding made{.cause = f.cause, .phase = f.phase, .op = f.op, .site = f.site, .step = f.step};
  made.sentence = f.sentence, made.precision = f.precision;
  for (const inspect::Cure& c : f.cures) made.cures.push_back({inspect::edit(recipe, c.recipe), c.remedy});
  if (!made.cures.empty()) made.cure = made.cures[0].edit, made.remedy = made.cures[0].remedy;
  return made;
}

}  // namespace

const Result* baseline(const Results& results, const Results& references, const Result& run) {
  for (const Results* all : {&results, &references})
    for (const Result& b : *all)
      if (is_baseline(b) && b.seed == run.seed && b.model == run.model && b.data == run.data &&
          b.status != "interrupted")
        return &b;
  return nullptr;
}

void judge(std::vector<Result>& results, const std::vector<Result>& references) {
  for (Result& r : results) {
    const Pairs pairs = is_baseline(r) ? Pairs() : pairs_with_fp32(results, references, r.recipe);
    r.difference = pairs.empty() ? std::nullopt : std::optional(accuracy_difference(pairs));
    r.loss_difference = pairs.empty() ? std::nullopt : std::optional(loss_difference(pairs));
    r.verdict = verdict(results, references, r);
  }
  for (Result& r : results) {
    if (r.verdict.starts_with("matches") || r.verdict == "baseline") r.findings.clear();
    if (!r.verdict.starts_with("not precision")) continue;
    std::erase_if(r.findings, [](const Finding& f) { return f.precision; });
    const Result* base = baseline(results, references, r);
    if (base && r.findings.empty()) r.findings = base->findings;
  }
}

bool fails(const Result& r) {
  return !r.verdict.starts_with("matches") && !r.verdict.starts_with("interrupted") && r.verdict != "baseline";
}

std::optional<std::vector<Finding>> explain(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe,
                                            std::uint64_t seed, const Options& options, const Result& result,
                                            const Result* fp32, inspect::Evidence e) try {
  Options quiet = options;
  quiet.progress = {}, quiet.trace.clear(), quiet.profile.clear();
  bool stopped = false;
  const auto observed = [&](const amp::Recipe& r, std::int64_t first, std::int64_t last, bool evaluate = false) {
    auto seen = Run(make_model, data, r, seed, quiet).replay(first, last, evaluate);
    if (seen && seen->nonfinite && seen->step < first)
      seen = Run(make_model, data, r, seed, quiet).replay(seen->step, seen->step);
    stopped = stopped || !seen;
    return seen;
  };
  e.recipe = &recipe;
  e.last_scale = result.final_scale;
  e.fp32_fails = fp32 && fp32->verdict != "baseline";
  e.trains = fp32 && fall(result) > 0.9 * fall(*fp32);
  const amp::Recipe in_fp32 = amp::recipe("fp32");
  e.first = observed(recipe, 0, 0);
  if (!is_baseline(result)) e.first_in_fp32 = observed(in_fp32, 0, 0);
  if (result.status == "diverged" && !stopped) {
    const std::int64_t step = bad_step(result), last = step < 0 ? result.steps - 1 : step;
    // The update before it may have made the parameters that give this loss.
    e.bad = observed(recipe, std::max<std::int64_t>(0, last - (step < 0 ? 0 : 1)), last, step < 0);
  }
  const auto first_skip = std::ranges::find(result.curve.skipped, true);
  if (first_skip != result.curve.skipped.end() && !stopped && !e.bad) {
    const auto step = first_skip - result.curve.skipped.begin();
    e.skip = observed(recipe, step, step);
  }
  if (stopped) return {};
  std::vector<Finding> findings;
  for (const inspect::Finding& f : inspect::diagnose(e)) findings.push_back(from(f, recipe));
  if (findings.empty())
    findings = {{.cause = "unknown", .sentence = "nothing that was observed explains it", .precision = !e.fp32_fails}};
  return findings;
} catch (const Error& error) {
  return {{{.cause = "unknown", .sentence = std::string("the run could not be explained: ") + error.what()}}};
}

}  // namespace gradual::lab
