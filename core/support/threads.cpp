#include "threads.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "error.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace gradual {
namespace {
std::atomic<int> wanted{0};
}

void set_num_threads(int n) {
  if (n < 1 || n > kMostThreads)
    fail("set_num_threads: " + std::to_string(n) + " is not allowed; it must be 1 to " + std::to_string(kMostThreads));
  wanted.store(n);
}

int num_threads() {
#ifdef _OPENMP
  if (omp_in_parallel()) return 1;  // no threads of threads
  const int n = wanted.load(std::memory_order_relaxed);
  return n ? n : std::min(omp_get_max_threads(), kMostThreads);
#else
  return 1;
#endif
}

}  // namespace gradual
