// Flatten, a layer that changes only the shape.
#pragma once

#include "op_layer.h"

namespace gradual::nn {

// Merges the dims from `start` to `end` into one; the batch stays by default.
struct Flatten : OpLayer<flatten, int, int> {
  explicit Flatten(int start = 1, int end = -1) : OpLayer(start, end) {}
};

}  // namespace gradual::nn
