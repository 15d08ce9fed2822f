// How many bits a recipe's numbers have where they enter a product.
#pragma once

#include "recipe.h"

namespace gradual::amp {

// The mean over the operands of a layer's three products (x and w of forward, dy and w of dgrad, x and dy of wgrad) of
// the bits of a number (bits_per_number.h): 32 for fp32, 19 under TF32, 8.25 for mxfp8. Outlier channels count as
// they are once they are chosen. Modules that the recipe names and ops that its policy edits do not count.
double operand_bits(const Recipe& recipe);

}  // namespace gradual::amp
