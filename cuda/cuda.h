// CUDA devices: whether there are any, streams, and what a program may ask of them. Tensors get there by to(Device::cuda())
// or by TensorOptions::device; everything else is the same as on the CPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../core/support/scoped.h"
#include "../core/tensor/device.h"

namespace gradual::cuda {

// Whether the library was built with CUDA and a GPU can be used; else why_not() says in a sentence what is missing.
inline bool available() { return device::count() > 0; }
std::string why_not();

struct DeviceInfo {
  std::string name;          // "NVIDIA H200"
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::int64_t memory = 0;      // bytes in all
  int runtime = 0, driver = 0;  // CUDA's versions: 13000 is 13.0
};
// Error where there is no such device.
DeviceInfo device_info(Device device = Device::cuda());

// Waits until all work of the device is done. Errors of kernels that ran before come out here at the latest. So does an
// index out of range: gather, index_select and their kin do not wait to look at the numbers of an index on a GPU; they take
// zero there, or add nothing, and the Error comes when the CPU next reads a tensor, writes one, or synchronises.
void synchronize(Device device = Device::cuda());

// Whether NVIDIA's libraries compute what they can: convolutions, batch norm, average pooling, softmax and attention by
// cuDNN. Otherwise kernels of ours do, slower and readable, within the same bounds of error. On by default; set for the
// whole process from now on, by any thread.
void set_library_kernels(bool on);
bool library_kernels();

// The choice of a block, for tests and comparisons; not for several threads at once.
class LibraryKernelsScope : Pinned {
 public:
  explicit LibraryKernelsScope(bool on) : saved_(library_kernels()) { set_library_kernels(on); }
  ~LibraryKernelsScope() { set_library_kernels(saved_); }

 private:
  bool saved_;
};

// Gives the blocks that nobody uses back to the driver.
void empty_cache(Device device = Device::cuda());

}  // namespace gradual::cuda
