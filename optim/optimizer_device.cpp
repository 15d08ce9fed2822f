// The optimizer's state in GPU memory, which lets a step run without waiting.
#include <algorithm>
#include <cstring>

#include "../core/support/throwf.h"
#include "../core/tensor/device_recording.h"
#include "optimizer.h"

namespace gradual::optim {

void Optimizer::need_no_capture(const std::string& who) {
  if (device::capturing())
    throwf("cuda::Graph: the optimizer's state of {} is not there yet: take a step before capture()", who);
}

bool Optimizer::skips_on(Device device) const {
  return update_rule_.op && device.is_cuda() && !states_.empty() &&
         std::ranges::all_of(states_, [&](const ParamState& s) { return s.param.device() == device; });
}

// True if the GPU counts this step. The counts move back to the host if the parameters leave the GPU.
bool Optimizer::count_on_device(bool skips) {
  const bool can = skips_on(device());
  if (device::capturing() && !can)
    throw_error(
        "cuda::Graph: an optimizer can be recorded that has a fused row (SGD, Adam, AdamW) and whose parameters lie on "
        "one GPU");
  if (!can) {
    device_steps_.leave();
    return false;
  }
  if (!skips && !device::capturing() && !device_steps_.current()) return false;
  device_steps_.move_to(device(), states_.size() * sizeof(std::int64_t));
  if (!device::capturing()) {
    upload_rates();
    return true;
  }
  if (!device_rates_.defined() || device_rates_.device() != device()) {
    const CategoryScope category(Category::optimizer);
    const device::KeptMemory kept;
    const std::size_t words = groups_.size() * sizeof(Rates) / sizeof(std::int64_t);
    device_rates_ = empty({static_cast<std::int64_t>(words)}, {.dtype = DType::i64, .device = device()});
  }
  uploaded_rates_.clear();
  device::before_replay([this] { upload_rates(); });
  return true;
}

void Optimizer::upload_steps(void* to, Device device) const {
  std::vector<std::int64_t> counts(states_.size());
  std::ranges::transform(states_, counts.begin(), &ParamState::steps);
  device::upload(to, device, counts.data(), counts.size() * sizeof counts[0]);
}

// Uploads rates that have changed.
void Optimizer::upload_rates() {
  if (!device_rates_.defined()) return;
  std::vector<Rates> now(groups_.size());
  std::ranges::transform(groups_, now.begin(), rates_of);
  const std::size_t bytes = now.size() * sizeof(Rates);
  if (uploaded_rates_.size() == now.size() && std::memcmp(uploaded_rates_.data(), now.data(), bytes) == 0) return;
  device::upload(device_rates_.raw(), device_rates_.device(), now.data(), bytes);
  uploaded_rates_ = std::move(now);
}

}  // namespace gradual::optim
