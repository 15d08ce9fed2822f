#include "verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../core/support/error.h"
#include "intervention.h"
#include "objective.h"
#include "program_checks.h"
#include "run.h"
#include "sequential.h"
#include "statistics.h"

namespace gradual::lab {
namespace {

bool is_baseline(const Result& r) { return r.recipe == kBaseline; }

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

// The mean training loss of the last epoch, without losses that are not finite: their steps were skipped.
double last_loss(const Result& r) {
  if (std::isfinite(r.train_loss)) return r.train_loss;
  const auto steps = std::ssize(r.curve.loss) / std::max<std::int64_t>(1, r.epochs);
  return spread({r.curve.loss.end() - steps, r.curve.loss.end()}).mean;
}
// Whether the training loss ends a tenth or more above where it begins.
bool loss_rises(const Result& r) { return last_loss(r) > first_loss(r) + 0.1 * std::abs(first_loss(r)); }

// What is wrong with a run by itself; none: nothing.
std::optional<Outcome> failure_of(const Result& r) {
  if (r.status == Status::interrupted) return Outcome{.kind = VerdictKind::interrupted};
  const std::int64_t bad = r.status == Status::diverged ? bad_step(r) : -1;
  if (bad >= 0) return Outcome{.kind = VerdictKind::diverged, .step = bad};
  if (r.steps > 0 && 2 * r.skipped_steps >= r.steps)
    return Outcome{.kind = VerdictKind::mostly_skipped, .skipped = r.skipped_steps, .steps = r.steps};
  if (r.status == Status::diverged) return Outcome{.kind = VerdictKind::diverged};
  if (loss_rises(r)) return Outcome{.kind = VerdictKind::rising_loss, .low = first_loss(r), .high = last_loss(r)};
  return {};
}

double fall(const Result& r) { return first_loss(r) - last_loss(r); }

// Whether the training loss fell by less than a tenth of what fp32's fell.
bool learned_nothing(const Result& r, const Result& fp32) { return !(fall(r) >= 0.1 * fall(fp32)); }

// Whether the loss hardly fell, in a run judged without fp32.
bool hardly_learned(const Result& r) { return !(last_loss(r) < 0.95 * first_loss(r)); }

using Results = std::vector<Result>;

// The verdict on a run that does this; precision is not the cause if its first finding blames something else.
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
  // A run that is no better than a constant answer learns nothing, as fp32.
  if (own || hardly_learned(r) || !beats_constant(r)) {
    if (r.status == base.status) return same;
    // Another failure than fp32's is the recipe's.
    if (own && own->kind == VerdictKind::diverged) return failed(r, *own, fp32);
    return {{.kind = VerdictKind::not_precision}, own.value_or(no_learning), fp32};
  }
  // Where both end, the accuracies say whether one learned more.
  if (!failure) {
    const Difference d = metric_difference({{&r, &base}});
    if (std::isfinite(d.half) && !(r.metric.gain(d.mean) > d.half)) return same;
  }
  return {{.kind = VerdictKind::matches}, {}, fp32};
}

Verdict verdict_on_baseline(const Result& r, std::optional<Outcome> own) {
  if (!own && (hardly_learned(r) || !beats_constant(r))) own = Outcome{.kind = VerdictKind::no_learning};
  return {{.kind = VerdictKind::baseline}, own};
}

// What a recipe's runs give together.
struct RecipeAnswer {
  std::optional<Difference> accuracy = {};
  std::optional<Difference> loss = {};
  Outcome outcome = {};
  std::vector<Note> notes = {};
};

// The mean training losses of the epochs, of the steps whose loss is finite.
std::vector<double> epoch_losses(const Result& r) {
  const std::int64_t steps = std::ssize(r.curve.loss) / std::max<std::int64_t>(1, r.epochs);
  std::vector<double> losses;
  for (std::int64_t at = 0; steps > 0 && at + steps <= std::ssize(r.curve.loss); at += steps)
    losses.push_back(spread({r.curve.loss.begin() + at, r.curve.loss.begin() + at + steps}).mean);
  return losses;
}

// How far the last epoch's training loss lies above the best one's, as a factor.
double rise(const Result& r) {
  const std::vector<double> losses = epoch_losses(r);
  const double least = losses.empty() ? std::nan("") : std::ranges::min(losses);
  return least > 0 ? losses.back() / least : 1;
}

bool scales_dynamically(const Result& r) {
  return std::ranges::any_of(r.curve.scale, [&](double scale) { return scale != r.curve.scale[0]; });
}

// What the runs of these pairs have beside their answer. failed: runs of the recipe that are in none.
std::vector<Note> notes_of(const Pairs& pairs, std::int64_t failed) {
  double skipped = 0;
  double steps = 0;
  double nonfinite = 0;
  double least_scale = 1;
  double rises = 1;
  double fp32_rises = 1;
  for (const auto& [run, base] : pairs) {
    skipped += static_cast<double>(run->skipped_steps);
    steps += static_cast<double>(run->steps);
    nonfinite +=
        static_cast<double>(std::ranges::count_if(run->curve.loss, [](double v) { return !std::isfinite(v); }));
    if (scales_dynamically(*run)) least_scale = std::min(least_scale, run->final_scale);
    rises = std::max(rises, rise(*run));
    fp32_rises = std::max(fp32_rises, rise(*base));
  }
  constexpr double kRise = 1.25;
  std::vector<Note> notes;
  if (skipped > 0 && skipped >= 0.1 * steps) notes.push_back({NoteKind::skipped_steps, skipped, steps});
  if (nonfinite > 0) notes.push_back({NoteKind::nonfinite_losses, nonfinite, steps});
  if (rises >= kRise && fp32_rises < kRise) notes.push_back({NoteKind::loss_rise, rises, 1});
  if (least_scale < 1) notes.push_back({NoteKind::small_scale, std::log2(least_scale), 0});
  const auto seeds = static_cast<double>(std::ssize(pairs) + failed);
  if (failed > 0) notes.push_back({NoteKind::failed_seeds, static_cast<double>(failed), seeds});
  return notes;
}

RecipeAnswer answer_of(const Results& results, const Results& references, const std::string& recipe,
                       const Judging& judging) {
  RecipeAnswer answer;
  const Pairs pairs = pairs_with_fp32(results, references, recipe);
  if (recipe == kBaseline || pairs.empty()) return answer;
  answer.accuracy = metric_difference(pairs, judging.error);
  answer.loss = loss_difference(pairs, judging.error);
  double fp32_loss = 0;
  Compared compared{.metric = pairs[0].second->metric};
  for (const auto& [run, base] : pairs) {
    fp32_loss += base->test_loss / static_cast<double>(pairs.size());
    compared.fp32 += metric_of(*base) / static_cast<double>(pairs.size());
  }
  answer.outcome = decision(*answer.accuracy, *answer.loss, fp32_loss, judging, compared);
  answer.notes = notes_of(pairs, std::ranges::count_if(results, [&](const Result& r) {
                            return r.recipe == recipe && r.status == Status::diverged;
                          }));
  return answer;
}

bool is_worse(VerdictKind kind) { return kind == VerdictKind::worse || kind == VerdictKind::worse_loss; }

Verdict verdict(const Results& results, const Results& references, const Result& r, const RecipeAnswer& answer) {
  const std::optional<Outcome> own = failure_of(r);
  if (own && own->kind == VerdictKind::interrupted) return {*own};
  if (is_baseline(r)) return verdict_on_baseline(r, own);
  const Result* base = baseline(results, references, r);
  if (!base && own) return failed(r, *own);
  if (!base) return {{.kind = VerdictKind::interrupted}, {}, Outcome{.kind = VerdictKind::interrupted}};
  if (base->status == Status::diverged || hardly_learned(*base)) return where_fp32_fails(r, *base, own);
  if (own) return failed(r, *own);
  if (learned_nothing(r, *base) || !answer.accuracy) return failed(r, {.kind = VerdictKind::no_learning});
  if (is_worse(answer.outcome.kind)) return failed(r, answer.outcome);
  // fp32 knows its training data by heart and tells nothing of others: to match it is no success.
  if (!beats_constant(*base)) return where_fp32_fails(r, *base, own);
  Verdict compared{answer.outcome};
  compared.notes = answer.notes;
  return compared;
}

Finding from(const inspect::Finding& f, const amp::Recipe& recipe) {
  Finding made{.cause = f.cause, .phase = f.phase, .op = f.op, .site = f.site, .step = f.step};
  made.sentence = f.sentence;
  made.precision = f.precision;
  made.role = f.role;
  made.operands = f.operands;
  made.undone = f.undone;
  if (f.cures.empty()) return made;
  made.cure = inspect::edit(recipe, f.cures[0].recipe);
  made.remedy = f.cures[0].remedy;
  std::vector<inspect::Cure> by_turn = f.cures;
  std::ranges::stable_sort(by_turn, {}, &inspect::Cure::turn);
  for (const inspect::Cure& c : by_turn) made.cures.push_back({inspect::edit(recipe, c.recipe), c.remedy});
  return made;
}

// A finding of no known cause.
Finding unknown(std::string sentence, bool precision = true) {
  return {.cause = inspect::Cause::unknown, .sentence = std::move(sentence), .precision = precision};
}

// Whether no experiment is needed to blame the program: NaN in the data, a function that makes NaN, a dead layer. A
// backward that gives 0 is compared with differences of the loss.
bool is_certain(const std::vector<inspect::Finding>& found) {
  using enum inspect::Cause;
  if (found.empty()) return false;
  const bool in_forward = found[0].cause == bug && found[0].phase == Phase::forward;
  return in_forward || found[0].cause == data || found[0].cause == dead_units;
}

// One cannot tell yet whether the recipe is worse, and the verdict has no notes (skipped steps, a larger loss ..).
bool is_open(const Verdict& v) { return v.kind == VerdictKind::undecided && v.notes.empty(); }

// What fp32's run has, as findings of another run.
std::vector<Finding> inherited(std::vector<Finding> of_fp32) {
  for (Finding& f : of_fp32) f.source = FindingSource::fp32;
  return of_fp32;
}

// What a run of fp32 shows of the program: it holds under every recipe.
std::vector<Finding> of_program(const Result& fp32) {
  std::vector<Finding> found = fp32.findings;
  std::erase_if(found, [](const Finding& f) {
    return f.precision || inspect::cause_info(f.cause).holds != inspect::Holds::everywhere;
  });
  return found;
}

// The findings that a judged run has, of those that it had: its own, and those of fp32's run. Null: none has ended.
std::vector<Finding> findings_of(const Result& r, const Result* base) {
  // A run that does not fail has what fp32's run shows of the program, and nothing else.
  if (!r.verdict.fails() && r.verdict.kind != VerdictKind::interrupted) {
    if (!base) return {};
    const std::vector<Finding> shown = of_program(*base);
    return is_baseline(r) ? shown : inherited(shown);
  }
  std::vector<Finding> found = r.findings;
  // What is not certain to be worse needs no finding without evidence. That an Error ended the replays is told.
  if (is_open(r.verdict))
    std::erase_if(
        found, [](const Finding& f) { return f.cause == inspect::Cause::unknown && f.source != FindingSource::error; });
  if (r.verdict.kind != VerdictKind::not_precision) return found;
  std::erase_if(found, [](const Finding& f) { return f.precision; });
  // Experiments explain fp32's run, and this one if it fails in the same way.
  const bool same = base && fails(*base) && r.status == base->status && !base->findings.empty();
  if (!base || !(same || found.empty())) return found;
  // Findings of its own stay where the verdict rests on them.
  if (!r.verdict.own) found.clear();
  const std::vector<Finding> first = inherited(base->findings);
  found.insert(found.begin(), first.begin(), first.end());
  return found;
}

// The same data, loaded at most once for this seed: replays and trials of a run share them.
LabData loaded_once(const LabData& data, std::uint64_t seed) {
  LabData once = data;
  const auto loaded = std::make_shared<std::optional<data::Split>>();
  once.load = [load = data.load, seed, loaded](std::uint64_t wanted) {
    if (wanted != seed) return load(wanted);
    if (!*loaded) *loaded = load(seed);
    return **loaded;
  };
  return once;
}

// What an experiment bears out explains fp32's run alone. Where rates were tried, thresholds do not blame the rate.
void apply(const ProgramChecks& checks, std::vector<inspect::Finding>& found) {
  if (!checks.findings.empty()) found = checks.findings;
  else if (checks.rates_tried)
    std::erase_if(found, [](const inspect::Finding& f) {
      return f.cause == inspect::Cause::learning_rate || f.cause == inspect::Cause::small_rate;
    });
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

Judging judging_of(const Options& options) {
  const std::vector<int> planned = looks(options.seeds, options.until);
  return {.margin = options.margin,
          .loss_margin = options.loss_margin,
          .metric_margin = options.metric_margin,
          .error = error_of_a_look(static_cast<int>(planned.size()))};
}

void judge(std::vector<Result>& results, const std::vector<Result>& references, const Judging& judging) {
  // What an earlier call took from fp32's run decides nothing.
  for (Result& r : results) std::erase_if(r.findings, [](const Finding& f) { return f.source == FindingSource::fp32; });
  std::map<std::string, RecipeAnswer> answers;
  for (const Result& r : results)
    if (!answers.contains(r.recipe)) answers[r.recipe] = answer_of(results, references, r.recipe, judging);
  for (Result& r : results) {
    const RecipeAnswer& answer = answers[r.recipe];
    r.difference = answer.accuracy;
    r.loss_difference = answer.loss;
    r.verdict = verdict(results, references, r, answer);
  }
  for (Result& r : results) r.findings = findings_of(r, baseline(results, references, r));
}

bool fails(const Result& r) { return r.verdict.fails(); }

bool may_be_decided(const Result& r, const Options& options) {
  return r.verdict.kind == VerdictKind::undecided && looks(options.seeds, options.until).size() > 1;
}

bool is_alarm(const Result& r) { return !r.findings.empty() || (fails(r) && !is_open(r.verdict)); }

bool lacks_explanation(const Result& r) { return is_worse(r.verdict.kind) && r.findings.empty(); }

bool may_have_to_explain(const Result& r) { return fails(r) || (is_baseline(r) && r.seed == 0); }

bool has_to_explain(const Result& r, const inspect::Evidence& evidence) {
  return fails(r) || (may_have_to_explain(r) && may_lose_gradients(evidence.updates));
}

std::optional<std::vector<Finding>> explain(const MakeModel& make_model, const LabData& given,
                                            const amp::Recipe& recipe, std::uint64_t seed, const Options& options,
                                            const Result& result, const Result* fp32, inspect::Evidence e) try {
  const LabData data = loaded_once(given, seed);
  Options quiet = options;
  quiet.progress = {};
  quiet.trace.clear();
  quiet.profile.clear();
  if (!fails(result)) {
    const std::optional<inspect::Finding> lost = lost_gradient(make_model, data, seed, quiet, e.updates);
    return lost ? std::vector<Finding>{from(*lost, recipe)} : std::vector<Finding>{};
  }
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
  std::string sentence(inspect::cause_info(inspect::Cause::unknown).sentence);
  if (is_baseline(result) && seed == 0 && !is_certain(found)) {
    const ProgramChecks checks = check_program(make_model, data, seed, quiet, result, e.updates);
    if (checks.stopped) return {};
    apply(checks, found);
    for (std::size_t i = 0; i < checks.excluded.size(); ++i) sentence += (i == 0 ? ": " : "; ") + checks.excluded[i];
  }
  if (fp32) weigh(found, make_model, data, recipe, seed, options, result, *fp32);
  else std::erase_if(found, [](const inspect::Finding& f) { return f.is_unproven(); });  // no trial will prove them
  if (options.stop && options.stop()) return {};
  std::vector<Finding> findings;
  for (const inspect::Finding& f : found) findings.push_back(from(f, recipe));
  if (findings.empty()) findings.push_back(unknown(sentence, !e.fp32_fails));
  return findings;
} catch (const Error& error) {
  Finding told = unknown(std::string("the run could not be explained: ") + error.what());
  told.source = FindingSource::error;
  return {{told}};
}

}  // namespace gradual::lab
