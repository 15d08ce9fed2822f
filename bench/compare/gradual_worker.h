// Gradual's side of the comparison.
#pragma once

#include <gradual/core/tensor/device.h>

#include "worker.h"

namespace compare {

// Where models and ops run.
inline gradual::Device& device() {
  static gradual::Device chosen;
  return chosen;
}

std::unique_ptr<Job> gradual_model(const Json& spec);
std::unique_ptr<Job> gradual_op(const Json& spec);

}  // namespace compare
