// Replaces the CUDA backend in builds without it: GPU tensors cannot be created, and the error tells why.
#include "../../core/kernels/loss_scale.h"
#include "../../core/quantize/quantizer_kernels.h"
#include "../../core/support/error.h"
#include "../../core/tensor/device_recording.h"
#include "../cuda.h"
#include "../runtime/graph.h"

namespace gradual {

namespace cuda {

std::string why_not() {
  return "this library was built without CUDA: install the CUDA toolkit (12.4 or newer) and cuDNN 9, then configure "
         "with "
         "-DGRADUAL_CUDA=ON";
}

void set_library_kernels(bool) {}
bool library_kernels() { return false; }

struct Graph::State {};
Graph::Graph() { throw_error("cuda::Graph: " + why_not()); }
Graph::~Graph() = default;
void Graph::capture(const std::function<void()>&) {}
void Graph::replay() {}
std::int64_t Graph::memory() const { return 0; }

}  // namespace cuda

namespace {
[[noreturn]] void fail_no_cuda(Device device) {
  throw_error("no device " + to_string(device) + ": " + cuda::why_not());
}
}  // namespace

namespace cuda {

DeviceInfo device_info(Device device) { fail_no_cuda(device); }
void synchronize(Device device) { fail_no_cuda(device); }
void empty_cache(Device device) { fail_no_cuda(device); }

}  // namespace cuda

namespace device {

int count() { return 0; }
void select(Device device) { fail_no_cuda(device); }
void* allocate(std::size_t, Device device) { fail_no_cuda(device); }
void free(void*, std::size_t, Device) noexcept {}
void copy(void*, Device to_device, const void*, Device from_device, std::size_t) {
  fail_no_cuda(to_device.is_cuda() ? to_device : from_device);
}
void fill(void*, Device device, const void*, std::size_t, std::int64_t) { fail_no_cuda(device); }
struct OwnStream::State {};
OwnStream::OwnStream(Device device) {
  if (device.is_cuda()) fail_no_cuda(device);
}
OwnStream::~OwnStream() = default;
struct Watch::Span {};
Watch::Watch(Device device) { fail_no_cuda(device); }
Watch::~Watch() = default;
Work Watch::stop() { return {}; }
void register_kernels() {}
void round_scaled(const RoundingPass& pass) { fail_no_cuda(pass.x.device()); }
void amax(const Tensor& x, const Tensor&) { fail_no_cuda(x.device()); }
void whole_scale(const Tensor& amax, const detail::ScaleSpec&, const Tensor&) { fail_no_cuda(amax.device()); }
void delayed_scale(DeviceAmaxHistory*, const Tensor&, QuantizeFor, const Tensor& to) { fail_no_cuda(to.device()); }
void copy_unless(const std::int64_t*, const Tensor& to, const Tensor&) { fail_no_cuda(to.device()); }
void advance_amax(DeviceAmaxHistory*, Device device, const detail::ScaleSpec&) { fail_no_cuda(device); }
void dequantize(const QuantizedTensor& q, const Tensor&, const Tensor&, const Tensor&) { fail_no_cuda(q.device()); }
bool capturing() { return false; }
void need_no_capture(const std::string&) {}
KeptMemory::KeptMemory() : before_(false) {}
KeptMemory::~KeptMemory() = default;
void before_replay(std::function<void()>) { throw_error("before_replay: " + cuda::why_not()); }
void upload(void*, Device device, const void*, std::size_t) { fail_no_cuda(device); }
void advance_scale(DeviceLossScale*, Device device, const LossScaleOptions&, std::span<const std::int64_t* const>,
                   double) {
  fail_no_cuda(device);
}

}  // namespace device
}  // namespace gradual
