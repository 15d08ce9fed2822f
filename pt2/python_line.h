// Lines of Python as the source locations that ops carry.
#pragma once

#include "../core/tensor/tensor.h"
#include "graph.h"

namespace gradual::pt2 {

// A location whose file and line are Python's and whose function name is the line's text. It lives as long as the
// process; equal lines give equal locations. Line 0 gives a location without a line.
SourceLocation location_of(const PythonLine& line);

}  // namespace gradual::pt2
