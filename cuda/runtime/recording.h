// What is recorded by this thread (graph.h), as the rest of cuda/ sees it.
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
  bool keyed = false;                    // somebody reads it
  bool keeps_memory = false;             // device::KeptMemory
  std::vector<std::function<void()>> before_replay = {};
  std::vector<std::shared_ptr<const void>> kept = {};  // what the recorded work needs while it can be replayed
  struct Freed {
    void* block;
    std::size_t bytes;
  };
  std::vector<Freed> freed = {};  // blocks of others, given back at the end
};
// Null: this thread's work is done at once.
Recording*& recording();

}  // namespace gradual::cuda
