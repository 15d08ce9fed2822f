// Tells which storages are gone, for observers that keep data about them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "../support/scoped.h"
#include "tensor.h"

namespace gradual {

struct FreedStorage {
  std::uint64_t id = 0;           // Storage::id
  const void* address = nullptr;  // of its bytes; a new storage may have it again
};

// Shared by an observer and the storages that it watches.
struct FreedList {
  std::mutex mutex;
  std::vector<FreedStorage> freed;
  void add(const FreedStorage& storage);
};

class FreedStorages : Pinned {
 public:
  FreedStorages();
  // From now on take() tells if the tensor's storage is freed, on whatever thread.
  void watch(const Tensor& t);
  // The watched storages that were freed since the last call, in order.
  std::vector<FreedStorage> take();

 private:
  std::shared_ptr<FreedList> list_;
};

}  // namespace gradual
