#include "device_mirror.h"

#include "device_recording.h"

namespace gradual {

void DeviceMirror::move_to(Device device, std::size_t bytes) {
  if (memory_.defined() && (memory_.device() != device || bytes_ != bytes)) {
    leave();
    memory_ = Tensor();
  }
  if (!memory_.defined()) {
    const CategoryScope category(Category::optimizer);
    const device::KeptMemory kept;
    memory_ = empty({static_cast<std::int64_t>((bytes + 7) / 8 * 2)}, {.device = device});
    bytes_ = bytes;
    current_ = false;
  }
  in_use_ = true;
  if (!device::capturing()) return upload_changes();
  device::before_replay([this] { upload_changes(); });
}

void DeviceMirror::read(const Fetch& fetch) const {
  if (!current()) return;
  std::vector<std::uint64_t> bytes((bytes_ + 7) / 8);
  device::copy(bytes.data(), Device::cpu(), memory_.raw(), memory_.device(), bytes_);
  fetch(bytes.data());
}

}  // namespace gradual
