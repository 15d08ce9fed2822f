// The thread pool: workers that share a loop with the calling thread.
#pragma once

#include <cstdint>
#include <functional>

namespace gradual {

// Calls every chunk in [0, chunks) once, on the calling thread and on up to threads - 1 workers. The caller takes all
// chunks that no worker has begun, so it waits only for workers inside a chunk. Idle workers spin briefly, then sleep.
// The caller runs a loop alone while another thread's loop uses the workers, in a forked process, and for a while after
// workers finished late, as on a busy machine. The first exception is rethrown; other chunks may still run. A chunk
// must not fork.
void run_chunks(std::int64_t chunks, int threads, const std::function<void(std::int64_t)>& chunk);

// Workers call this function when they leave a loop, before its caller returns. It must not throw.
void set_leave_loop(void (*leave)()) noexcept;

// True while this thread runs a chunk. Loops inside a chunk run on this thread alone.
bool in_parallel_loop();

}  // namespace gradual
