// Gradual's side of the comparison.
#pragma once

#include "worker.h"

namespace compare {

std::unique_ptr<Job> gradual_model(const Json& spec);
std::unique_ptr<Job> gradual_op(const Json& spec);

}  // namespace compare
