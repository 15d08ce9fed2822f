// How many threads kernels may use.
#pragma once

#include "scoped.h"

namespace gradual {

// For every kernel of the process from now on. Error below 1. Without OpenMP all kernels run on one thread.
void set_num_threads(int n);
// Default: the cores this process may use, or OMP_NUM_THREADS.
int num_threads();

// So many while it lives, for tests and measurements; not for several threads at once.
class ThreadsScope : Pinned {
 public:
  explicit ThreadsScope(int n) : saved_(num_threads()) { set_num_threads(n); }
  ~ThreadsScope() { set_num_threads(saved_); }

 private:
  int saved_;
};

}  // namespace gradual
