// For the layers above cuda/: whether work is being recorded for replay (cuda::Graph), and how to pass a few numbers to
// a replay without waiting. Defined in cuda/.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "../support/scoped.h"
#include "device.h"

namespace gradual::device {

// True while this thread's GPU work is recorded and not executed. Whatever the host reads, counts or decides then is
// fixed for every replay. False without CUDA.
bool capturing();
// Error that `what` cannot be recorded, if this thread is recording.
void need_no_capture(const std::string& what);
// f runs on the host before each replay of the current recording. It may upload() changed numbers into memory that was
// allocated before the recording or under KeptMemory.
void before_replay(std::function<void()> f);
// Memory that is allocated while it lives is not shared with other recorded work, earlier or later: its contents at the
// start of a replay are still there when they are read.
class KeptMemory : Pinned {
 public:
  KeptMemory();
  ~KeptMemory();

 private:
  bool before_;
};
// Copies a few numbers to a GPU's memory (8-byte aligned), in the order of the thread's stream. Does not wait: they are
// passed as kernel arguments.
void upload(void* to, Device device, const void* from, std::size_t bytes);

}  // namespace gradual::device
