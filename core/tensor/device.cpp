#include "device.h"

#include "../support/error.h"

namespace gradual {

std::string to_string(Device device) { return device.is_cpu() ? "cpu" : "cuda:" + std::to_string(device.index); }

Device device_from_name(const std::string& name) {
  if (name == "cpu") return Device::cpu();
  if (name == "cuda") return Device::cuda();
  if (name.size() == 6 && name.starts_with("cuda:") && name[5] >= '0' && name[5] <= '9')
    return Device::cuda(name[5] - '0');
  throw_error("no device '" + name + "'; allowed are cpu, cuda and cuda:0 to cuda:9");
}

}  // namespace gradual
