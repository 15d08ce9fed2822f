// The graph of an archive, with the checks that load() and the translation share.
#pragma once

#include <string>

#include "archive.h"
#include "graph.h"

namespace gradual::pt2 {

// Modules nest this deep at most; a path has as many dots.
inline constexpr int kMostLevels = 100;

// Error if the path of a module or a key of the state dict has more dots than that.
void check_levels(const std::string& path);

// Reads models/model.json. Error for a file of an older PyTorch, for big-endian numbers, for an input that is a number
// of Python, and for modules that nest too deep.
Graph read_graph(const Archive& archive);

}  // namespace gradual::pt2
