// What rounding does to the numbers of a training step: which share of them vanishes or overflows, and in which exponents
// they lie, by role and layer.
//
//   amp::CastStatsTable casts;
//   for (step = 0; ...; ++step) {
//     std::optional<amp::PrecisionObserver> watch;
//     if (step % 10 == 0) watch.emplace(casts, run.recipe());
//     run.step(...);
//   }
//   amp::total(casts, amp::kGradients).underflow_percent();
//
// What is counted depends on the recipe:
// - quantised: what the quantisers do to operands and gradients (amp/quantization.h), and nothing else;
// - f16 and bf16: each narrowing store once. In forward, of casts that autocast inserts and of results in half models
//   (activations; casts of parameters are weights); in backward, of the gradients that are handed from op to op (errors)
//   and to parameters (weight gradients), where handing on the same numbers (a view, a copy) is no new rounding; in the
//   optimizer, of the parameters. Exponents are those of a cast's source, and of what was stored elsewhere;
// - all f32: the operands of contractions and the gradients as if each were cast to f16.
// Underflow: not zero before and zero after. Overflow: finite before and not after, or saturated.
// A kernel that stores several gradients counts as one store, under the role of the first that is handed on.
#pragma once

#include <memory>
#include <optional>

#include "cast_stats.h"
#include "recipe.h"

namespace gradual::amp {

// Counts what this thread does into a table while it lives.
class PrecisionObserver : Pinned {
 public:
  PrecisionObserver(CastStatsTable& table, const Recipe& recipe);
  ~PrecisionObserver();

 private:
  class Watch;
  std::optional<CastStatsScope> quantisers_;
  std::unique_ptr<Watch> watch_;
};

// Whether a recipe's numbers are counted as if they were cast.
bool counted_as_if(const Recipe& recipe);
// The format that numbers of a role meet when they are counted; none where there is none, or more than one.
std::optional<Format> counted_format(const Recipe& recipe, Role role);

}  // namespace gradual::amp
