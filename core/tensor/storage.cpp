#include "storage.h"

#include <new>
#include <utility>

#include "freed_storages.h"

namespace gradual {

namespace {

// A block holds the Storage. Its bytes follow in the same block if they are at most kBeside, aligned like a block.
constexpr std::size_t kHeader = (sizeof(Storage) + 63) & ~std::size_t{63};
constexpr std::size_t kBeside = 4096;

void* allocate_on(Device device, std::size_t bytes) {
  return device.is_cpu() ? memory::allocate(bytes) : device::allocate(bytes, device);
}
void free_on(Device device, void* data, std::size_t bytes) noexcept {
  if (device.is_cpu()) memory::free(data, bytes);
  else device::free(data, bytes, device);
}

// Each thread reserves a thousand ids at a time.
std::uint64_t next_id() {
  static std::atomic<std::uint64_t> next_block{1};
  struct Block {
    std::uint64_t next = 0;
    std::uint64_t end = 0;
  };
  [[gnu::tls_model("initial-exec")]] constinit thread_local Block ids;
  if (ids.next == ids.end) {
    ids.next = next_block.fetch_add(1024, std::memory_order_relaxed);
    ids.end = ids.next + 1024;
  }
  return ids.next++;
}

}  // namespace

Storage::Storage(std::size_t size, Device where)
    : category(current_category()),
      device(where),
      bytes(size),
      id(next_id()),
      counted_bytes(static_cast<std::int64_t>(size)) {}

Ref<Storage> Storage::allocate(std::size_t bytes, Device device) {
  const bool beside = device.is_cpu() && bytes <= kBeside;
  void* const data = beside ? nullptr : allocate_on(device, bytes);
  void* block = nullptr;
  try {
    block = memory::allocate(beside ? kHeader + bytes : kHeader);
  } catch (...) {
    free_on(device, data, bytes);
    throw;
  }
  auto* const s = new (block) Storage(bytes, device);
  s->data = beside && bytes > 0 ? static_cast<char*>(block) + kHeader : data;
  memory::count(s->category, s->counted_bytes, device);
  return Ref<Storage>::adopt(s);
}

Ref<Storage> Storage::wrap(void* data, std::size_t bytes, std::function<void()> deleter) {
  auto extra = std::make_unique<Extra>(Extra{.borrowed = true, .deleter = std::move(deleter)});
  auto* const s = new (memory::allocate(kHeader)) Storage(bytes, Device::cpu());
  s->category = Category::workspace;
  s->data = data;
  s->extra = extra.release();
  s->counted_bytes = 0;
  return Ref<Storage>::adopt(s);
}

inline void Storage::free_own(Storage* s) {
  std::size_t block = kHeader;
  memory::count(s->counted(), -s->counted_bytes, s->device);
  if (s->device.is_cuda() || s->bytes > kBeside) free_on(s->device, s->data, s->bytes);
  else block += s->bytes;
  s->~Storage();
  memory::free(s, block);
}

[[gnu::noinline]] void Storage::destroy_with(Extra* given, Storage* s) {
  const std::unique_ptr<Extra> extra(given);
  for (const std::shared_ptr<FreedList>& list : extra->watchers) list->add({s->id, s->data});
  if (!extra->borrowed) return free_own(s);
  if (extra->deleter) extra->deleter();
  s->~Storage();
  memory::free(s, kHeader);
}

void Storage::destroy(Storage* s) {
  if (Extra* const extra = s->extra.load(std::memory_order_acquire)) return destroy_with(extra, s);
  free_own(s);
}

}  // namespace gradual
