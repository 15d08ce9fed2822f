// A table of a model's modules.
#pragma once

#include <string>

#include "module.h"

namespace gradual::nn {

// One row per module: its output's shape and dtype, its own parameters and their bytes (with its buffers'), then
// totals. Runs one forward of zeros of shape `input` and `dtype` in eval mode, outside the graph. Parameters, buffers,
// modes and the default generator do not change. A module that does not run in forward shows "-" as output.
std::string summary(Module& model, const Shape& input, DType dtype = DType::f32);

}  // namespace gradual::nn
