// Why a run went wrong: findings from what was observed, each with its site, its evidence and, where an edit of the
// recipe cures it, that edit. diagnose() looks at evidence and runs nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../amp/precision_observer.h"
#include "../amp/recipe.h"
#include "cures.h"
#include "ledger.h"
#include "update_meter.h"

namespace gradual::inspect {

// A step, or the evaluation after it, that a ledger observed.
struct ObservedStep {
  std::int64_t step = -1;
  Ledger ledger = {};
  bool evaluation = false;
  bool skipped = false;         // by the loss scaler
  bool nonfinite = false;       // the loss, or a parameter after the step
  bool finite_batch = true;     // the inputs
  std::string bad_tensor = {};  // the first parameter or buffer that was not finite before
};

// What is known of a run.
struct Evidence {
  const amp::Recipe* recipe = nullptr;
  bool fp32_fails = false;              // diverges or learns nothing as well
  bool trains = false;                  // the training loss falls as that of fp32: what is worse is evaluation alone
  std::int64_t steps = 0, skipped = 0;  // of them the ones that the loss scaler skipped
  std::int64_t growths = 0;             // how often the loss scale grew
  double last_scale = 1;
  double rise = 1;                        // the largest finite training loss in units of the first
  std::optional<ObservedStep> bad = {};   // that leaves a loss or a parameter not finite
  std::optional<ObservedStep> skip = {};  // that was skipped
  std::optional<ObservedStep> first = {}, first_in_fp32 = {};
  std::optional<ObservedStep> late = {};  // after the end of training
  // Of sampled steps.
  std::vector<Update> updates = {};
  amp::CastStatsTable casts = {};
  std::vector<std::string> layers = {};  // paths in the order of forward
};

// The causes, as results.json names them.
//   adam-eps              eps is 0 in the optimizer's arithmetic, and so are second moments: 0 / 0 or x / 0
//   second-moment         second moments, squares of gradients, overflow, become 0 or stand still in the state's format
//   update-overflow       an update itself gives NaN or Inf
//   update-vanishes       updates are below half an ulp of the weights, and do not arrive
//   batch-statistics      running statistics stand still, or overflow
//   activation-overflow   a product, a layer or a cast of forward exceeds the dtype
//   activation-underflow  numbers of forward become 0
//   reduction-overflow    exp, log, softmax, a square, a sum, a norm or a loss exceeds the dtype
//   reduction-underflow   what these give becomes 0
//   cancellation          nearly equal numbers are subtracted, and what is left has the wrong sign for a root or a log
//   weight-overflow       a parameter exceeds its dtype
//   gradient-overflow     an op of backward exceeds the dtype, and no smaller loss scale would help
//   gradient-underflow    gradients become 0; the site is the first such place, counted from the loss
//   scale-too-high        the loss scale makes gradients overflow: steps are skipped
//   scale-too-low         the loss scale leaves gradients so small that they become 0, though there is room above them
//   scale-grows           the loss scale grows again after each skip
//   delayed-scale         the scale comes from earlier amaxes, and the tensor's own has moved away
//   floor-clipping        scales of blocks that are rounded down (FLOOR) clip the largest elements
//   clipping              numbers exceed the largest of a quantiser's format
//   format-range          activations or weights lie below the smallest number of a quantiser's format
//   accumulator           terms are lost in a sum: below half an ulp of it, or beyond the accumulator's range
// Not precision:
//   data                  the batch holds NaN or Inf
//   learning-rate         weights grow by the updates until f32 overflows
//   arithmetic            an op gives NaN or Inf in f32 too
//   dead-units            a layer gives 0 for every input
//   bug                   a user's function or a library's gives NaN, Inf or nothing but 0 where no rounding can
// (The lab adds "unknown" where there is no finding.)
struct Finding {
  std::string cause = {}, phase = {}, op = {};
  std::string site = {};   // a layer, a parameter, or a line of the program where an op is outside of all layers
  std::int64_t step = -1;  // -1: of many steps
  std::string sentence = {};
  std::vector<Cure> cures = {};  // the smallest edit first
  bool precision = true;         // false: a recipe is not to blame
  double severity = 0;  // by which findings are ordered: the share of the numbers or of the signal that is lost
};

// The most likely cause first; empty where nothing in the evidence explains a failure.
std::vector<Finding> diagnose(const Evidence& evidence);

// What differs, as a JSON merge patch (RFC 7396) that a recipe file with "base" takes: {"masters": "per-tensor"}. Names
// and descriptions are left out.
std::string edit(const amp::Recipe& from, const amp::Recipe& to);
// The reverse: the recipe with such an edit, named "cured-NAME". Error where they do not fit.
amp::Recipe edited(const amp::Recipe& recipe, const std::string& patch);

}  // namespace gradual::inspect
