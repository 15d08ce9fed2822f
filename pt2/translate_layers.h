// Modules of PyTorch that are layers of the library.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "program.h"

namespace gradual::pt2 {

// What constructs a module.
struct Construction {
  std::string type;       // "nn::Linear"
  std::string arguments;  // "6, 8"

  std::string text() const { return type + "(" + arguments + ")"; }
  bool operator==(const Construction&) const = default;
};

// The layer that does what all these calls of the module do, with the module's parameters and buffers; none if there is
// no such layer.
std::optional<Construction> library_layer(const Program& program, const std::string& path,
                                          const std::vector<const ModuleRun*>& runs);

}  // namespace gradual::pt2
