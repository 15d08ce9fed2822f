#include "amax_history.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "../tensor/device_recording.h"
#include "../tensor/memory.h"
#include "quantizer_kernels.h"

namespace gradual {

AmaxHistory::AmaxHistory(const AmaxHistory& o) { *this = o; }

AmaxHistory& AmaxHistory::operator=(const AmaxHistory& o) {
  if (this == &o) return *this;
  scale = o.scale, amax = o.amax, staged = o.staged, is_staged = o.is_staged, used = o.used;
  if (o.on_device_ && o.published_) o.fetch_into(*this);
  published_ = false;
  return *this;
}

AmaxHistory& AmaxHistory::read() {
  if (on_device_ && published_) fetch_into(*this);
  return *this;
}

void AmaxHistory::fetch_into(AmaxHistory& to) const {
  const Tensor copy = detail::moved(there_, Device::cpu());
  const auto& read = *static_cast<const DeviceAmaxHistory*>(copy.raw());
  const auto* ring = reinterpret_cast<const float*>(&read + 1);
  to.scale = read.scale, to.used = read.used, to.staged = read.staged;
  to.amax.resize(static_cast<std::size_t>(std::min<std::int64_t>(read.count, length_)));
  for (std::size_t i = 0; i < to.amax.size(); ++i)
    to.amax[i] = ring[(read.count - 1 - static_cast<std::int64_t>(i)) % length_];
}

void AmaxHistory::publish() {
  if (published_) return;
  const std::size_t n = std::min(amax.size(), static_cast<std::size_t>(length_));
  const DeviceAmaxHistory head{.scale = scale, .used = used, .staged = staged, .count = static_cast<std::int64_t>(n)};
  std::vector<std::uint64_t> bytes((sizeof head + n * sizeof(float) + 7) / 8);
  std::memcpy(bytes.data(), &head, sizeof head);
  auto* ring = reinterpret_cast<float*>(reinterpret_cast<char*>(bytes.data()) + sizeof head);
  std::reverse_copy(amax.begin(), amax.begin() + static_cast<std::ptrdiff_t>(n), ring);
  device::upload(there_.raw(), there_.device(), bytes.data(), bytes.size() * sizeof bytes[0]);
  published_ = true;
}

DeviceAmaxHistory* AmaxHistory::on_device(Device device, int length) {
  if (there_.defined() && (there_.device() != device || length_ != length)) {
    on_host();
    there_ = Tensor();
  }
  if (!there_.defined()) {
    const CategoryScope category(Category::optimizer);
    const device::KeptMemory kept;
    const auto bytes = static_cast<std::int64_t>(sizeof(DeviceAmaxHistory)) + (length + 1) / 2 * 8;
    there_ = empty({bytes / 4}, {.device = device});
    length_ = length;
  }
  on_device_ = true;
  // A recorded step must not set the state back at each replay.
  if (device::capturing()) device::before_replay([this] { publish(); });
  else publish();
  return static_cast<DeviceAmaxHistory*>(there_.raw());
}

void AmaxHistory::on_host() {
  read();
  on_device_ = published_ = false;
}

void AmaxHistory::stage(float value) {
  on_host();
  staged = detail::larger_magnitude(value, staged);
  is_staged = true;
}

void AmaxHistory::advance(const Scaling& s, const Format& f) {
  const detail::ScaleSpec spec = detail::scale_spec({.format = f, .scaling = s});
  is_staged = false;
  if (on_device_) {
    DeviceAmaxHistory* const there = on_device(there_.device(), s.history);
    return device::advance_amax(there, there_.device(), s.history, s.most_recent, spec);
  }
  amax.insert(amax.begin(), staged);
  amax.resize(std::min(amax.size(), static_cast<std::size_t>(s.history)));
  auto most = std::bit_cast<std::uint32_t>(staged);  // as bits, so that the loop vectorises
  if (!s.most_recent)
    for (const float a : amax) most = std::max(most, std::bit_cast<std::uint32_t>(a) & 0x7fffffffu);
  staged = 0;
  scale = detail::delayed_scale(std::bit_cast<float>(most), scale, spec);
}

}  // namespace gradual
