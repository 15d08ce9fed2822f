// Scratch memory of kernels, and the out-of-memory error.
#pragma once

#include <cstddef>

#include "../../core/support/scoped.h"
#include "../../core/tensor/device.h"

namespace gradual::cuda {

// Uninitialised memory of this thread's device, counted as workspace. It is freed in the stream's order, so enqueued
// kernels may still use it after the destructor.
class Workspace : Pinned {
 public:
  explicit Workspace(std::size_t bytes);
  ~Workspace();
  template <class T> T* as() const { return static_cast<T*>(data_); }

 private:
  Device device_;
  void* data_;
  std::size_t bytes_;
};

// Sets the bytes to 0, in the order of the thread's stream.
void clear(void* to, std::size_t bytes);

// Throws the out-of-memory Error: the request, the free memory, and the memory by category.
[[noreturn]] void fail_allocation(std::size_t bytes, Device device);

}  // namespace gradual::cuda
