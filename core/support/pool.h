// The threads that share a loop with the one that calls it.
#pragma once

#include <cstdint>

namespace gradual {

// One chunk of a loop, by its number.
struct ChunkCall {
  void (*call)(const void* loop, std::int64_t chunk);
  const void* loop;
};

// Calls every chunk in [0, chunks) once, on the calling thread and on up to threads - 1 workers. The caller takes all
// chunks that no worker has begun, so it waits only for workers that have one. Workers look for the next loop for a
// moment and then sleep. Where they finish late, as on a busy machine, the next loops are the caller's alone for a
// while; so is a loop while another thread's loop has the workers, and a loop of a forked process. The first exception is
// rethrown; other chunks may still run. A chunk must not fork.
void run_chunks(std::int64_t chunks, int threads, ChunkCall chunk);

// Whether this thread runs a chunk: loops inside it do not share.
bool in_parallel_loop();

}  // namespace gradual
