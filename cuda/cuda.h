// CUDA devices: availability, properties, synchronisation. to(Device::cuda()) or TensorOptions::device puts tensors on
// a GPU; everything else is the same as on the CPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../core/support/scoped.h"
#include "../core/tensor/device.h"

namespace gradual::cuda {

// True if the library was built with CUDA and a GPU can be used; else why_not() says in a sentence what is missing.
inline bool available() { return device::count() > 0; }
std::string why_not();

struct DeviceInfo {
  std::string name;  // "NVIDIA H200"
  // compute capability
  int major = 0;
  int minor = 0;
  int multiprocessors = 0;
  std::int64_t memory = 0;  // bytes in all
  // CUDA's versions: 13000 is 13.0
  int runtime = 0;
  int driver = 0;
};
// Error if there is no such device.
DeviceInfo device_info(Device device = Device::cuda());

// Waits until all work of the device is done. Throws pending errors of earlier kernels, including an index out of
// range: gather, index_select and similar ops do not wait to check an index on a GPU. They read zero or add nothing
// there, and the Error comes when the CPU next reads a tensor, writes one, or synchronises.
void synchronize(Device device = Device::cuda());

// On (the default): cuDNN computes convolutions and attention. Off: Gradual's own kernels do, slower and readable,
// within the same error bounds. Set for the whole process, by any thread.
void set_library_kernels(bool on);
bool library_kernels();

// Sets it while it lives, for tests and comparisons. Not for several threads at once.
class LibraryKernelsScope : Pinned {
 public:
  explicit LibraryKernelsScope(bool on) : saved_(library_kernels()) { set_library_kernels(on); }
  ~LibraryKernelsScope() { set_library_kernels(saved_); }

 private:
  bool saved_;
};

// Returns unused blocks to the driver.
void empty_cache(Device device = Device::cuda());

}  // namespace gradual::cuda
