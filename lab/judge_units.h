#pragma once

#include "../core/tensor/tensor.h"

namespace gradual::lab {

// The units of rounding of a step: of the additions inside of products and sums, and of operands and results. `least`
// is the smallest number that these have.
struct Units {
  double sum = 0;
  double store = 0;
  double least = 0;
};
Units units_of(DType dtype);

}  // namespace gradual::lab
