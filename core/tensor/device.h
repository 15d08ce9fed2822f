// Where a tensor's storage lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../support/scoped.h"

namespace gradual {

enum class DeviceType : std::uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  std::int8_t index = 0;

  static constexpr Device cpu() { return {}; }
  static constexpr Device cuda(int index = 0) { return {DeviceType::cuda, static_cast<std::int8_t>(index)}; }
  constexpr bool is_cpu() const { return type == DeviceType::cpu; }
  constexpr bool is_cuda() const { return type == DeviceType::cuda; }
  friend constexpr bool operator==(Device, Device) = default;
};

// "cpu", "cuda:0".
std::string to_string(Device device);
// Parses "cpu", "cuda" or "cuda:N"; anything else is an Error naming what is allowed.
Device device_from_name(const std::string& name);

// The functions of cuda/ for the layers above it. Without CUDA or a GPU all except count() are an Error that names what
// is missing.
namespace device {
inline constexpr int kMost = 10;  // cuda:0 to cuda:9
int count();                      // the number of GPUs; 0 without CUDA
void select(Device device);       // a GPU: where this thread's kernels run from now on
// Memory of a GPU. Work that is enqueued on the thread's stream may still use a block when it is freed.
void* allocate(std::size_t bytes, Device device);
void free(void* block, std::size_t bytes, Device device) noexcept;
// Copies bytes between devices, in the order of the thread's stream. On return the source may be changed, and a copy on
// the CPU is complete.
void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes);
// Repeats a pattern of `width` (1, 2, 4 or 8) bytes n times in a GPU's memory.
void fill(void* to, Device device, const void* pattern, std::size_t width, std::int64_t n);
// While it lives, this thread's work on `device` runs on a stream of its own: it and the work of other threads do not
// wait for each other. It starts after the work enqueued before; the destructor waits for its end. No effect on the
// CPU.
class OwnStream : Pinned {
 public:
  explicit OwnStream(Device device);
  ~OwnStream();

 private:
  struct State;
  std::unique_ptr<State> state_;
};
// The work of a GPU for one call.
struct Work {
  double seconds = 0;                // by the GPU's clock
  std::vector<std::string> kernels;  // in launch order; calls of a library or of CUDA by their function's name
};
// Records the work that this thread starts on a GPU until stop(), which waits for that work. One at a time per thread.
class Watch : Pinned {
 public:
  explicit Watch(Device device);
  ~Watch();
  Work stop();

 private:
  struct Span;
  std::unique_ptr<Span> span_;
};
// Registers the kernels of the column Columns::cuda.
void register_kernels();
}  // namespace device

}  // namespace gradual
