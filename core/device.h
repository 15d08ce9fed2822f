// Where a tensor's storage lives.
#pragma once

#include <cstdint>
#include <string>

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
// Throws; defined in cuda/.
[[noreturn]] void fail_no_cuda(Device device);

}  // namespace gradual
