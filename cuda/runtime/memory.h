// Scratch memory of kernels, and the error where there is none.
#pragma once

#include <cstddef>

#include "../../core/support/scoped.h"
#include "../../core/tensor/device.h"

namespace gradual::cuda {

// Uninitialised memory of this thread's device, counted as workspace. Kernels that were enqueued may still use it when it
// goes: it is freed in the stream's order.
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

// The bytes become 0, in the order of the thread's stream.
void clear(void* to, std::size_t bytes);

// Out of memory: what was asked, what is left, and who uses it.
[[noreturn]] void fail_allocation(std::size_t bytes, Device device);

}  // namespace gradual::cuda
