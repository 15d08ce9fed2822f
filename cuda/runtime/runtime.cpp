#include "runtime.h"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "../../core/support/throwf.h"
#include "../cuda.h"
#include "index_check.h"
#include "recording.h"

namespace gradual {

namespace cuda {
namespace {

std::atomic<bool> library_kernels_now{true};
thread_local int selected = -1;                  // the device of the last cudaSetDevice on this thread
thread_local cudaStream_t own_stream = nullptr;  // of a StreamScope

struct Found {
  int count = 0;
  std::string why;
};
// The reason of an error of cudaGetDeviceCount. The runtime reports a missing driver as one that is too old.
std::string reason(cudaError_t status) {
  int driver = 0;
  if (status == cudaErrorNoDevice) return "no NVIDIA GPU was found";
  if (status == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
    return "no NVIDIA driver was found";
  return cudaGetErrorString(status);
}
const Found& found() {
  static const Found result = [] {
    Found f;
    const cudaError_t status = cudaGetDeviceCount(&f.count);
    if (status != cudaSuccess) {
      f.count = 0;
      f.why = "no GPU can be used: " + reason(status);
    } else if (f.count == 0) {
      f.why = "no GPU can be used: the driver sees none";
    }
    if (f.count > device::kMost) f.count = device::kMost;
    return f;
  }();
  return result;
}

// One per device, made at the first use and never destroyed: tensors may outlive static objects.
cudaStream_t shared_stream(int device) {
  static std::array<std::once_flag, device::kMost> once;
  static std::array<cudaStream_t, device::kMost> streams{};
  const auto at = static_cast<std::size_t>(device);
  std::call_once(once[at], [&] {
    check(cudaStreamCreateWithFlags(&streams[at], cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  });
  return streams[at];
}

}  // namespace

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears the error, which is reported here
  throwf("{}: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status));
}

std::string why_not() { return found().why; }

void set_library_kernels(bool on) { library_kernels_now.store(on, std::memory_order_relaxed); }
bool library_kernels() { return library_kernels_now.load(std::memory_order_relaxed); }

int current_device() {
  if (selected < 0) device::select(Device::cuda());
  return selected;
}

cudaStream_t current_stream() { return own_stream ? own_stream : shared_stream(current_device()); }

Stream::Stream() {
  current_device();
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}
Stream::~Stream() { cudaStreamDestroy(stream_); }
void Stream::synchronize() const {
  device::need_no_capture("Stream::synchronize()");
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}
StreamScope::StreamScope(cudaStream_t stream) : Scoped(own_stream, stream) {}

Event::Event() {
  current_device();
  check(cudaEventCreate(&event_), "cudaEventCreate");
}
Event::~Event() { cudaEventDestroy(event_); }
void Event::record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
void Event::wait(cudaStream_t stream) const { check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent"); }
void Event::synchronize() const {
  device::need_no_capture("Event::synchronize()");
  check(cudaEventSynchronize(event_), "cudaEventSynchronize");
}
double Event::milliseconds_since(const Event& start) const {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, start.event_, event_), "cudaEventElapsedTime");
  return static_cast<double>(ms);
}

DeviceInfo device_info(Device device) {
  device::select(device);
  cudaDeviceProp p{};
  check(cudaGetDeviceProperties(&p, device.index), "cudaGetDeviceProperties");
  DeviceInfo info{.name = p.name, .major = p.major, .minor = p.minor, .multiprocessors = p.multiProcessorCount};
  info.memory = static_cast<std::int64_t>(p.totalGlobalMem);
  check(cudaRuntimeGetVersion(&info.runtime), "cudaRuntimeGetVersion");
  check(cudaDriverGetVersion(&info.driver), "cudaDriverGetVersion");
  return info;
}

void synchronize(Device device) {
  device::need_no_capture("cuda::synchronize()");
  device::select(device);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  raise_index_fault();
}

}  // namespace cuda

namespace device {

int count() { return cuda::found().count; }

void select(Device device) {
  if (device.index == cuda::selected && device.index >= 0) return;  // -1: none is selected yet
  if (device.index < 0 || device.index >= count()) {
    if (count() == 0) throwf("no device {}: {}", to_string(device), cuda::why_not());
    throwf("no device {}: the GPUs at hand are cuda:0 to cuda:{}", to_string(device), count() - 1);
  }
  cuda::check(cudaSetDevice(device.index), "cudaSetDevice");
  cuda::selected = int{device.index};
}

struct OwnStream::State {
  cuda::Stream stream;
  cuda::StreamScope scope{stream.get()};
};
OwnStream::OwnStream(Device device) {
  if (device.is_cpu()) return;
  select(device);
  state_ = std::make_unique<State>();
  cuda::Event before;
  before.record(cuda::shared_stream(device.index));
  before.wait(state_->stream.get());
}
OwnStream::~OwnStream() {
  if (state_) cudaStreamSynchronize(state_->stream.get());
}

}  // namespace device
}  // namespace gradual
