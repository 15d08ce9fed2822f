// Trials of a run: it is replayed with one thing exact, or with an edited recipe, and everything else to the same bits.
// What that undoes of the run's failure is the weight of the cause.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../inspect/diagnosis.h"
#include "../inspect/intervention.h"
#include "lab.h"

namespace gradual::lab {

// What a trial changes.
struct Change {
  std::string edit = {};  // a merge patch of the recipe; empty: none
  std::vector<inspect::Exact> exact = {};
  bool operator==(const Change&) const = default;
};
std::string to_string(const Change& change);

// How the failure is measured. divergence: the share of the last steps whose losses are finite. skips: the share of the
// steps that are applied. loss: the mean training loss over the second half of the steps. evaluation: the test loss.
enum class FailureKind : std::uint8_t { divergence, skips, loss, evaluation };

struct Failure {
  FailureKind kind = FailureKind::loss;
  std::int64_t steps = 0;  // of a trial, from the first one
  double run = 0;          // the measure of the run
  double fp32 = 0;         // and of fp32
};

class Trials {
 public:
  // `run` and `fp32` have ended. budget: steps of all trials together.
  Trials(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe, std::uint64_t seed,
         const Options& options, const Result& run, const Result& fp32, std::int64_t budget);

  // Chooses the steps of a trial so that `count` of them fit into the budget. False if the failure does not show in so
  // few steps, or if the run cannot be replayed.
  bool begin(std::int64_t count);
  const Failure& failure() const { return failure_; }
  // The share of the failure that the change undoes: 1 if the trial does as fp32, 0 if it does as the run, at least -1
  // and at most 1. None if the budget is spent, the change does not fit the model, or options.stop ended it.
  std::optional<double> undone(const Change& change);
  // Whether a step can be trained with the edited recipe, which a trial of it tells too. This step is not of the
  // budget.
  bool runs(const std::string& edit);
  std::int64_t spent() const { return spent_; }
  std::int64_t budget() const { return budget_; }
  bool stopped() const;
  // The run's first step, observed: what it rounds and where. None if options.stop ended it.
  std::optional<inspect::ObservedStep> first_step() const;
  // The losses of a trial of so many steps, and its bits.
  std::vector<double> losses(const Change& change, std::int64_t steps);

 private:
  std::optional<double> measured(const amp::Recipe& recipe, const std::vector<inspect::Exact>& exact);
  double measure_of_curve(const std::vector<double>& loss, std::int64_t skipped) const;
  bool shows() const;
  bool one_step_runs(const std::string& edit);
  amp::Recipe changed(const std::string& edit) const;

  const MakeModel& make_model_;
  const LabData& data_;
  const amp::Recipe& recipe_;
  std::uint64_t seed_;
  Options options_;
  const Result& run_;
  const Result& fp32_;
  std::int64_t budget_;
  std::int64_t spent_ = 0;
  Failure failure_;
  std::map<std::string, std::optional<double>> known_;  // by text of the change
  std::map<std::string, bool> runs_;                    // by edit
};

// Weighs findings by trials: sets `undone`, leaves out cures with which no step runs, and orders the findings. Only the
// cures are tried for seeds other than the first one, and with options.explain_steps = 0.
void weigh(std::vector<inspect::Finding>& findings, const MakeModel& make_model, const LabData& data,
           const amp::Recipe& recipe, std::uint64_t seed, const Options& options, const Result& run,
           const Result& fp32);

}  // namespace gradual::lab
