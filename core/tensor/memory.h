// The caching, counting allocator. It counts every tensor's bytes by category at all times, so reported memory is
// measured, not estimated.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "../support/scoped.h"
#include "device.h"

namespace gradual {

// The use of the bytes. A storage starts in the category of the innermost CategoryScope (workspace without one) and
// moves when it becomes a parameter, is saved for backward, ...
enum class Category : std::uint8_t { parameters, masters, casts, gradients, optimizer, activations, workspace };
inline constexpr int kCategories = 7;
const char* to_string(Category category);

struct MemoryStats {
  struct Entry {
    std::int64_t current = 0;
    std::int64_t peak = 0;  // since the last reset_peak_memory()
  };
  std::array<Entry, kCategories> by_category;  // each with its own peak
  Entry total;                                 // the peak of the sum, not the sum of peaks
  const Entry& operator[](Category c) const { return by_category[static_cast<std::size_t>(c)]; }
};
// Exact, including peaks, while one thread allocates. Each further thread may delay changes of up to 64 KiB per
// category.
MemoryStats memory_stats(Device device = Device::cpu());
void reset_peak_memory(Device device = Device::cpu());
// The statistics as a small text table.
std::string memory_summary(Device device = Device::cpu());

// The category of new storages of this thread (modes.h).
Category& current_category();
using CategoryScope = ScopeOf<Category, current_category>;

// A request that would take the CPU's bytes in use past the limit throws. Default: the machine's physical memory.
void set_memory_limit(std::int64_t bytes);
// Gives cached blocks back to the system.
void empty_cache();

namespace memory {
// Size classes of blocks: four steps to each power of two, from 64 bytes.
constexpr int class_of(std::size_t bytes) {
  if (bytes <= 64) return 0;
  const std::size_t b = bytes - 1;
  const int log = std::bit_width(b) - 1;
  return (log - 6) * 4 + static_cast<int>((b >> (log - 2)) & 3) + 1;
}
// Called by allocate and free; `bytes` is the requested size.
void* allocate_class(int size_class, std::size_t bytes);
void free_class(int size_class, void* block) noexcept;
// 64-byte aligned blocks, cached by size class. Sizes are in bytes; free takes the size that was requested. Inline, so
// that the class of a constant size is a constant.
inline void* allocate(std::size_t bytes) { return bytes == 0 ? nullptr : allocate_class(class_of(bytes), bytes); }
inline void free(void* block, std::size_t bytes) noexcept {
  if (block) free_class(class_of(bytes), block);
}
// Negative bytes return memory.
void count(Category category, std::int64_t bytes, Device device = Device::cpu()) noexcept;
void move(Category from, Category to, std::int64_t bytes, Device device = Device::cpu()) noexcept;
}  // namespace memory

// A base class whose new and delete use these caches, uncounted.
template <class T> struct Pooled {
  static void* operator new(std::size_t bytes) { return memory::allocate(bytes); }
  static void operator delete(void* p, std::size_t bytes) noexcept { memory::free(p, bytes); }
};

// The same for standard containers.
template <class T> struct PoolAllocator {
  using value_type = T;
  PoolAllocator() = default;
  template <class U> PoolAllocator(const PoolAllocator<U>&) {}  // NOLINT(google-explicit-constructor)
  T* allocate(std::size_t n) { return static_cast<T*>(memory::allocate(n * sizeof(T))); }
  void deallocate(T* p, std::size_t n) noexcept { memory::free(p, n * sizeof(T)); }
  friend bool operator==(const PoolAllocator&, const PoolAllocator&) { return true; }
};

// Uninitialised, 64-byte aligned scratch for kernels, counted as workspace.
class Scratch : Pinned {
 public:
  explicit Scratch(std::size_t bytes) : data_(memory::allocate(bytes)), bytes_(bytes) {
    memory::count(Category::workspace, static_cast<std::int64_t>(bytes));
  }
  ~Scratch() {
    memory::count(Category::workspace, -static_cast<std::int64_t>(bytes_));
    memory::free(data_, bytes_);
  }
  void* data() const { return data_; }
  template <class T> T* as() const { return static_cast<T*>(data_); }

 private:
  void* data_;
  std::size_t bytes_;
};

}  // namespace gradual
