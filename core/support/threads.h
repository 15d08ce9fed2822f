// How many threads kernels may use.
#pragma once

#include "scoped.h"

namespace gradual {

// More threads are surely a mistake. OpenMP, which oneDNN uses, keeps data per thread on the caller's stack.
inline constexpr int kMostThreads = 4096;

// Sets the number for every kernel of the process. Error unless 1 to kMostThreads.
void set_num_threads(int n);
// Default: OMP_NUM_THREADS, or the number of cores this process may use; without OpenMP all cores of the machine. At
// most kMostThreads. 1 inside a kernel's loop.
int num_threads();

// Sets the number while the scope lives, for tests and measurements. Not for several threads at once.
class ThreadsScope : Pinned {
 public:
  explicit ThreadsScope(int n) : saved_(num_threads()) { set_num_threads(n); }
  ~ThreadsScope() { set_num_threads(saved_); }

 private:
  int saved_;
};

}  // namespace gradual
