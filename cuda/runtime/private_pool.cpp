#include "private_pool.h"

#include <atomic>
#include <bit>
#include <mutex>
#include <unordered_map>

#include "../../core/tensor/device.h"
#include "memory.h"
#include "runtime.h"

namespace gradual::cuda {
namespace {

// Rounds the size up by at most an eighth, so that freed blocks fit again.
std::size_t size_class(std::size_t bytes) {
  constexpr std::size_t kLeast = 512;
  const std::size_t step = bytes <= kLeast ? kLeast : std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

// Blocks in use, of all pools.
struct Lent {
  std::shared_ptr<PrivatePool> pool;
  std::size_t size;
};
struct Lendings {
  std::mutex mutex;
  std::unordered_map<void*, Lent> blocks;
  std::atomic<std::int64_t> count{0};  // mostly 0: then no lookup is needed
};
Lendings& lendings() {
  static Lendings* all = new Lendings;  // tensors may outlive static objects
  return *all;
}

}  // namespace

void* PrivatePool::allocate(std::size_t bytes, bool fresh) {
  const std::size_t size = size_class(bytes);
  Lendings& lent = lendings();
  const std::lock_guard lock(lent.mutex);
  std::vector<void*>& free = free_[size];
  if (fresh || free.empty()) {
    void* block = nullptr;
    cudaError_t status = cudaMalloc(&block, size);
    cudaMemPool_t kept = nullptr;  // its unused memory may suffice
    if (status == cudaErrorMemoryAllocation && cudaDeviceGetDefaultMemPool(&kept, device_) == cudaSuccess) {
      cudaGetLastError();
      cudaMemPoolTrimTo(kept, 0);
      status = cudaMalloc(&block, size);
    }
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      fail_allocation(size, Device::cuda(device_));
    }
    check(status, "cudaMalloc");
    bytes_ += static_cast<std::int64_t>(size);
    all_.push_back(block);
    free.push_back(block);
  }
  void* const block = free.back();
  lent.blocks.emplace(block, Lent{shared_from_this(), size});
  free.pop_back();
  lent.count.fetch_add(1, std::memory_order_relaxed);
  return block;
}

PrivatePool::~PrivatePool() {
  for (void* block : all_) cudaFree(block);  // waits for the work that uses it
}

bool give_back(void* block) noexcept {
  Lendings& lent = lendings();
  if (lent.count.load(std::memory_order_relaxed) == 0) return false;
  std::shared_ptr<PrivatePool> pool;  // destroyed with its last block, outside the lock
  const std::lock_guard lock(lent.mutex);
  const auto found = lent.blocks.find(block);
  if (found == lent.blocks.end()) return false;
  pool = std::move(found->second.pool);
  pool->free_[found->second.size].push_back(block);
  lent.blocks.erase(found);
  lent.count.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

}  // namespace gradual::cuda
