// What an optimizer keeps in the memory of its parameters' GPU, so that a step waits for nothing.
#include <algorithm>
#include <cstring>

#include "../core/support/failf.h"
#include "../core/tensor/device_recording.h"
#include "../core/tensor/memory.h"
#include "optimizer.h"

namespace gradual::optim {

void Optimizer::need_no_capture(const std::string& who) {
  if (device::capturing())
    failf("cuda::Graph: the optimizer's state of {} is not there yet: take a step before capture()", who);
}

Device Optimizer::device() const { return states_.empty() ? Device::cpu() : states_[0].param.device(); }

bool Optimizer::skips_on(Device device) const {
  return rule_.op && device.is_cuda() && !states_.empty() &&
         std::ranges::all_of(states_, [&](const ParamState& s) { return s.param.device() == device; });
}

// Whether this step's GPU counts it. The counts come back to the host where the parameters leave the GPU.
bool Optimizer::count_on_device(bool skips) {
  const bool can = skips_on(device());
  if (device::capturing() && !can)
    fail(
        "cuda::Graph: an optimizer can be recorded that has a fused row (SGD, Adam, AdamW) and whose parameters lie on "
        "one GPU");
  if (!can) {
    read_steps();
    device_counts_ = false;
    return false;
  }
  if (!skips && !device::capturing() && !device_counts_) return false;
  const auto make = [&](Tensor& t, std::size_t n) {
    const CategoryScope category(Category::optimizer);
    const device::KeptMemory kept;
    if (!t.defined() || t.device() != device())
      t = empty({static_cast<std::int64_t>(n)}, {.dtype = DType::i64, .device = device()});
  };
  if (device_steps_.defined() && device_steps_.device() != device()) {
    read_steps();
    device_counts_ = false;
  }
  make(device_steps_, states_.size());
  if (!device::capturing()) {
    publish();
    return true;
  }
  make(device_rates_, groups_.size() * sizeof(Rates) / sizeof(std::int64_t));
  published_.clear();
  device::before_replay([this] { publish(); });
  return true;
}

void Optimizer::read_steps() {
  if (!device_counts_) return;
  const std::vector<std::int64_t> counts = device_steps_.to_vector<std::int64_t>();
  for (ParamState& s : states_) s.steps = counts[s.index];
}

std::vector<Rates> Optimizer::rates() const {
  std::vector<Rates> all;
  all.reserve(groups_.size());
  const auto of = [](const std::optional<double>& rate) { return rate.value_or(0); };
  for (const ParamGroup& g : groups_)
    all.push_back({of(g.lr), of(g.weight_decay), of(g.momentum), of(g.dampening), of(g.beta1), of(g.beta2), of(g.eps)});
  return all;
}

// Hands the GPU what it does not know yet.
void Optimizer::publish() {
  if (!device_counts_) {
    std::vector<std::int64_t> counts;
    counts.reserve(states_.size());
    for (const ParamState& s : states_) counts.push_back(s.steps);
    device::upload(device_steps_.raw(), device_steps_.device(), counts.data(), counts.size() * sizeof counts[0]);
    device_counts_ = true;
  }
  if (!device_rates_.defined()) return;
  std::vector<Rates> now = rates();
  const std::size_t bytes = now.size() * sizeof(Rates);
  if (published_.size() == now.size() && std::memcmp(published_.data(), now.data(), bytes) == 0) return;
  device::upload(device_rates_.raw(), device_rates_.device(), now.data(), bytes);
  published_ = std::move(now);
}

}  // namespace gradual::optim
