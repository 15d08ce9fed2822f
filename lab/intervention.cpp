#include "intervention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "../core/support/error.h"
#include "../inspect/cures.h"
#include "run.h"
#include "statistics.h"
#include "verdict.h"

namespace gradual::lab {
namespace {

constexpr std::int64_t kAfterDivergence = 4;  // steps that a trial goes on after the step of divergence
constexpr std::int64_t kFewestSteps = 6;      // of a trial of a loss
constexpr double kClearGap = 0.05;            // of fp32's test loss: below it there is no failure to measure
constexpr double kInTraining = 0.5;           // of the difference of test losses: more of it is in evaluation alone
constexpr double kClearErrors = 4;            // standard errors of a difference of training losses that is clear
constexpr double kLeastGap = 0.002;           // of fp32's training loss
constexpr double kCures = 0.5;                // a cure undoes at least so much
constexpr double kCuresAll = 0.98;            // of the failure: more is not told apart
constexpr double kGeneric = 0.3;              // that a generic cure must undo more than one of the mechanism
constexpr std::int64_t kMoreTrials = 5;       // that the budget leaves room for: of cures, of causes together

// What the run does by itself.
const Outcome& own_outcome(const Result& r) { return r.verdict.own ? *r.verdict.own : r.verdict; }

double mean(const std::vector<double>& values, std::size_t first, std::size_t last) {
  double sum = 0;
  for (std::size_t i = first; i < last; ++i) sum += values[i];
  return sum / static_cast<double>(last - first);
}

}  // namespace

std::string to_string(const Change& change) {
  std::string text = change.edit;
  for (const inspect::Exact& e : change.exact) text += (text.empty() ? "" : "; ") + inspect::to_string(e);
  return text;
}

Trials::Trials(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe, std::uint64_t seed,
               const Options& options, const Result& run, const Result& fp32, std::int64_t budget)
    : make_model_(make_model),
      data_(data),
      recipe_(recipe),
      seed_(seed),
      options_(options),
      run_(run),
      fp32_(fp32),
      budget_(budget) {
  options_.progress = {};
  options_.save.clear();
  options_.trace.clear();
  options_.profile.clear();
}

bool Trials::stopped() const { return options_.stop && options_.stop(); }

double Trials::measure_of_curve(const std::vector<double>& loss, std::int64_t skipped) const {
  const std::size_t n = std::min(loss.size(), static_cast<std::size_t>(failure_.steps));
  if (n == 0) return std::nan("");
  if (failure_.kind == FailureKind::skips) return 1 - static_cast<double>(skipped) / static_cast<double>(n);
  if (failure_.kind == FailureKind::loss) return mean(loss, n / 2, n);
  const auto last = static_cast<std::size_t>(failure_.steps);
  const std::size_t first = last - std::min<std::size_t>(last, kAfterDivergence);
  double finite = 0;
  for (std::size_t i = first; i < std::min(last, loss.size()); ++i) finite += std::isfinite(loss[i]);
  return finite / static_cast<double>(last - first);
}

std::optional<inspect::ObservedStep> Trials::first_step() const {
  return Run(make_model_, data_, recipe_, seed_, options_).replay(0, 0);
}

// The run's measure and fp32's differ clearly.
bool Trials::shows() const {
  if (!std::isfinite(failure_.fp32)) return false;
  if (failure_.kind == FailureKind::divergence) return failure_.run < failure_.fp32;
  if (failure_.kind == FailureKind::skips) return failure_.run + inspect::kDoesHarm < failure_.fp32;
  if (!std::isfinite(failure_.run)) return true;
  const double gap = failure_.run - failure_.fp32;
  if (failure_.kind == FailureKind::evaluation) return gap > kClearGap * std::abs(failure_.fp32);
  // Both runs see the same batches: the differences are paired.
  std::vector<double> differences;
  const auto steps = static_cast<std::size_t>(failure_.steps);
  for (std::size_t i = steps / 2; i < std::min({steps, run_.curve.loss.size(), fp32_.curve.loss.size()}); ++i)
    differences.push_back(run_.curve.loss[i] - fp32_.curve.loss[i]);
  const Spread s = spread(differences);
  const double error = s.deviation / std::sqrt(static_cast<double>(s.count));
  return gap > kClearErrors * error && gap > kLeastGap * std::abs(failure_.fp32);
}

bool Trials::begin(std::int64_t count) {
  const std::int64_t all = std::max(run_.steps, fp32_.steps);
  const Outcome& own = own_outcome(run_);
  known_.clear();
  failure_ = {};
  const auto skipped_of = [](const Result& r, std::int64_t steps) {
    std::int64_t skipped = 0;
    for (std::size_t i = 0; i < r.curve.skipped.size() && static_cast<std::int64_t>(i) < steps; ++i)
      skipped += r.curve.skipped[i];
    return skipped;
  };
  const auto measure_curves = [&] {
    failure_.run = measure_of_curve(run_.curve.loss, skipped_of(run_, failure_.steps));
    failure_.fp32 = measure_of_curve(fp32_.curve.loss, skipped_of(fp32_, failure_.steps));
    return shows();
  };
  if (own.kind == VerdictKind::diverged && own.step >= 0) {
    failure_.kind = FailureKind::divergence;
    failure_.steps = std::min(all, own.step + kAfterDivergence);
    return measure_curves();
  }
  if (own.kind == VerdictKind::mostly_skipped) failure_.kind = FailureKind::skips;
  const std::int64_t fitting = std::max(kFewestSteps, budget_ / std::max<std::int64_t>(1, count + 1));
  const double worse_in_test = run_.test_loss - fp32_.test_loss;
  const bool trains_well =
      worse_in_test > kClearGap * fp32_.test_loss && run_.train_loss - fp32_.train_loss < kInTraining * worse_in_test;
  const bool in_evaluation = own.kind == VerdictKind::diverged || trains_well;
  for (std::int64_t steps = std::min(all, fitting); !in_evaluation; steps = std::min(all, 2 * steps)) {
    failure_.steps = steps;
    if (measure_curves()) return true;
    if (steps == all) break;
  }
  failure_.kind = FailureKind::evaluation;
  failure_.steps = all;
  failure_.run = run_.test_loss;
  failure_.fp32 = fp32_.test_loss;
  return shows() || !std::isfinite(failure_.run);
}

amp::Recipe Trials::changed(const std::string& edit) const {
  amp::Recipe r = edit.empty() ? recipe_ : inspect::edited(recipe_, edit);
  // What is exact in forward shall not be rounded a second time by codes kept for backward.
  if (r.quantization) r.quantization->save_codes = false;
  return r;
}

std::optional<double> Trials::measured(const amp::Recipe& recipe, const std::vector<inspect::Exact>& exact) try {
  Run run(make_model_, data_, recipe, seed_, options_);
  run.intervene(exact);
  const bool ended = run.train_to(failure_.steps);
  spent_ += static_cast<std::int64_t>(run.curve().loss.size());
  if (!ended) return {};
  if (failure_.kind == FailureKind::evaluation) return run.test_loss();
  return measure_of_curve(run.curve().loss, run.skipped_steps());
} catch (const Error&) { return {}; }  // the change does not fit the model

std::optional<double> Trials::undone(const Change& change) {
  const std::string key = to_string(change);
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  if (stopped() || spent_ + failure_.steps > budget_) return {};
  std::optional<double>& share = known_[key];
  const std::optional<double> got = measured(changed(change.edit), change.exact);
  if (!got) return share;
  const double gap = failure_.fp32 - failure_.run;
  double undone = std::isfinite(*got) ? 1 : -1;
  if (std::isfinite(gap)) undone = std::isfinite(*got) ? (*got - failure_.run) / gap : -1;
  share = std::clamp(undone, -1.0, 1.0);
  return share;
}

bool Trials::runs(const std::string& edit) {
  // A trial of the same edit has shown it, unless it ran without the codes that the edited recipe keeps.
  const auto tried = known_.find(to_string(Change{.edit = edit}));
  const bool same = !(recipe_.quantization && recipe_.quantization->save_codes);
  if (same && tried != known_.end() && tried->second) return true;
  const auto [known, is_new] = runs_.try_emplace(edit, false);
  if (is_new) known->second = one_step_runs(edit);
  return known->second;
}

bool Trials::one_step_runs(const std::string& edit) try {
  const amp::Recipe recipe = inspect::edited(recipe_, edit);
  Run run(make_model_, data_, recipe, seed_, options_);
  run.intervene({});
  run.train_to(1);
  return true;
} catch (const Error&) { return false; }

std::vector<double> Trials::losses(const Change& change, std::int64_t steps) {
  const amp::Recipe recipe = changed(change.edit);
  Run run(make_model_, data_, recipe, seed_, options_);
  run.intervene(change.exact);
  run.train_to(steps);
  return run.curve().loss;
}

namespace {

// The trial of a finding.
Change change_of(const inspect::Finding& f, const amp::Recipe& recipe) {
  const inspect::TrialChange change = f.trial();
  return {.edit = change.edit ? inspect::edit(recipe, change.edit->recipe) : "", .exact = change.exact};
}

// Findings that trials bear out come first, then those without a trial, then those whose undoing changes nothing.
// Clear findings that blame the program explain more than any trial of the recipe. A trial of a generic cure is
// evidence for the place alone.
int order_of(const inspect::Finding& f) {
  if (!f.precision && f.severity >= inspect::kClearlyTheProgram) return 0;
  if (!f.precision || !f.undone) return 10;
  if (*f.undone < inspect::kDoesHarm) return 20;
  const inspect::TrialChange tried = f.trial();
  const bool generic = tried.edit && tried.edit->generic;
  return 9 - static_cast<int>(std::lround(8 * std::max(0.0, *f.undone - (generic ? kGeneric : 0))));
}

// Two findings of one loss: where other scales undo half of what exact numbers do, or outlier channels in f32 nearly
// all of it, these are its cause and come before it. The loss of outlier channels is any finding of numbers of their
// role at their site: of those that become 0, are clipped or rounded.
void put_causes_first(std::vector<inspect::Finding>& findings) {
  constexpr double kNearlyAll = 0.97;
  for (auto f = findings.begin(); f != findings.end(); ++f) {
    const bool outliers = f->cause == inspect::Cause::outlier_channels;
    const bool scales = f->cause == inspect::Cause::delayed_scale || f->cause == inspect::Cause::scale_range;
    const auto is_loss = [&](const inspect::Finding& g) {
      const bool same = outliers ? g.role == f->role : g.severity == f->severity;
      return same && !g.exact.empty() && g.site == f->site && g.phase == f->phase && g.undone;
    };
    if (!(scales || outliers) || !f->undone || !f->exact.empty()) continue;
    const auto lost = std::find_if(findings.begin(), f, is_loss);
    const double least = outliers ? kNearlyAll : kCures;
    if (lost != f && *f->undone >= least * *lost->undone) std::rotate(lost, f, f + 1);
  }
}

// Where no single mechanism undoes the failure but all together do, the weight of each is what is lost without it.
void weigh_together(std::vector<inspect::Finding>& findings, const amp::Recipe& recipe, Trials& trials) {
  std::vector<inspect::Finding*> members;
  for (inspect::Finding& f : findings) {
    if (f.undone && *f.undone >= kCures) return;
    if (!f.exact.empty()) members.push_back(&f);
  }
  const auto all_but = [&](const inspect::Finding* left_out) {
    Change change;
    for (const inspect::Finding* f : members) {
      if (f == left_out) continue;
      const Change one = change_of(*f, recipe);
      change.exact.insert(change.exact.end(), one.exact.begin(), one.exact.end());
    }
    return trials.undone(change);
  };
  if (members.size() < 2) return;
  const std::optional<double> all = all_but(nullptr);
  if (!all || *all < kCures) return;
  std::vector<std::pair<inspect::Finding*, double>> weights;
  for (inspect::Finding* f : members)
    if (const std::optional<double> without = all_but(f)) weights.emplace_back(f, *all - *without);
  for (const auto& [f, weight] : weights) f->undone = std::max(f->undone.value_or(0), weight);
}

// The place of a cure that undoes this share of the failure: those that undo all are equal, so that the smallest edit
// comes first. A generic cure must undo clearly more than one of the mechanism.
double place_of(const inspect::Cure& cure, const std::optional<double>& share) {
  constexpr double kUntried = 2;
  constexpr double kHelpsNot = 3;
  if (!share) return kUntried;
  if (*share < inspect::kDoesHarm) return kHelpsNot;
  const double undone = *share >= kCuresAll ? 1 : *share;
  return 1 - undone + (cure.generic ? kGeneric : 0);
}

// Tries the cures of a finding, and puts what undoes the failure first. One that changes nothing goes. A training may
// show that a smaller edit does as well, so the turns go by size; cures of any mechanism, and those that help little,
// come late.
void weigh_cures(inspect::Finding& f, const amp::Recipe& recipe, Trials& trials) {
  struct Weighed {
    inspect::Cure cure;
    double place = 0;
    bool helps = true;
  };
  std::vector<Weighed> tried;
  bool found = false;  // the smallest edit that undoes all: larger ones wait
  for (inspect::Cure& c : f.cures) {
    std::optional<double> share;
    if (!found) share = trials.undone({.edit = inspect::edit(recipe, c.recipe)});
    found = found || (share && *share >= kCuresAll && !c.generic);
    if (share && *share == 0) continue;
    const double place = place_of(c, share);
    tried.push_back({.cure = std::move(c), .place = place, .helps = !share || *share >= inspect::kDoesHarm});
  }
  std::ranges::stable_sort(tried, {}, [](const Weighed& w) { return std::pair(!w.helps, w.cure.generic); });
  for (std::size_t i = 0; i < tried.size(); ++i) tried[i].cure.turn = static_cast<int>(i);
  std::ranges::stable_sort(tried, std::less(), &Weighed::place);
  f.cures.clear();
  for (Weighed& w : tried) f.cures.push_back(std::move(w.cure));
}

}  // namespace

void weigh(std::vector<inspect::Finding>& findings, const MakeModel& make_model, const LabData& data,
           const amp::Recipe& recipe, std::uint64_t seed, const Options& options, const Result& run,
           const Result& fp32) {
  const auto drop_unproven = [&findings] {
    std::erase_if(findings, [](const inspect::Finding& f) { return f.is_unproven(); });
  };
  const std::int64_t budget = options.explain_steps < 0 ? std::max(run.steps, fp32.steps) : options.explain_steps;
  Trials trials(make_model, data, recipe, seed, options, run, fp32, budget);
  const auto runs = [&](const inspect::Cure& c) { return trials.runs(inspect::edit(recipe, c.recipe)); };
  const auto drop_impossible = [&] {
    for (inspect::Finding& f : findings) std::erase_if(f.cures, [&](const inspect::Cure& c) { return !runs(c); });
  };
  // `alone` or the first cure may be a finding's trial. Of the others only those that no trial has run need a step, at
  // the end.
  for (inspect::Finding& f : findings) {
    if (f.alone && !runs(*f.alone)) f.alone.reset();
    while (!f.cures.empty() && !runs(f.cures.front())) f.cures.erase(f.cures.begin());
  }
  std::int64_t count = 0;
  for (const inspect::Finding& f : findings) count += f.can_be_tried();
  if (seed != 0 || budget == 0 || count == 0 || !trials.begin(count + kMoreTrials)) {
    drop_unproven();
    drop_impossible();
    return;
  }
  for (inspect::Finding& f : findings) {
    if (f.can_be_tried()) f.undone = trials.undone(change_of(f, recipe));
  }
  weigh_together(findings, recipe, trials);
  std::ranges::stable_sort(findings, std::less(), order_of);
  put_causes_first(findings);
  drop_unproven();
  for (inspect::Finding& f : findings)
    if (f.precision) weigh_cures(f, recipe, trials);
  drop_impossible();
}

}  // namespace gradual::lab
