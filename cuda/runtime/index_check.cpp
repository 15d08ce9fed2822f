#include "index_check.h"

#include <array>
#include <mutex>
#include <new>

#include "../../core/support/throwf.h"

namespace gradual::cuda {
namespace {

// One per device, in host memory that kernels can write; made at the first use and never freed.
std::array<IndexFault*, device::kMost> faults{};

IndexFault* fault_of(int device) {
  static std::array<std::once_flag, device::kMost> once;
  const auto at = static_cast<std::size_t>(device);
  std::call_once(once[at], [&] {
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, sizeof(IndexFault), cudaHostAllocDefault), "cudaHostAlloc");
    faults[at] = new (memory) IndexFault;
  });
  return faults[at];
}

}  // namespace

IndexCheck index_check(const OpCall& call, std::int64_t size) {
  return {fault_of(current_device()), call.op, call.where, size};
}

void raise_index_fault() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  IndexFault* const fault = faults[static_cast<std::size_t>(current_device())];
  if (!fault || *static_cast<volatile unsigned*>(&fault->ready) == 0) return;
  const IndexFault told = *fault;
  *fault = IndexFault{};
  const std::string line = file_line(told.where);
  if (told.op == OpId::max_pool2d_backward)
    throwf(
        "{}: index {} (element {}) lies outside its window in a plane of {} elements; pass the indices and the "
        "attributes of max_pool2d and its input's sizes",
        to_string(told.op), told.index, told.element, told.size);
  throwf("{}{}{}: index {} (element {} of the index) is out of range; allowed are 0 to {}", to_string(told.op),
         line.empty() ? "" : " at ", line, told.index, told.element, told.size - 1);
}

}  // namespace gradual::cuda
