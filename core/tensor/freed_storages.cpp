#include "freed_storages.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "storage.h"

namespace gradual {

void FreedList::add(const FreedStorage& storage) {
  const std::lock_guard lock(mutex);
  freed.push_back(storage);
}

namespace {

// Guards the watchers of all storages.
std::mutex& watching() {
  static auto* const mutex = new std::mutex;  // never destroyed: tensors may outlive static objects
  return *mutex;
}

}  // namespace

FreedStorages::FreedStorages() : list_(std::make_shared<FreedList>()) {}

void FreedStorages::watch(const Tensor& t) {
  if (!t.defined()) return;
  Storage& storage = *t.unsafe_impl()->storage;
  const std::lock_guard lock(watching());
  Storage::Extra* extra = storage.extra.load(std::memory_order_relaxed);
  if (!extra) {
    extra = new Storage::Extra;
    storage.extra.store(extra, std::memory_order_release);
  }
  // The list of an observer that is gone has one owner left.
  std::erase_if(extra->watchers, [](const std::shared_ptr<FreedList>& list) { return list.use_count() == 1; });
  if (std::ranges::find(extra->watchers, list_) == extra->watchers.end()) extra->watchers.push_back(list_);
}

std::vector<FreedStorage> FreedStorages::take() {
  const std::lock_guard lock(list_->mutex);
  return std::exchange(list_->freed, {});
}

}  // namespace gradual
