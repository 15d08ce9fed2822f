// How many threads kernels may use.
#pragma once

namespace gradual {

// For every kernel of the process from now on. Error below 1. Without OpenMP all kernels run on one thread.
void set_num_threads(int n);
// Default: the cores this process may use, or OMP_NUM_THREADS.
int num_threads();

}  // namespace gradual
