// The recording of this thread (graph.h), for the rest of cuda/.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "../../core/support/generator.h"
#include "../../core/tensor/device_recording.h"
#include "private_pool.h"
#include "runtime.h"

namespace gradual::cuda {

struct Recording {
  int device = 0;
  std::shared_ptr<PrivatePool> pool;
  const RandomKey* key_shift = nullptr;  // see random.h
  bool keyed = false;                    // a kernel reads key_shift
  bool keeps_memory = false;             // device::KeptMemory
  std::vector<std::function<void()>> before_replay = {};
  std::vector<std::shared_ptr<const void>> kept = {};  // objects that replays need
  struct Freed {
    void* block;
    std::size_t bytes;
  };
  std::vector<Freed> freed = {};  // blocks from outside the recording, returned at its end
};
// Null: this thread is not recording.
Recording*& recording();

}  // namespace gradual::cuda
