// The dataset that is part of the library.
#pragma once

#include "dataset.h"

namespace gradual::data {

// 1,797 handwritten digits of 8x8 pixels (data/README.md), embedded in the library. Inputs are f32 [1797, 1, 8, 8],
// (pixel / 16 - 0.3053) / 0.3760: pixels are 0 to 16; the constants are mean and standard deviation over all images.
// Targets are i64 [1797], 0 to 9.
Dataset digits();

}  // namespace gradual::data
