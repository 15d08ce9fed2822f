// The CUDA runtime for the rest of cuda/: errors become exceptions, streams and events are RAII objects.
#pragma once

#include <cuda_runtime.h>

#include "../../core/support/scoped.h"
#include "../../core/tensor/device.h"

namespace gradual::cuda {

// Throws an Error that names the call and CUDA's reason, unless the status is success.
void check(cudaError_t status, const char* call);

// The stream of this thread's work on its device. Each device has one that all threads share; StreamScope sets another
// for a thread.
cudaStream_t current_stream();
// The device of the last device::select() on this thread.
int current_device();

// Owned; made on this thread's device.
class Stream : Pinned {
 public:
  Stream();
  ~Stream();
  cudaStream_t get() const { return stream_; }
  void synchronize() const;

 private:
  cudaStream_t stream_ = nullptr;
};

// This thread's work goes to `stream` while it lives.
struct StreamScope : Scoped<cudaStream_t> {
  explicit StreamScope(cudaStream_t stream);
};

class Event : Pinned {
 public:
  Event();
  ~Event();
  void record(cudaStream_t stream = current_stream());
  void wait(cudaStream_t stream = current_stream()) const;  // the stream's later work waits for what was recorded
  void synchronize() const;
  double milliseconds_since(const Event& start) const;  // both recorded and done

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace gradual::cuda
