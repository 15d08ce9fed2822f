// Keys of random numbers as kernels take them.
#pragma once

#include "../../core/support/generator.h"
#include "../../core/support/host_device.h"

namespace gradual::cuda {

// The key of a call. Where the call is recorded (graph.h) `shift` stands in the GPU's memory and says, at each replay, how
// far the generator has gone since then.
struct DeviceKey {
  RandomKey key;
  const RandomKey* shift = nullptr;
  GRADUAL_HD RandomKey get() const {
    return shift ? RandomKey{key.seed ^ shift->seed, key.stream + shift->stream} : key;
  }
};
DeviceKey device_key(RandomKey key);

}  // namespace gradual::cuda
