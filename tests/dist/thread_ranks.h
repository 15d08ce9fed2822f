// Ranks that are threads of one process: messages are copied through a mailbox.
#pragma once

#include <gradual/dist/communicator.h>

#include <functional>

namespace gradual::dist {

// Calls f on n threads of this process, each a rank. Rethrows the first exception; the other ranks then get an Error.
void run_threads(int n, const std::function<void(Communicator&)>& f);

}  // namespace gradual::dist
