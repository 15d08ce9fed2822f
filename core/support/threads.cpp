#include "threads.h"

#include <algorithm>
#include <atomic>

#include "thread_pool.h"
#include "throwf.h"

#ifdef _OPENMP
#include <omp.h>
#else
#include <thread>
#endif

namespace gradual {

static std::atomic<int> wanted{0};

void set_num_threads(int n) {
  if (n < 1 || n > kMostThreads) throwf("set_num_threads: {} is not allowed; it must be 1 to {}", n, kMostThreads);
  wanted.store(n);
}

int num_threads() {
  if (in_parallel_loop()) return 1;  // loops do not nest
#ifdef _OPENMP
  if (omp_in_parallel()) return 1;
  const auto usable = [] { return omp_get_max_threads(); };
#else
  static const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));  // reads a file
  const auto usable = [] { return cores; };
#endif
  const int n = wanted.load(std::memory_order_relaxed);
  return n ? n : std::min(usable(), kMostThreads);
}

}  // namespace gradual
