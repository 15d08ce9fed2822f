// The single choices of a recipe that explain_run() makes exact. Internal to it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "../amp/recipe.h"
#include "../inspect/diagnosis.h"
#include "../inspect/intervention.h"
#include "result.h"

namespace gradual::lab {

// One of both: an operand, a sum, a result or the ops at one place; or one field of the recipe.
struct RecipeChoice {
  std::optional<inspect::Exact> exact = {};
  std::function<amp::Recipe(amp::Recipe)> edit = {};
  bool goes_first = false;  // of the whole recipe, and few: it is tried alone before any set
  bool goes_last = false;   // it changes ops of the whole model: it is tried only if the others do not suffice
};

// In the order in which they are preferred. first: the run's first step, whose ops outside of all modules are places by
// their lines.
std::vector<RecipeChoice> choices_of(const amp::Recipe& recipe, const Result& run, const inspect::ObservedStep& first);
// The edits of norms alone, without which a model of half norms takes no f32 input.
std::vector<RecipeChoice> choices_of_norms(const amp::Recipe& recipe);

}  // namespace gradual::lab
