// Why a run went wrong: findings from what was observed, each with its site, its evidence and, where an edit of the
// recipe cures it, that edit. diagnose() looks at evidence and runs nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../amp/precision_observer.h"
#include "../amp/recipe.h"
#include "ledger.h"
#include "update_meter.h"

namespace gradual::inspect {

// What is known of a run.
struct Evidence {
  const amp::Recipe* recipe = nullptr;
  std::int64_t steps = 0, skipped = 0;  // of them the ones that the loss scaler skipped
  double last_scale = 1;
  // The step after which a parameter or the loss is not finite, with its ledger; -1 and null: there is none.
  std::int64_t nonfinite_step = -1;
  const Ledger* nonfinite = nullptr;
  // The ledger of a step that was skipped, and of an early one where forward overflows; or null.
  const Ledger* skipped_step = nullptr;
  const Ledger* overflowing_step = nullptr;
  // Of sampled steps.
  std::vector<Update> updates = {};
  amp::CastStatsTable casts = {};
  std::vector<std::string> layers = {};  // paths in the order of forward
};

// The causes, as results.json names them.
//   adam-eps              eps is 0 in the optimizer's arithmetic, and so are second moments: 0 / 0 or x / 0
//   second-moment         a second moment overflows: squares of gradients
//   update-overflow       an update itself gives NaN or Inf
//   activation-overflow   a product, a layer or a cast of forward exceeds the dtype
//   reduction-overflow    exp, a sum of squares, softmax or a norm does
//   gradient-overflow     an op of backward does, and nothing skips the step
//   scale-too-high        the loss scale makes gradients overflow: steps are skipped
//   gradient-underflow    gradients become zero
//   update-vanishes       updates are below half an ulp of the weights
//   clipping              values exceed the format's largest
//   format-range          values lie below the format's smallest
//   data                  the batch holds NaN or Inf: not precision
//   arithmetic            f32 itself overflows: not precision (a learning rate, a user's function)
struct Finding {
  std::string cause = {}, phase = {}, op = {};
  std::string site = {};   // a layer, a parameter or both: "fc2.weight"
  std::int64_t step = -1;  // -1: of many steps
  std::string sentence = {};
  std::optional<amp::Recipe> cure = {};  // the recipe, edited
  std::string remedy = {};               // the same in words: "FP32 masters, the optimizer's arithmetic in f32"
  bool precision = true;                 // false: a recipe is not to blame
};

// The most likely cause first; empty where nothing in the evidence explains a failure.
std::vector<Finding> diagnose(const Evidence& evidence);

// What differs, as a JSON merge patch (RFC 7396) that a recipe file with "base" takes: {"masters": "per-tensor"}. Names
// and descriptions are left out.
std::string edit(const amp::Recipe& from, const amp::Recipe& to);
// The reverse: the recipe with such an edit, named "cured-NAME". Error where they do not fit.
amp::Recipe edited(const amp::Recipe& recipe, const std::string& patch);

}  // namespace gradual::inspect
