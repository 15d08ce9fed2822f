// The numbers of an archive.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "archive.h"
#include "graph.h"

namespace gradual::pt2 {

struct Weight {
  Tensor tensor;
  bool parameter = false;
  bool requires_grad = false;
};

// All tensors of the archive by their keys. Keys that name one tensor of one file share it. Dense row-major tensors are
// read into place; others are read and copied. Errors name the key, and sizes that do not lie in the file.
std::map<std::string, Weight> read_weights(const Archive& archive);
std::map<std::string, Weight> read_constants(const Archive& archive);

}  // namespace gradual::pt2
