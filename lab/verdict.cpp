#include "verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "../core/support/error.h"
#include "intervention.h"
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

// What is wrong with a run by itself; none: nothing.
std::optional<Outcome> failure_of(const Result& r) {
  if (r.status == Status::interrupted) return Outcome{.kind = VerdictKind::interrupted};
  if (r.status == Status::diverged) return Outcome{.kind = VerdictKind::diverged, .step = bad_step(r)};
  if (r.steps > 0 && 2 * r.skipped_steps >= r.steps)
    return Outcome{.kind = VerdictKind::mostly_skipped, .skipped = r.skipped_steps, .steps = r.steps};
  return {};
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

// Whether the loss hardly fell, in a run judged without fp32.
bool hardly_learned(const Result& r) { return !(last_loss(r) < 0.95 * first_loss(r)); }

using Results = std::vector<Result>;

// The verdict on a run that does this; precision is not the cause if the first finding blames something else.
Verdict failed(const Result& r, const Outcome& own, const std::optional<Outcome>& fp32 = {}) {
  const bool elsewhere = !r.findings.empty() && !r.findings[0].precision;
  if (elsewhere) return {{.kind = VerdictKind::not_precision}, own, fp32};
  return {own, {}, fp32};
}

// The verdict on a run whose fp32 fails.
Verdict where_fp32_fails(const Result& r, const Result& base, const std::optional<Outcome>& own) {
  const Outcome no_learning{.kind = VerdictKind::no_learning};
  const std::optional<Outcome> failure = failure_of(base);
  const Outcome fp32 = failure.value_or(no_learning);
  const Verdict same{{.kind = VerdictKind::not_precision}};
  if (own || hardly_learned(r)) {
    if (r.status == base.status) return same;
    // Another failure than fp32's is the recipe's.
    if (own && own->kind == VerdictKind::diverged) return failed(r, *own, fp32);
    return {{.kind = VerdictKind::not_precision}, own.value_or(no_learning), fp32};
  }
  // Where both end, the accuracies say whether one learned more.
  if (!failure) {
    const Difference d = metric_difference({{&r, &base}});
    if (!(r.metric.gain(d.mean) > d.half)) return same;
  }
  return {{.kind = VerdictKind::matches}, {}, fp32};
}

Verdict verdict_on_baseline(const Result& r, std::optional<Outcome> own) {
  if (!own && hardly_learned(r)) own = Outcome{.kind = VerdictKind::no_learning};
  return {{.kind = VerdictKind::baseline}, own};
}

Verdict verdict(const Results& results, const Results& references, const Result& r) {
  const std::optional<Outcome> own = failure_of(r);
  if (own && own->kind == VerdictKind::interrupted) return {*own};
  if (is_baseline(r)) return verdict_on_baseline(r, own);
  const Result* base = baseline(results, references, r);
  if (!base && own) return failed(r, *own);
  if (!base) return {{.kind = VerdictKind::interrupted}, {}, Outcome{.kind = VerdictKind::interrupted}};
  if (base->status == Status::diverged || hardly_learned(*base)) return where_fp32_fails(r, *base, own);
  if (own) return failed(r, *own);
  if (learned_nothing(r, *base) || !r.difference) return failed(r, {.kind = VerdictKind::no_learning});
  const Difference d = *r.difference;
  Outcome compared{.kind = VerdictKind::matches, .interval = d.half};
  if (r.metric.is_share()) {
    compared.points = 100 * d.mean;
    compared.interval = 100 * d.half;
  } else {
    compared.change = d.mean;
    compared.metric = r.metric.name;
  }
  if (!(r.metric.gain(d.mean) < -d.half)) return {compared};
  compared.kind = VerdictKind::worse;
  return failed(r, compared);
}

Finding from(const inspect::Finding& f, const amp::Recipe& recipe) {
  Finding made{.cause = f.cause, .phase = f.phase, .op = f.op, .site = f.site, .step = f.step};
  made.sentence = f.sentence;
  made.precision = f.precision;
  made.undone = f.undone;
  for (const inspect::Cure& c : f.cures) made.cures.push_back({inspect::edit(recipe, c.recipe), c.remedy});
  if (made.cures.empty()) return made;
  made.cure = made.cures[0].edit;
  made.remedy = made.cures[0].remedy;
  return made;
}

// A finding of no known cause.
Finding unknown(std::string sentence, bool precision = true) {
  return {.cause = inspect::Cause::unknown, .sentence = std::move(sentence), .precision = precision};
}

}  // namespace

const Result* baseline(const Results& results, const Results& references, const Result& run) {
  for (const Results* all : {&results, &references})
    for (const Result& b : *all)
      if (is_baseline(b) && b.seed == run.seed && b.model == run.model && b.data == run.data &&
          b.status != Status::interrupted)
        return &b;
  return nullptr;
}

void judge(std::vector<Result>& results, const std::vector<Result>& references) {
  for (Result& r : results) {
    const Pairs pairs = is_baseline(r) ? Pairs() : pairs_with_fp32(results, references, r.recipe);
    r.difference = pairs.empty() ? std::nullopt : std::optional(metric_difference(pairs));
    r.loss_difference = pairs.empty() ? std::nullopt : std::optional(loss_difference(pairs));
    r.verdict = verdict(results, references, r);
  }
  for (Result& r : results) {
    if (r.verdict.kind == VerdictKind::matches || (r.verdict.kind == VerdictKind::baseline && !r.verdict.fails()))
      r.findings.clear();
    if (r.verdict.kind != VerdictKind::not_precision) continue;
    std::erase_if(r.findings, [](const Finding& f) { return f.precision; });
    const Result* base = baseline(results, references, r);
    if (base && r.findings.empty()) r.findings = base->findings;
  }
}

bool fails(const Result& r) { return r.verdict.fails(); }

std::optional<std::vector<Finding>> explain(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe,
                                            std::uint64_t seed, const Options& options, const Result& result,
                                            const Result* fp32, inspect::Evidence e) try {
  Options quiet = options;
  quiet.progress = {};
  quiet.trace.clear();
  quiet.profile.clear();
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
  // fp32's failure excuses the recipe only if it is of the same kind.
  e.fp32_fails = fp32 && fails(*fp32) && !(result.status == Status::diverged && fp32->status != Status::diverged);
  e.trains = fp32 && fall(result) > 0.9 * fall(*fp32);
  const amp::Recipe in_fp32 = amp::recipe("fp32");
  e.first = observed(recipe, 0, 0);
  if (!is_baseline(result)) e.first_in_fp32 = observed(in_fp32, 0, 0);
  if (result.status == Status::diverged && !stopped) {
    const std::int64_t step = bad_step(result);
    const bool in_evaluation = step < 0;
    const std::int64_t last = in_evaluation ? result.steps - 1 : step;
    // The update before it may have made the parameters that give this loss.
    const std::int64_t first = in_evaluation ? last : last - 1;
    e.bad = observed(recipe, std::max<std::int64_t>(0, first), last, in_evaluation);
  }
  const auto first_skip = std::ranges::find(result.curve.skipped, true);
  if (first_skip != result.curve.skipped.end() && !stopped && !e.bad) {
    const auto step = first_skip - result.curve.skipped.begin();
    e.skip = observed(recipe, step, step);
  }
  if (stopped) return {};
  std::vector<inspect::Finding> found = inspect::diagnose(e);
  if (fp32) weigh(found, make_model, data, recipe, seed, options, result, *fp32);
  if (options.stop && options.stop()) return {};
  std::vector<Finding> findings;
  for (const inspect::Finding& f : found) findings.push_back(from(f, recipe));
  if (findings.empty())
    findings.push_back(unknown(std::string(inspect::cause_info(inspect::Cause::unknown).sentence), !e.fp32_fails));
  return findings;
} catch (const Error& error) { return {{unknown(std::string("the run could not be explained: ") + error.what())}}; }

}  // namespace gradual::lab
