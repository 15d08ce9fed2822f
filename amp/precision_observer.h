// Counts what rounding does to the numbers of a training step, by role and layer: the shares that vanish and overflow,
// and a histogram of exponents.
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
// - f16 and bf16: each narrowing store, once. In forward: casts that autocast inserts and results in half models
//   (activations; casts of parameters count as weights). In backward: gradients passed from op to op (errors) and to
//   parameters (weight gradients); views and copies of the same numbers do not count again. In the optimizer: the
//   parameters. Exponents are those of a cast's source, or of the stored values;
// - all f32: the operands of contractions and the gradients, as if each were cast to f16.
// Underflow: nonzero before and zero after. Overflow: finite before and not after, or saturated.
// A kernel that stores several gradients counts as one store, under the role of the first that is passed on.
#pragma once

#include <memory>
#include <optional>

#include "cast_stats.h"
#include "recipe.h"

namespace gradual::amp {

// Counts this thread's roundings into a table while it lives.
class PrecisionObserver : Pinned {
 public:
  PrecisionObserver(CastStatsTable& table, const Recipe& recipe);

 private:
  std::shared_ptr<void> counting_;  // counts while it lives
};

// True if a recipe's numbers are counted as if they were cast.
bool counted_as_if(const Recipe& recipe);
// The format that numbers of a role are rounded to when they are counted; none if there is none or more than one.
std::optional<Format> counted_format(const Recipe& recipe, Role role);

}  // namespace gradual::amp
