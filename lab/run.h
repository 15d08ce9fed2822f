// One run of the lab: one recipe, one seed. Internal to compare().
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "../amp/precision_observer.h"
#include "../amp/recipe.h"
#include "../autograd/autograd.h"
#include "../core/support/generator.h"
#include "../data/data_loader.h"
#include "../dist/data_parallel.h"
#include "../inspect/diagnosis.h"
#include "../inspect/intervention.h"
#include "../optim/schedule.h"
#include "lab.h"
#include "objective.h"

namespace gradual::lab {

// The settings of a run besides model, data and seed; a resumed run must have the same ones.
std::string settings(const amp::Recipe& recipe, const Options& options);

// The differences of two settings, as "lr 0.1 there and 0.5 here".
std::string differences(const std::string& there, const std::string& here);

// The formats that numbers of a role are rounded to when they are counted, each once.
std::vector<Format> formats_of(const amp::Recipe& recipe, amp::Role role);

// Keeps the gradients of this thread's backward passes while it lives; an evenly spaced sample of large ones.
class GradientSample final : public autograd::GradientObserver {
 public:
  void gradient(const autograd::GradientEvent& event) override;
  // A JSON object for the report's section on formats: what_if() of the model's weights, and of errors and weight
  // gradients divided by loss_scale, in the common formats and those in `also`.
  std::string what_if_json(nn::Module& model, double loss_scale, std::int64_t step, const std::vector<Format>& also);

 private:
  std::vector<float> errors_, weight_gradients_;
  std::unordered_set<std::uint64_t> seen_;  // storages: backward passes on the same numbers as views
};

class Run {
 public:
  Run(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe, std::uint64_t seed,
      const Options& options);

  // Trains to the end. Returns false if options.stop ended it. Writes `checkpoint`, if not empty, after every epoch and
  // on a stop. Reports `progress` after every step.
  bool train(const std::string& checkpoint, Progress progress);
  bool ended() const { return result_.epochs >= options_.epochs || bad_losses_ >= kDiverged; }
  Result result();
  // Samples gradients in the last sampled step, for the report's section on formats; with the formats of these recipes.
  void want_what_if(const std::vector<amp::Recipe>& recipes);

  // The evidence from the run, for explain(). Unless the run diverged, trains and observes two more steps after its
  // end: the run must not be used afterwards.
  inspect::Evidence evidence();
  // Trains one more step under a shadow and an X-ray, which set `errors` and `blocks` of the result. Does nothing if
  // the run diverged.
  void observe_errors(Result& result);
  // Trains a new run with the same bits again and observes steps `first` to `last`. Ends with the first step that
  // leaves a loss or a parameter not finite. If that is before `first`, it is not observed: the ledger is empty, only
  // the step is set. evaluate: also observes the evaluation after `last`. None if options.stop ended it.
  std::optional<inspect::ObservedStep> replay(std::int64_t first, std::int64_t last, bool evaluate = false);

  // For trials of a run: no step is sampled, and these things are exact from now on.
  void intervene(const std::vector<inspect::Exact>& exact);
  // Trains until `steps` steps have run, or to the end. False if options.stop ended it.
  bool train_to(std::int64_t steps);
  const Curve& curve() const { return result_.curve; }
  std::int64_t skipped_steps() const { return result_.skipped_steps; }
  bool finite() const { return bad_losses_ == 0 && !inspect::first_nonfinite(*model_); }
  // The test loss of the parameters as they are.
  double test_loss();

  void save(const std::string& path);
  void load(const std::string& path);

 private:
  void use_ranks();
  Tensor loss_of(const data::Batch& batch) const;
  amp::RunStep plain_step(const data::Batch& batch);  // without ranks; of the parts of a batch
  void train_step(const data::Batch& batch);
  amp::RunStep observed_step(const std::function<amp::RunStep()>& step, const data::Batch& batch,
                             inspect::ObservedStep& observed);
  bool replayed() const;  // the replay has observed what it was started for
  // Runs a step and counts its roundings and updates. underflow: that of its gradients in percent, NaN if none is
  // rounded.
  amp::RunStep sampled_step(const std::function<amp::RunStep()>& step, double scale, double& underflow);
  // early: the step's cloud replaces the one before.
  bool is_metered() const;  // Every second sampled step also measures updates.
  void add_updates(const inspect::UpdateMeter& meter, bool early);
  void sum_updates(const std::vector<inspect::Update>& rows);
  void update_average();
  void end_epoch(Progress& progress);
  void show(Progress& progress, bool finished) const;
  void tell_metric(Progress& progress) const;
  bool traced_step() const { return !options_.trace.empty() && steps_ == 1; }
  void take_memory();
  Histogram histogram(amp::Role role) const;

  // A run with this many non-finite losses in a row has diverged. It recovers from a few skipped steps, not from NaN
  // weights.
  static constexpr int kDiverged = 16;

  const amp::Recipe& recipe_;
  const Options& options_;
  std::uint64_t seed_;
  Result result_;
  Generator generator_;
  MemoryStats memory_before_;  // the memory of the data and of the caller
  data::Split data_;
  Objective objective_;
  std::shared_ptr<nn::Module> model_;
  std::optional<amp::RecipeRun> run_;
  std::unique_ptr<dist::Communicator> alone_;  // of emulated ranks
  std::optional<dist::DataParallel> parallel_;
  StateDict residuals_;  // of the exchange
  std::optional<Average> average_;
  std::optional<optim::Scheduler> schedule_;
  std::optional<data::DataLoader> loader_;
  amp::CastStatsTable casts_;                       // of the sampled steps
  std::map<std::string, inspect::Update> updates_;  // of the sampled steps, summed by part and parameter
  inspect::ObservedStep* replay_ = nullptr;         // for the steps from replay_first_ to replay_last_
  std::int64_t replay_first_ = 0;
  std::int64_t replay_last_ = 0;
  std::optional<inspect::Intervention> intervention_;
  std::vector<inspect::LossShare> shares_;  // of the step of observe_errors()
  bool samples_ = true;                     // false in trials
  std::int64_t stop_after_ = -1;            // steps; -1: none
  std::vector<double> seconds_;             // of the steps that were not sampled
  double epoch_loss_ = 0;                   // sum over this epoch's steps
  std::int64_t epoch_steps_ = 0;
  std::int64_t steps_ = 0;
  int bad_losses_ = 0;                          // non-finite ones in a row
  std::optional<std::vector<Format>> what_if_;  // formats besides the common ones
  bool stop_asked_ = false;
};

}  // namespace gradual::lab
