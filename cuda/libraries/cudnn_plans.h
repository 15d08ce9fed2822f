// cuDNN plans cached per thread and device. Destroying a plan unloads its kernels (observed with cuDNN 9.19), but
// enqueued work, and graphs that recorded it, still need them.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>

#include "../runtime/recording.h"
#include "../runtime/runtime.h"
#include "../runtime/thread_resources.h"

namespace gradual::cuda {

// The plan of a call, made if it is not cached. The cache is cleared before it exceeds `most` plans.
template <class Plan, class Key, class Call> Plan& plan_of(const Key& key, const Call& call, std::size_t most) {
  using Plans = std::map<Key, std::shared_ptr<Plan>>;
  Plans& plans = inherited<std::array<Plans, device::kMost>>()[static_cast<std::size_t>(current_device())];
  Recording* const recorded = recording();
  auto at = plans.find(key);
  if (at == plans.end()) {
    if (plans.size() >= most && !recorded) {
      check(cudaStreamSynchronize(current_stream()), "cudaStreamSynchronize");
      plans.clear();
    }
    at = plans.emplace(key, std::make_shared<Plan>(call)).first;
  }
  if (recorded) recorded->kept.push_back(at->second);
  return *at->second;
}

}  // namespace gradual::cuda
