// Streams execute work immediately, on the calling thread, unless they are captured.
#pragma once

#include <functional>

#include "cuda_runtime.h"

namespace gradual::cuda::emulator {

void enqueue(cudaStream_t stream, std::function<void()> work);
void wait_for_all();                 // streams
int captures();                      // active captures of all threads
void forget_launches(void* thread);  // of a destroyed stream; `thread` is ThreadSanitizer's handle

}  // namespace gradual::cuda::emulator
