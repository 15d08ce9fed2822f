// What the layers above cuda/ need to know of work that a GPU records and runs again and again (cuda::Graph), and how they
// hand it a few numbers without waiting. Defined in cuda/.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "../support/scoped.h"
#include "device.h"

namespace gradual::device {

// Whether this thread's work is being recorded, not done: what the host reads, counts or decides then is decided for every
// replay. False without CUDA.
bool capturing();
// Error saying that `what` cannot be recorded, where that would be.
void need_no_capture(const std::string& what);
// f runs on the host before each replay of what is being recorded: there it may upload() what has changed, into memory
// that was there before the recording or was allocated under KeptMemory.
void before_replay(std::function<void()> f);
// Memory that is allocated while it lives is no other recorded work's, before or behind: what stands there when a replay
// begins is still there when it is read.
class KeptMemory : Pinned {
 public:
  KeptMemory();
  ~KeptMemory();

 private:
  bool before_;
};
// Copies a few numbers to a GPU's memory, where they are aligned to 8 bytes, in the order of the thread's stream. Nobody
// waits: they travel as the arguments of kernels.
void upload(void* to, Device device, const void* from, std::size_t bytes);

}  // namespace gradual::device
