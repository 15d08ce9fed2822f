// How many threads kernels may use.
#pragma once

#include "scoped.h"

namespace gradual {

// More are surely a mistake, and OpenMP, which oneDNN uses, keeps what it tells each thread on the caller's stack.
inline constexpr int kMostThreads = 4096;

// For every kernel of the process from now on. Error unless 1 to kMostThreads.
void set_num_threads(int n);
// Default: the cores this process may use, or OMP_NUM_THREADS; without OpenMP all cores of the machine. No more than
// kMostThreads. 1 inside a kernel's loop.
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
