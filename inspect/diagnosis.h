// Why a run went wrong: findings from observed evidence, each with its site, a sentence and, if there is one, an edit
// of the recipe that cures it. diagnose() reads evidence and runs nothing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../amp/precision_observer.h"
#include "activation_monitor.h"
#include "bad_tensor.h"
#include "cause.h"
#include "cures.h"
#include "error_source.h"
#include "intervention.h"
#include "layer_names.h"
#include "ledger.h"
#include "number_role.h"
#include "routes.h"
#include "update_meter.h"

namespace gradual::inspect {

// A step, or the evaluation after it, as a ledger observed it.
struct ObservedStep {
  std::int64_t step = -1;
  Ledger ledger = {};
  bool evaluation = false;
  bool skipped = false;                      // by the loss scaler
  bool nonfinite = false;                    // the loss, or a parameter after the step, is not finite
  bool finite_batch = true;                  // the inputs are finite
  std::optional<BadTensor> bad_tensor = {};  // the first one that was not finite before the step
  // What monitors saw: activations, attention, the routes of mixtures.
  std::vector<ActivationRow> activations = {};
  std::vector<ProbabilityRow> probabilities = {};
  std::vector<RouteRow> routes = {};
};

// A part of the local error of an op in the last observed step, with its share of the error in the loss.
struct LossShare {
  Phase phase = Phase::forward;
  std::string op = {};
  std::string layer = {};
  std::string line = {};
  ErrorSource source = ErrorSource::whole;
  double share = 0;  // of the sum of all magnitudes
};

// The evidence from a run.
struct Evidence {
  const amp::Recipe* recipe = nullptr;
  // Its quantisation, whose modules "first" and "last" are paths of the model (resolved_quantization()). Unset: as the
  // recipe has it.
  std::optional<amp::Quantization> quantization = {};
  bool fp32_fails = false;   // fp32, too, diverges or learns nothing
  bool trains = false;       // the training loss falls as in fp32: only evaluation is worse
  std::int64_t steps = 0;    // all steps
  std::int64_t skipped = 0;  // and those that the loss scaler skipped
  std::int64_t growths = 0;  // how often the loss scale grew
  double last_scale = 1;
  double rise = 1;                        // the largest finite training loss in units of the first
  std::optional<ObservedStep> bad = {};   // leaves a loss or a parameter that is not finite
  std::optional<ObservedStep> skip = {};  // was skipped
  std::optional<ObservedStep> first = {};
  std::optional<ObservedStep> first_in_fp32 = {};
  std::optional<ObservedStep> late = {};  // after the end of training
  // From sampled steps.
  std::vector<Update> updates = {};
  std::vector<Scalar> scalars = {};  // rates of the optimizer, of a step after the end
  amp::CastStatsTable casts = {};
  std::vector<LossShare> shares = {};    // of a step's shadow; empty: none was made
  std::vector<std::string> layers = {};  // paths in the order of forward
  LayerNames names = {};                 // sentences name "layer 4 (Conv2d)" with it
  // The Python line "mine.py:57: x = self.fc2(h)", by layer and parameter that it calls, and by its place "mine.py:57".
  // Empty for C++ models.
  std::map<std::string, std::string> lines = {};
};

// The severity of findings that rounding cannot explain: they blame the program.
inline constexpr double kClearlyTheProgram = 1.5;
// The share of a failure that undoing its cause undoes at least.
inline constexpr double kDoesHarm = 0.1;

// What a trial of a finding changes: numbers that it makes exact, or the recipe.
struct TrialChange {
  std::vector<Exact> exact = {};  // everywhere
  const Cure* edit = nullptr;     // of the finding; null: none

  bool empty() const { return exact.empty() && !edit; }
};

// causes.def lists the causes.
struct Finding {
  Cause cause = Cause::unknown;
  Phase phase = Phase::forward;
  std::string op = {};
  std::string site = {};  // a layer, a parameter, or the program's line of an op outside of all layers
  std::string line = {};  // of the program, "mine.py:57", where one op is meant
  NumberRole role = NumberRole::none;
  std::vector<std::string> operands = {};  // of quantised products, as recipes name them: "forward_x", "wgrad_dy"
  std::int64_t step = -1;                  // -1: many steps
  std::string sentence = {};
  std::vector<Cure> cures = {};  // the smallest edit first
  bool precision = true;         // false: the recipe is not the cause
  double severity = 0;           // nominates: the share of the numbers or of the signal that is lost
  bool weak = false;             // it counts only if a trial bears it out
  // What is made exact to undo the cause at its site. Empty: `alone`, or without it the first cure, does it.
  std::vector<Exact> exact = {};
  std::optional<Cure> alone = {};     // an edit that undoes fewer other causes than the first cure
  std::optional<double> undone = {};  // the share of the failure that this undoes; none: not tried

  // What undoes the cause: `exact` at all sites, or else `alone`, or else the first cure.
  TrialChange trial() const;
  // Whether a trial can tell how much of the failure the cause makes.
  bool can_be_tried() const { return precision && !trial().empty(); }
  // Whether no trial has shown that a finding that needs one does harm.
  bool is_unproven() const { return weak && !(undone && *undone >= kDoesHarm); }
};

// "clipping of forward_x, wgrad_x"; without operands "clipping".
std::string cause_text(Cause cause, const std::vector<std::string>& operands);

// The parts of a step's errors, from a shadow with attribution that has observed it.
std::vector<LossShare> loss_shares(const class Shadow& shadow);

// The recipe's quantisation in this model: its modules "first" and "last" are paths. Unset: nothing is quantised.
std::optional<amp::Quantization> resolved_quantization(const amp::Recipe& recipe, nn::Module& model);

// The most likely cause first; empty if no evidence explains a failure.
std::vector<Finding> diagnose(const Evidence& evidence);

}  // namespace gradual::inspect
