#include "amax_history.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../tensor/device_recording.h"
#include "block_scales.h"

namespace gradual {

AmaxHistory& AmaxHistory::operator=(const AmaxHistory& o) {
  if (this == &o) return *this;
  scale = o.scale;
  amax = o.amax;
  staged = o.staged;
  is_staged = o.is_staged;
  used = o.used;
  o.there_.read([&](const void* bytes) { take(bytes, o.length_); });
  there_.host_changed();
  return *this;
}

void AmaxHistory::take(const void* bytes, int length) {
  const auto& read = *static_cast<const DeviceAmaxHistory*>(bytes);
  const auto* ring = reinterpret_cast<const float*>(&read + 1);
  scale = read.scale;
  used = read.used;
  staged = read.staged;
  amax.resize(static_cast<std::size_t>(std::min<std::int64_t>(read.count, length)));
  for (std::size_t i = 0; i < amax.size(); ++i)
    amax[i] = ring[(read.count - 1 - static_cast<std::int64_t>(i)) % length];
}

void AmaxHistory::upload(void* to, Device device) const {
  const std::size_t n = std::min(amax.size(), static_cast<std::size_t>(length_));
  const DeviceAmaxHistory head{.scale = scale, .used = used, .staged = staged, .count = static_cast<std::int64_t>(n)};
  std::vector<std::uint64_t> bytes((sizeof head + n * sizeof(float) + 7) / 8);
  std::memcpy(bytes.data(), &head, sizeof head);
  auto* ring = reinterpret_cast<float*>(reinterpret_cast<char*>(bytes.data()) + sizeof head);
  std::reverse_copy(amax.begin(), amax.begin() + static_cast<std::ptrdiff_t>(n), ring);
  device::upload(to, device, bytes.data(), bytes.size() * sizeof bytes[0]);
}

DeviceAmaxHistory* AmaxHistory::on_device(Device device, int length) {
  if (length != length_) on_host();
  length_ = length;
  there_.move_to(device, sizeof(DeviceAmaxHistory) + static_cast<std::size_t>(length) * sizeof(float));
  return static_cast<DeviceAmaxHistory*>(there_.raw());
}

void AmaxHistory::stage(double value) {
  on_host();
  staged = detail::larger_magnitude(detail::history_amax(std::fabs(value)), staged);
  is_staged = true;
}

void AmaxHistory::forget_staged() {
  read();
  staged = 0;
  is_staged = false;
  there_.host_changed();
}

void AmaxHistory::advance(const DelayedScale& s, const Format& f) {
  const detail::ScaleSpec spec = detail::scale_spec({.format = f, .scaling = s});
  is_staged = false;
  if (there_.in_use()) {
    const Device gpu = there_.memory().device();
    return device::advance_amax(on_device(gpu, s.history), gpu, spec);
  }
  amax.insert(amax.begin(), staged);
  amax.resize(std::min(amax.size(), static_cast<std::size_t>(s.history)));
  const float most = s.most_recent ? staged : detail::largest(amax.data(), std::ssize(amax), staged);
  staged = 0;
  scale = detail::delayed_scale(most, scale, spec);
}

}  // namespace gradual
