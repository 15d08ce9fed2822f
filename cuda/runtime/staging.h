// Copies without waiting, also from pageable host memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace gradual::cuda {

// cudaMemcpyAsync, reported to an active Watch.
void enqueue_copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream);
// Enqueues the copy and returns once `from` has been read: pieces go through pinned buffers, which the process keeps.
void copy_from_host(void* to, const void* from, std::size_t bytes, cudaStream_t stream);

}  // namespace gradual::cuda
