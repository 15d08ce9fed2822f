#include "storage.h"

#include <memory>

#include "device.h"
#include "error.h"

namespace gradual {

namespace {

// Ids are handed to threads a thousand at a time.
std::uint64_t next_id() {
  static std::atomic<std::uint64_t> next_block{1};
  thread_local std::uint64_t next = 0;
  thread_local std::uint64_t end = 0;
  if (next == end) {
    next = next_block.fetch_add(1024, std::memory_order_relaxed);
    end = next + 1024;
  }
  return next++;
}

}  // namespace

std::string to_string(Device device) { return device.is_cpu() ? "cpu" : "cuda:" + std::to_string(device.index); }

Device device_from_name(const std::string& name) {
  if (name == "cpu") return Device::cpu();
  if (name == "cuda") return Device::cuda();
  if (name.size() == 6 && name.starts_with("cuda:") && name[5] >= '0' && name[5] <= '9')
    return Device::cuda(name[5] - '0');
  fail("no device '" + name + "'; allowed are cpu, cuda and cuda:0 to cuda:9");
}

Ref<Storage> Storage::allocate(std::size_t bytes, Device device) {
  if (!device.is_cpu()) fail_no_cuda(device);
  std::unique_ptr<Storage> s(new Storage);
  s->data = memory::allocate(bytes);
  s->bytes = bytes;
  s->device = device;
  s->category = current_category();
  s->id = next_id();
  memory::count(s->category, static_cast<std::int64_t>(bytes));
  return Ref<Storage>::adopt(s.release());
}

Ref<Storage> Storage::wrap(void* data, std::size_t bytes, std::function<void()> deleter) {
  std::unique_ptr<Storage> s(new Storage);
  s->data = data;
  s->bytes = bytes;
  s->id = next_id();
  s->deleter = std::make_unique<std::function<void()>>(std::move(deleter));
  return Ref<Storage>::adopt(s.release());
}

void Storage::destroy(Storage* s) {
  if (!s->deleter) {
    memory::count(s->counted(), -static_cast<std::int64_t>(s->bytes));
    memory::free(s->data, s->bytes);
  } else if (*s->deleter) {
    (*s->deleter)();
  }
  delete s;
}

Category Storage::counted() const {
  return category == Category::workspace && saved.load(std::memory_order_relaxed) > 0 ? Category::activations
                                                                                      : category;
}

void Storage::set_category(Category to) {
  const Category before = counted();
  category = to;
  if (!deleter) memory::move(before, counted(), static_cast<std::int64_t>(bytes));
}

void Storage::add_saved() {
  if (saved.fetch_add(1, std::memory_order_relaxed) == 0 && category == Category::workspace && !deleter)
    memory::move(Category::workspace, Category::activations, static_cast<std::int64_t>(bytes));
}

void Storage::remove_saved() {
  if (saved.fetch_sub(1, std::memory_order_relaxed) == 1 && category == Category::workspace && !deleter)
    memory::move(Category::activations, Category::workspace, static_cast<std::int64_t>(bytes));
}

}  // namespace gradual
