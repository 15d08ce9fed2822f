// The body of a call of a module as C++.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "translate_modules.h"

namespace gradual::pt2 {

struct FunctionText {
  std::string result;              // "Tensor", "std::tuple<Tensor, Tensor>" or "void"
  std::vector<std::string> types;  // of the parameters
  std::vector<std::string> names;  // of the parameters
  std::vector<std::string> body;   // lines, without indentation
  // A module of one tensor in and one out overrides forward; others have an operator() of their own.
  bool is_forward() const { return result == "Tensor" && types.size() == 1 && types[0] == "const Tensor&"; }
};

// Error for what cannot be written.
FunctionText function_of(const Program& program, const ModuleTree& tree, const ModuleRun& run);

}  // namespace gradual::pt2
