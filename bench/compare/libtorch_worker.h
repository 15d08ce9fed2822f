// libtorch's side of the comparison, for the release that Debian 12 packages (1.13) and newer ones.
#pragma once

#include "worker.h"

namespace compare {

std::unique_ptr<Job> libtorch_model(const Json& spec);
std::unique_ptr<Job> libtorch_op(const Json& spec);

}  // namespace compare
