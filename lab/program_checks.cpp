#include "program_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "../core/support/generator.h"
#include "../inspect/explain.h"
#include "objective.h"
#include "odd_samples.h"
#include "run.h"
#include "target_checks.h"

namespace gradual::lab {
namespace {

using inspect::Cause;
using inspect::Finding;

constexpr std::int64_t kTrials = 6;
constexpr std::int64_t kFewestSteps = 40;  // of a trial
constexpr double kLearns = 0.9;            // of the loss of a constant answer, or of the first loss
constexpr std::int64_t kLastPart = 4;      // the last quarter of a trial's steps counts
constexpr double kShortWay = 0.1;          // of the weights: a run whose updates sum up to less may need a larger rate
constexpr std::int64_t kMostSamples = 64;  // of the batch on which gradients are checked

double mean_of_last_part(const std::vector<double>& loss, std::int64_t steps) {
  const auto end = std::min(std::ssize(loss), steps);
  const auto first = end - std::max<std::int64_t>(1, end / kLastPart);
  double sum = 0;
  for (auto i = std::max<std::int64_t>(0, first); i < end; ++i) sum += loss[static_cast<std::size_t>(i)];
  return end > 0 ? sum / static_cast<double>(end - std::max<std::int64_t>(0, first)) : std::nan("");
}

data::Batch in_f64(data::Batch batch) {
  const auto wide = [](const Tensor& t) { return t.is_floating() ? t.to(DType::f64) : t; };
  batch.inputs = wide(batch.inputs);
  batch.targets = wide(batch.targets);
  for (auto& [field, values] : batch.fields) values = wide(values);
  return batch;
}

Options without_outputs(Options options) {
  options.progress = {};
  options.save.clear();
  options.trace.clear();
  options.profile.clear();
  return options;
}

struct Trial {
  bool learns = false;
  double loss = 0;
};

// Short trainings in fp32, as long as the budget of steps lasts.
class Trials {
 public:
  Trials(const MakeModel& make_model, const LabData& data, std::uint64_t seed, const Options& options,
         const Result& run)
      : make_model_(make_model), data_(data), seed_(seed), options_(options), run_(run) {
    const data::Dataset train = data.load(seed).train;
    planned_ = (train.size() + options.batch - 1) / options.batch * options.epochs;
    budget_ = options.explain_steps >= 0 ? options.explain_steps : std::max(planned_, kTrials * kFewestSteps);
    constant_ = loss_of_constant(train);
    choose_steps();
  }

  std::int64_t steps() const { return steps_; }  // of a trial
  double constant() const { return constant_; }  // the loss of the best constant answer; NaN: unknown
  bool affordable() const { return spent_ + steps_ <= budget_; }

  // None if the budget is spent, or if it cannot be trained.
  std::optional<Trial> trained(const LabData& data, double rate) try {
    if (steps_ == 0 || spent_ + steps_ > budget_ || (options_.stop && options_.stop())) return {};
    Options options = options_;
    options.lr = rate;
    const amp::Recipe fp32 = amp::recipe("fp32");
    Run run(make_model_, data, fp32, seed_, options);
    run.intervene({});
    const bool ended = run.train_to(steps_);
    const std::vector<double> loss = run.curve().loss;
    spent_ += std::ssize(loss);
    if (!ended) return {};
    Trial trial{.loss = mean_of_last_part(loss, steps_)};
    if (!learns(loss, steps_)) return trial;
    run.test_loss();
    trial.learns = beats_constant(run.result());
    return trial;
  } catch (const Error&) { return {}; }

 private:
  double loss_of_constant(const data::Dataset& train) const {
    Objective objective = objective_of(data_, options_.loss, options_.metric);
    if (objective.loss.function) return std::nan("");
    if (objective.loss.known() == KnownLoss::mse) objective.metric = Metric("mse");
    else objective.metric = Metric("loss");
    return constant_metric(objective, train);
  }

  bool learns(const std::vector<double>& loss, std::int64_t steps) const {
    if (loss.empty()) return false;
    double from = loss[0];
    if (std::isfinite(constant_)) from = std::min(from, constant_);
    return mean_of_last_part(loss, steps) < from - (1 - kLearns) * std::abs(from);
  }

  // So many that the run does not learn in them.
  void choose_steps() {
    steps_ = std::min(planned_, std::max(kFewestSteps, planned_ / kTrials));
    if (options_.explain_steps >= 0) steps_ = std::min(steps_, options_.explain_steps);
    while (steps_ < planned_ && learns(run_.curve.loss, steps_)) steps_ = std::min(planned_, 2 * steps_);
    if (learns(run_.curve.loss, steps_)) budget_ = 0;  // it fails in evaluation alone, or by a hair
  }

  const MakeModel& make_model_;
  const LabData& data_;
  const std::uint64_t seed_;
  const Options& options_;
  const Result& run_;
  std::int64_t planned_ = 0;
  std::int64_t steps_ = 0;
  std::int64_t budget_ = 0;
  std::int64_t spent_ = 0;
  double constant_ = 0;
};

// The initial model's gradients of the loss on the first samples, against differences of the loss. None if the model or
// the loss refuses the dtype. wide: in f64, else as the model is. names: of the parameters; empty: any.
std::optional<inspect::GradientCheck> gradients_in(bool wide, const MakeModel& make_model, const LabData& data,
                                                   std::uint64_t seed, const Options& options,
                                                   const std::vector<std::string>& names) try {
  Generator generator(seed);
  const GeneratorScope scope(generator);
  const Objective objective = objective_of(data, options.loss, options.metric);
  const std::shared_ptr<nn::Module> model = make_model();
  model->to(options.device);
  if (wide) model->to(DType::f64);
  const data::Dataset train = data.load(seed).train;
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < std::min({options.batch, kMostSamples, train.size()}); ++i) rows.push_back(i);
  data::Batch batch = data::take(train, rows);
  if (wide) batch = in_f64(batch);
  batch.inputs = batch.inputs.to(options.device);
  batch.targets = batch.targets.to(options.device);
  for (auto& [field, values] : batch.fields) values = values.to(options.device);
  return inspect::check_gradients(
      *model, [&] { return lab::loss_of(objective.loss, outputs_of(*model, batch, !objective.loss.is_output())); },
      names);
} catch (const Error&) { return {}; }

// In f64; as the model is if a function takes no f64.
std::optional<inspect::GradientCheck> checked_gradients(const MakeModel& make_model, const LabData& data,
                                                        std::uint64_t seed, const Options& options,
                                                        const std::vector<std::string>& names = {}) {
  std::optional<inspect::GradientCheck> check = gradients_in(true, make_model, data, seed, options, names);
  if (!check) check = gradients_in(false, make_model, data, seed, options, names);
  return check;
}

// How alike the targets of near samples are, as the end of a sentence.
std::string text_of(const NearestTargets& near) {
  if (near.of_classes)
    return fmt::format("; the nearest sample has the same target in {:.1f}% of the cases, a random one in {:.1f}%",
                       100 * near.nearest, 100 * near.random);
  return fmt::format(
      "; the target of the nearest sample differs by {:.3g} (mean square), that of a random one by "
      "{:.3g}",
      near.nearest, near.random);
}

// The experiments on one run.
class Checks {
 public:
  Checks(const MakeModel& make_model, const LabData& data, std::uint64_t seed, const Options& options,
         const Result& run, const std::vector<inspect::Update>& updates)
      : make_model_(make_model), data_(data), seed_(seed), options_(without_outputs(options)), run_(run) {
    for (const inspect::Update& u : updates)
      if (u.part == inspect::UpdatePart::whole) updates_ += u;
  }

  ProgramChecks run() {
    if (!gradient_is_wrong() && !sample_is_broken() && !fails_early() && !rate_is_wrong()) labels_are_wrong();
    found_.stopped = options_.stop && options_.stop();
    return std::move(found_);
  }

 private:
  void add(Cause cause, std::string site, std::string sentence) {
    Finding f{.cause = cause};
    if (cause == Cause::learning_rate || cause == Cause::small_rate) f.phase = Phase::optimizer;
    f.role = inspect::cause_info(cause).role;
    f.site = std::move(site);
    f.sentence = std::move(sentence);
    f.precision = false;
    f.severity = 3;
    found_.findings.push_back(std::move(f));
  }

  bool gradient_is_wrong() {
    const std::optional<inspect::GradientCheck> check = checked_gradients(make_model_, data_, seed_, options_);
    if (!check) return false;
    if (const std::optional<Finding> wrong = inspect::finding_of(*check)) {
      found_.findings.push_back(*wrong);
      return true;
    }
    found_.excluded.emplace_back("the gradients of the initial model are right");
    return false;
  }

  bool sample_is_broken() {
    if (!trials_.affordable()) return false;
    std::vector<OddSample> odd;
    try {
      odd = odd_samples(make_model_, data_, seed_, options_, run_);
    } catch (const Error&) { return false; }
    if (odd.empty()) {
      found_.excluded.emplace_back("no sample stands out");
      return false;
    }
    std::vector<std::int64_t> rows;
    for (const OddSample& s : odd) rows.push_back(s.index);
    std::optional<Trial> trial = trials_.trained(without(data_, rows), options_.lr);
    if (!trial || !trial->learns) {
      if (trial) found_.excluded.push_back(fmt::format("it fails without the {} samples that stand out", odd.size()));
      return false;
    }
    if (odd.size() > 1)
      if (const std::optional<Trial> alone = trials_.trained(without(data_, {rows[0]}), options_.lr);
          alone && alone->learns) {
        trial = alone;
        rows.resize(1);
      }
    std::string names;
    for (const std::int64_t i : rows) names += fmt::format("{}{}", names.empty() ? "" : ", ", i);
    add(Cause::broken_sample, fmt::format("sample {}", names),
        fmt::format(
            "without sample{} {} of the training data (from 0) the loss falls to {:.3g} in {} steps, with {} to "
            "{:.3g}: {}",
            rows.size() > 1 ? "s" : "", names, trial->loss, trials_.steps(), rows.size() > 1 ? "them" : "it",
            mean_of_last_part(run_.curve.loss, trials_.steps()), odd[0].why));
    return true;
  }

  // Before the optimizer's first step.
  bool fails_early() const { return !run_.curve.loss.empty() && !std::isfinite(run_.curve.loss[0]); }

  double rate() const { return options_.lr != 0 ? options_.lr : optimizer_info(options_.optimizer).lr; }
  // |update| / |weight|, summed over the steps.
  double way() const { return updates_.ratio() * static_cast<double>(run_.steps); }
  bool loss_stays() const {
    return std::ranges::all_of(run_.curve.loss, [this](double v) { return v < 2 * std::abs(run_.curve.loss[0]); });
  }

  // Rates to try, one after the other.
  std::vector<double> rates() const {
    const double own = optimizer_info(options_.optimizer).lr;
    const bool up = loss_stays() && way() < kShortWay;
    std::vector<double> all;
    if (up ? own > 2 * rate() : own < rate() / 2) all.push_back(own);
    for (const double factor : {10.0, 100.0, 1000.0}) {
      const double other = up ? rate() * factor : rate() / factor;
      const bool near = !all.empty() && std::abs(std::log10(other / all[0])) < 0.5;
      if (!near) all.push_back(other);
    }
    return all;
  }

  bool rate_is_wrong() {
    std::string tried;
    for (const double other : rates()) {
      const std::optional<Trial> trial = trials_.trained(data_, other);
      if (!trial) break;
      found_.rates_tried = true;
      tried += fmt::format("{}{:.3g}", tried.empty() ? "" : ", ", other);
      if (!trial->learns) continue;
      const bool larger = other > rate();
      add(larger ? Cause::small_rate : Cause::learning_rate, "",
          fmt::format("with a learning rate of {:.3g} the loss falls to {:.3g} in {} steps, with {:.3g} to {:.3g}; the "
                      "updates of all steps are {:.2g} of the weights together",
                      other, trial->loss, trials_.steps(), rate(), mean_of_last_part(run_.curve.loss, trials_.steps()),
                      way()));
      return true;
    }
    if (!tried.empty()) found_.excluded.push_back(fmt::format("it learns with no rate of {} either", tried));
    return false;
  }

  void labels_are_wrong() {
    const std::optional<NearestTargets> near = nearest_targets(data_.load(seed_).train);
    if (near && near->tells) {
      found_.excluded.emplace_back("the nearest samples have alike targets");
      return;
    }
    const std::optional<LabData> other = taught(data_, seed_);
    const std::optional<Trial> trial = other ? trials_.trained(*other, options_.lr) : std::nullopt;
    if (!trial) return;
    if (!trial->learns) {
      found_.excluded.emplace_back("it does not learn a random function of the inputs either");
      return;
    }
    add(Cause::labels, "the targets",
        fmt::format("the loss ends at {:.3g}, where a constant answer gives {:.3g}; targets that are a random function "
                    "of the same inputs are learned to {:.3g} in {} steps",
                    mean_of_last_part(run_.curve.loss, run_.steps), trials_.constant(), trial->loss, trials_.steps()));
    if (near) found_.findings.back().sentence += text_of(*near);
  }

  const MakeModel& make_model_;
  const LabData& data_;
  const std::uint64_t seed_;
  const Options options_;
  const Result& run_;
  inspect::Update updates_;
  Trials trials_{make_model_, data_, seed_, options_, run_};
  ProgramChecks found_;
};

// The parameters whose gradient was 0 in every observed step: updates without weight decay are 0.
std::vector<std::string> without_gradient(const std::vector<inspect::Update>& updates) {
  using inspect::UpdatePart;
  const auto is_part_of = [&updates](const std::string& parameter, UpdatePart part) {
    return std::ranges::any_of(updates,
                               [&](const inspect::Update& u) { return u.part == part && u.parameter == parameter; });
  };
  std::vector<std::string> names;
  for (const inspect::Update& u : updates) {
    const bool decays = is_part_of(u.parameter, UpdatePart::gradient_step);
    if (u.part == (decays ? UpdatePart::gradient_step : UpdatePart::whole) && u.elements > 0 && u.intended == 0)
      names.push_back(u.parameter);
  }
  return names;
}

}  // namespace

bool may_lose_gradients(const std::vector<inspect::Update>& updates) { return !without_gradient(updates).empty(); }

std::optional<inspect::Finding> lost_gradient(const MakeModel& make_model, const LabData& data, std::uint64_t seed,
                                              const Options& options, const std::vector<inspect::Update>& updates) {
  const std::vector<std::string> names = without_gradient(updates);
  if (names.empty()) return {};
  std::optional<inspect::GradientCheck> check = checked_gradients(make_model, data, seed, options, names);
  if (!check) return {};
  // Only what is 0: of a run that learns nothing else is said.
  std::erase_if(check->parameters, [](const inspect::GradientSlope& s) { return s.predicted != 0; });
  return inspect::finding_of(*check);
}

ProgramChecks check_program(const MakeModel& make_model, const LabData& data, std::uint64_t seed,
                            const Options& options, const Result& run, const std::vector<inspect::Update>& updates) {
  return Checks(make_model, data, seed, options, run, updates).run();
}

}  // namespace gradual::lab
