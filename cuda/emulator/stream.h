// Streams do their work at once, on the calling thread, unless they are captured.
#pragma once

#include <functional>

#include "cuda_runtime.h"

namespace gradual::cuda::emulator {

void enqueue(cudaStream_t stream, std::function<void()> work);
int captures();  // that go on, of all threads

}  // namespace gradual::cuda::emulator
