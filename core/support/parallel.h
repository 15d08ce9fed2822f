// Threads: a loop over [0, n) cut into chunks by `grain` alone, never by the number of threads, so that results are
// the same bits for any number of threads. Compiled into kernels only; not a public header.
#pragma once

#include <cstdint>

#include "thread_pool.h"
#include "threads.h"

namespace gradual {

// f(begin, end) for consecutive chunks of at most `grain`; chunks may run at the same time. The first exception is
// rethrown on the calling thread.
template <class F> void parallel_for(std::int64_t n, std::int64_t grain, const F& f) {
  const std::int64_t chunks = (n + grain - 1) / grain;
  if (chunks <= 1) {
    if (n > 0) f(std::int64_t{0}, n);
    return;
  }
  const auto chunk = [&](std::int64_t c) { f(c * grain, c * grain + grain < n ? c * grain + grain : n); };
  run_chunks(chunks, num_threads(), std::cref(chunk));  // a reference: no copy on the heap
}

}  // namespace gradual
