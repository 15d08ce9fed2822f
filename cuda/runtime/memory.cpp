// Device memory: CUDA's stream-ordered pools, which keep freed blocks. core/tensor/memory.cpp counts the memory in use.
#include <cstring>
#include <mutex>

#include "../../core/support/throwf.h"
#include "../../core/tensor/memory.h"
#include "../cuda.h"
#include "index_check.h"
#include "memory.h"
#include "profiling.h"
#include "recording.h"
#include "staging.h"

namespace gradual {

namespace cuda {
namespace {

// The pool of a device keeps freed memory instead of returning it at the next synchronisation.
void keep_freed_blocks(int device) {
  static std::once_flag once[device::kMost];
  std::call_once(once[device], [&] {
    cudaMemPool_t pool = nullptr;
    check(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
    std::uint64_t threshold = UINT64_MAX;
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold), "cudaMemPoolSetAttribute");
  });
}

}  // namespace

// Copies on the destination's stream, after the work of the source's stream, which continues once the source is read.
static void copy_from_peer(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes) {
  device::select(from_device);
  Event written;
  written.record();
  device::select(to_device);
  Event read;
  written.wait();
  note_call("cudaMemcpyPeerAsync");
  check(cudaMemcpyPeerAsync(to, to_device.index, from, from_device.index, bytes, current_stream()),
        "cudaMemcpyPeerAsync");
  read.record();
  device::select(from_device);
  read.wait();
  device::select(to_device);
}

void clear(void* to, std::size_t bytes) {
  note_call("cudaMemsetAsync");
  check(cudaMemsetAsync(to, 0, bytes, current_stream()), "cudaMemsetAsync");
}

void fail_allocation(std::size_t bytes, Device device) {
  std::size_t left = 0;
  std::size_t all = 0;
  cudaMemGetInfo(&left, &all);
  throwf("out of memory on {}: asked for {} bytes; the driver has {} of {} bytes left\n{}", to_string(device), bytes,
         left, all, memory_summary(device));
}

void empty_cache(Device device) {
  synchronize(device);
  cudaMemPool_t pool = nullptr;
  check(cudaDeviceGetDefaultMemPool(&pool, device.index), "cudaDeviceGetDefaultMemPool");
  check(cudaMemPoolTrimTo(pool, 0), "cudaMemPoolTrimTo");
}

Workspace::Workspace(std::size_t bytes)
    : device_(Device::cuda(current_device())), data_(device::allocate(bytes, device_)), bytes_(bytes) {
  gradual::memory::count(Category::workspace, static_cast<std::int64_t>(bytes_), device_);
}
Workspace::~Workspace() {
  gradual::memory::count(Category::workspace, -static_cast<std::int64_t>(bytes_), device_);
  device::free(data_, bytes_, device_);
}

}  // namespace cuda

namespace device {

void* allocate(std::size_t bytes, Device device) {
  select(device);
  if (bytes == 0) return nullptr;
  if (const cuda::Recording* r = cuda::recording()) {
    if (r->device != device.index)
      throwf("cuda::Graph: a graph of cuda:{} cannot use {}", r->device, to_string(device));
    return r->pool->allocate(bytes, r->keeps_memory);
  }
  cuda::keep_freed_blocks(device.index);
  void* block = nullptr;
  const cudaStream_t stream = cuda::current_stream();
  cudaError_t status = cudaMallocAsync(&block, bytes, stream);
  if (status == cudaErrorMemoryAllocation) {  // pending frees and fragments may suffice
    cudaGetLastError();
    cuda::empty_cache(device);
    status = cudaMallocAsync(&block, bytes, stream);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      cuda::fail_allocation(bytes, device);
    }
  }
  cuda::check(status, "cudaMallocAsync");
  return block;
}

void free(void* block, std::size_t bytes, Device device) noexcept {
  if (!block || cuda::give_back(block)) return;
  try {
    if (cuda::Recording* r = cuda::recording()) return r->freed.push_back({block, bytes});
    select(device);
    cudaFreeAsync(block, cuda::current_stream());
  } catch (...) {  // the driver is gone: the process ends and releases its memory
  }
}

void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes) {
  if (bytes == 0) return;
  const bool waits = to_device.is_cpu();
  if (waits || from_device.is_cpu()) need_no_capture(waits ? "a copy to the CPU" : "a copy from the CPU");
  select(to_device.is_cuda() ? to_device : from_device);
  const cudaStream_t stream = cuda::current_stream();
  if (from_device.is_cpu()) cuda::copy_from_host(to, from, bytes, stream);
  else if (!waits && to_device != from_device) cuda::copy_from_peer(to, to_device, from, from_device, bytes);
  else cuda::enqueue_copy(to, from, bytes, stream);
  if (!waits) return;
  cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  cuda::raise_index_fault();
}

}  // namespace device
}  // namespace gradual
