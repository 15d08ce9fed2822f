// Recipes whose products are quantised (amp/recipe.h lists them with the others).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "recipe.h"
#include "rewrite.h"

namespace gradual::amp {

std::vector<Recipe> quantized_recipes();
// "e4m2", "e5m10:toward-zero", "posit8", "q2.13:stochastic", "binary8p3": every operand rounded to that format (eXmY,
// fixed point, P3109's or a table but nf4), without scales. "pure:FORMAT", "pure:FORMAT:ROUNDING", any format: the
// parameters and the result of every op too. "mx:FORMAT", "mx16:FORMAT", "mx:FORMAT:ROUNDING", any format with a zero:
// operands in blocks of 32 or of the given size (1 to 99999), with the e8m0 scales of OCP MX (floor). None if the name
// has another form; Error if the format or the rounding does not exist.
std::optional<Recipe> emulated_recipe(const std::string& name);
// The checks of a recipe that has a quantization; Error naming the field.
void check_quantized(const Recipe& recipe);
// The format that numbers of a role are rounded to in the products; none if there is none or more than one.
std::optional<Format> format_met(const Quantization& quantization, Role role);

}  // namespace gradual::amp
