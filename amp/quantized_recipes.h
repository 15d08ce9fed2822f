// Recipes whose products are quantised (amp/recipe.h lists them with the others).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "recipe.h"

namespace gradual::amp {

std::vector<Recipe> quantized_recipes();
// "e4m2", "e5m10:toward-zero", "e8m7:stochastic": every operand rounded to that format, without scales. Nothing where
// the name is of another form; Error where the format or the rounding is none.
std::optional<Recipe> emulated_recipe(const std::string& name);

}  // namespace gradual::amp
