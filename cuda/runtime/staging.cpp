#include "staging.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "profiling.h"
#include "runtime.h"

namespace gradual::cuda {
namespace {

constexpr std::size_t kPiece = std::size_t{4} << 20;  // bytes: the device copies a piece while the host fills the next
constexpr std::size_t kBuffers = 4;                   // buffers that are created before one is reused

// Pinned memory. `done` is recorded after the last copy out of it.
struct Buffer : Pinned {
  Buffer() { check(cudaHostAlloc(&data, kPiece, cudaHostAllocDefault), "cudaHostAlloc"); }
  ~Buffer() { cudaFreeHost(data); }
  void* data = nullptr;
  Event done;
};

// Idle buffers, oldest first, because its copy finishes first.
class Idle {
 public:
  std::unique_ptr<Buffer> take() {
    std::unique_ptr<Buffer> buffer;
    {
      const std::lock_guard lock(mutex_);
      if (buffers_.size() >= kBuffers) {
        buffer = std::move(buffers_.front());
        buffers_.erase(buffers_.begin());
      }
    }
    if (!buffer) return std::make_unique<Buffer>();
    buffer->done.synchronize();
    return buffer;
  }
  void give(std::unique_ptr<Buffer> buffer) {
    const std::lock_guard lock(mutex_);
    buffers_.push_back(std::move(buffer));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};
// For this thread's device: an event can be recorded only on streams of the device it was made on.
Idle& idle() {
  static auto* buffers = new std::array<Idle, device::kMost>;  // never destroyed: the driver may be gone before it
  return (*buffers)[static_cast<std::size_t>(current_device())];
}

}  // namespace

void enqueue_copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  note_call("cudaMemcpyAsync");
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
}

void copy_from_host(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  for (std::size_t at = 0; at < bytes; at += kPiece) {
    const std::size_t n = std::min(kPiece, bytes - at);
    std::unique_ptr<Buffer> buffer = idle().take();
    std::memcpy(buffer->data, static_cast<const char*>(from) + at, n);
    enqueue_copy(static_cast<char*>(to) + at, buffer->data, n, stream);
    buffer->done.record(stream);
    idle().give(std::move(buffer));
  }
}

}  // namespace gradual::cuda
