// The bytes behind one or more tensors.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "../support/intrusive.h"
#include "device.h"
#include "memory.h"

namespace gradual {

struct FreedList;  // freed_storages.h

// A small storage and its bytes share one block.
struct Storage {
  // What few storages have.
  struct Extra {
    bool borrowed = false;               // from_blob: memory that the caller owns, not counted
    std::function<void()> deleter = {};  // of borrowed memory
    std::vector<std::shared_ptr<FreedList>> watchers = {};
  };
  std::atomic<std::uint32_t> refs{1};
  std::atomic<std::uint32_t> version{0};        // grows with every in-place write; shared by all views
  std::atomic<std::int32_t> differentiable{0};  // tensors on this storage that are part of a graph
  std::atomic<std::int32_t> saved{0};           // nodes that keep it for backward
  Category category = Category::workspace;      // its category while no node saves it
  Device device;
  void* data = nullptr;
  std::size_t bytes = 0;
  std::uint64_t id = 0;  // never used twice in a process
  std::atomic<Extra*> extra{nullptr};
  std::int64_t counted_bytes;  // 0 if they are borrowed

  Storage(std::size_t size, Device where);
  static Ref<Storage> allocate(std::size_t bytes, Device device);
  static Ref<Storage> wrap(void* data, std::size_t bytes, std::function<void()> deleter);
  static void destroy(Storage* s);
  bool borrowed() const {
    const Extra* const e = extra.load(std::memory_order_acquire);
    return e && e->borrowed;
  }

  // The category that its bytes count in now; set_category moves them. Workspace counts under activations while a node
  // keeps it.
  Category counted() const {
    const bool kept = category == Category::workspace && saved.load(std::memory_order_relaxed) > 0;
    return kept ? Category::activations : category;
  }
  void set_category(Category to) {
    const Category before = counted();
    category = to;
    memory::move(before, counted(), counted_bytes, device);
  }
  void add_saved() {
    if (add_to(saved, 1) == 0 && category == Category::workspace)
      memory::move(Category::workspace, Category::activations, counted_bytes, device);
  }
  void remove_saved() {
    if (add_to(saved, -1) == 1 && category == Category::workspace)
      memory::move(Category::activations, Category::workspace, counted_bytes, device);
  }

 private:
  static void destroy_with(Extra* extra, Storage* s);
  static void free_own(Storage* s);
};

}  // namespace gradual
