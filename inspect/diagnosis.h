// Why a run went wrong: findings from observed evidence, each with its site, a sentence and, if there is one, an edit
// of the recipe that cures it. diagnose() reads evidence and runs nothing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../amp/precision_observer.h"
#include "cures.h"
#include "ledger.h"
#include "update_meter.h"

namespace gradual::inspect {

// A step, or the evaluation after it, as a ledger observed it.
struct ObservedStep {
  std::int64_t step = -1;
  Ledger ledger = {};
  bool evaluation = false;
  bool skipped = false;         // by the loss scaler
  bool nonfinite = false;       // the loss, or a parameter after the step, is not finite
  bool finite_batch = true;     // the inputs are finite
  std::string bad_tensor = {};  // the first parameter or buffer that was not finite before the step
};

// The evidence from a run.
struct Evidence {
  const amp::Recipe* recipe = nullptr;
  bool fp32_fails = false;              // fp32, too, diverges or learns nothing
  bool trains = false;                  // the training loss falls as in fp32: only evaluation is worse
  std::int64_t steps = 0, skipped = 0;  // all steps, and those that the loss scaler skipped
  std::int64_t growths = 0;             // how often the loss scale grew
  double last_scale = 1;
  double rise = 1;                        // the largest finite training loss in units of the first
  std::optional<ObservedStep> bad = {};   // leaves a loss or a parameter that is not finite
  std::optional<ObservedStep> skip = {};  // was skipped
  std::optional<ObservedStep> first = {}, first_in_fp32 = {};
  std::optional<ObservedStep> late = {};  // after the end of training
  // From sampled steps.
  std::vector<Update> updates = {};
  amp::CastStatsTable casts = {};
  std::vector<std::string> layers = {};  // paths in the order of forward
  // By layer and parameter, the Python line that calls the layer: "mine.py:57: x = self.fc2(h)". Empty for C++ models.
  std::map<std::string, std::string> lines = {};
};

// The causes, as results.json names them.
//   adam-eps              eps is 0 in the optimizer's arithmetic, and so are second moments: 0 / 0 or x / 0
//   second-moment         second moments (squared gradients) overflow, become 0 or do not change in the state's format
//   update-overflow       an update itself gives NaN or Inf
//   update-vanishes       updates are below half an ulp of the weights and do not change them
//   batch-statistics      running statistics do not change, or overflow
//   activation-overflow   a product, a layer or a cast of forward exceeds the dtype
//   activation-underflow  numbers of forward become 0
//   reduction-overflow    exp, log, softmax, a square, a sum, a norm or a loss exceeds the dtype
//   reduction-underflow   results of these ops become 0
//   cancellation          a difference of nearly equal numbers has the wrong sign for a root or a log
//   weight-overflow       a parameter exceeds its dtype
//   gradient-overflow     an op of backward exceeds the dtype, and no smaller loss scale would help
//   gradient-underflow    gradients become 0; the site is the first such place, counted from the loss
//   scale-too-high        the loss scale makes gradients overflow: steps are skipped
//   scale-too-low         gradients become 0 because the loss scale is low, though there is room for a higher one
//   scale-grows           the loss scale grows again after each skip
//   delayed-scale         the scale comes from earlier amaxes, and the tensor's own amax differs by now
//   floor-clipping        block scales that are rounded down (FLOOR) clip the largest elements
//   clipping              numbers exceed the largest value of a quantiser's format
//   format-range          activations or weights are below the smallest value of a quantiser's format
//   accumulator           terms are lost in a sum: below half an ulp of it, or beyond the accumulator's range
// Not precision:
//   data                  the batch contains NaN or Inf
//   learning-rate         weights grow by the updates until f32 overflows
//   arithmetic            an op gives NaN or Inf in f32 too
//   dead-units            a layer gives 0 for every input
//   bug                   a user's or a library's function gives NaN, Inf or only zeros, which rounding cannot explain
// (The lab adds "unknown" where there is no finding.)
struct Finding {
  std::string cause = {}, phase = {}, op = {};
  std::string site = {};   // a layer, a parameter, or the program's line of an op outside of all layers
  std::int64_t step = -1;  // -1: many steps
  std::string sentence = {};
  std::vector<Cure> cures = {};  // the smallest edit first
  bool precision = true;         // false: the recipe is not the cause
  double severity = 0;           // orders findings: the share of the numbers or of the signal that is lost
};

// The most likely cause first; empty if no evidence explains a failure.
std::vector<Finding> diagnose(const Evidence& evidence);

}  // namespace gradual::inspect
