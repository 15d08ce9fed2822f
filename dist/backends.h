// The backends that a build may lack. Internal.
#pragma once

#include "communicator.h"

namespace gradual::dist {

// The processes of MPI_COMM_WORLD; null in a build without MPI.
std::unique_ptr<Communicator> mpi_world();
// Asks done() until it is true. False after timeout() seconds.
bool poll(const std::function<bool()>& done);

}  // namespace gradual::dist
