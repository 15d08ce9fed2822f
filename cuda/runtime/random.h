// Keys of random numbers for kernels.
#pragma once

#include "../../core/support/generator.h"
#include "../../core/support/host_device.h"

namespace gradual::cuda {

// The key of a call. If the call is recorded (graph.h), `shift` points to GPU memory with the distance that the
// generator has advanced since the recording, updated before each replay.
struct DeviceKey {
  RandomKey key;
  const RandomKey* shift = nullptr;
  GRADUAL_HD RandomKey get() const {
    return shift ? RandomKey{key.seed ^ shift->seed, key.stream + shift->stream} : key;
  }
};
DeviceKey device_key(RandomKey key);

}  // namespace gradual::cuda
