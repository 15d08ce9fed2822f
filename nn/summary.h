// What a model is made of, as a table for people.
#pragma once

#include <string>

#include "module.h"

namespace gradual::nn {

// One row a module: its output's shape and dtype, its own parameters and their bytes (with its buffers'), then totals.
// Found by one forward of zeros of shape `input` and `dtype` in eval mode, outside the graph: parameters, buffers,
// modes and the default generator stay as they were. A module that does not run in forward shows "-" as output.
std::string summary(Module& model, const Shape& input, DType dtype = DType::f32);

}  // namespace gradual::nn
