#include "memory.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include "error.h"

#if defined(__SANITIZE_ADDRESS__)
#define GRADUAL_NO_CACHE 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GRADUAL_NO_CACHE 1
#endif
#endif

namespace gradual {
namespace {

#ifdef GRADUAL_NO_CACHE
constexpr bool kCache = false;  // so that the sanitizer sees every use after free
#else
constexpr bool kCache = true;
#endif

struct Account {
  std::atomic<std::int64_t> current{0};
  std::atomic<std::int64_t> peak{0};
  // Adds a thread's changes, which in between were up to `high` more than before.
  void add(std::int64_t bytes, std::int64_t high) {
    const std::int64_t before = current.fetch_add(bytes, std::memory_order_relaxed);
    std::int64_t seen = peak.load(std::memory_order_relaxed);
    while (before + high > seen && !peak.compare_exchange_weak(seen, before + high, std::memory_order_relaxed)) {}
  }
  void reset() { peak.store(current.load()); }
};
constexpr int kTotal = kCategories;
Account accounts[kCategories + 1];  // the last one is the total
std::atomic<std::int64_t> limit{0};

// Each thread gathers small changes before it touches the accounts: a locked instruction costs as much as a small op.
// With one thread figures stay exact, peaks too; each further thread may hold back up to kHeldBack bytes.
constexpr std::int64_t kHeldBack = 64 << 10;
struct HeldBack {
  std::int64_t delta = 0;
  std::int64_t high = 0;  // the largest delta since the last flush
};
thread_local HeldBack held[kCategories + 1];

void flush(int account) {
  HeldBack& h = held[account];
  accounts[account].add(h.delta, h.high);
  h = {};
}
void flush_accounts() {
  for (int i = 0; i <= kCategories; ++i) flush(i);
}
inline void change(int account, std::int64_t bytes) {
  HeldBack& h = held[account];
  h.delta += bytes;
  if (h.delta > h.high) h.high = h.delta;
  if (h.delta > kHeldBack || h.delta < -kHeldBack) flush(account);
}

thread_local Category category_now = Category::workspace;

// Size classes: four steps to each power of two, from 64 bytes. A class index and its size follow from each other.
constexpr int kClasses = 4 * 40;
int class_of(std::size_t bytes) {
  if (bytes <= 64) return 0;
  const std::size_t b = bytes - 1;
  const int log = 63 - __builtin_clzll(b);
  return (log - 6) * 4 + static_cast<int>((b >> (log - 2)) & 3) + 1;
}
std::size_t class_bytes(int c) {
  if (c == 0) return 64;
  const int log = (c - 1) / 4 + 6;
  const std::size_t raw = (std::size_t{1} << log) + (static_cast<std::size_t>((c - 1) % 4 + 1) << (log - 2));
  return (raw + 63) & ~std::size_t{63};
}

struct FreeBlock {
  FreeBlock* next;
};

constexpr int kSmallClasses = 40;                           // up to 64 KiB: cached per thread
constexpr std::size_t kThreadBytes = std::size_t{4} << 20;  // a thread keeps at most this much
constexpr int kObjectClasses = 12;                          // objects of up to 12 * 64 bytes

struct GlobalCache {
  std::mutex mutex;
  std::vector<void*> blocks[kClasses];
};
GlobalCache& global_cache() {
  static auto* cache = new GlobalCache;  // never destroyed: tensors may outlive static objects
  return *cache;
}

struct ThreadCache {
  FreeBlock* blocks[kSmallClasses] = {};
  FreeBlock* objects[kObjectClasses] = {};
  std::size_t bytes = 0;
  void flush() {
    for (auto* list : {blocks, objects}) {
      const int n = list == blocks ? kSmallClasses : kObjectClasses;
      for (int i = 0; i < n; ++i) {
        while (FreeBlock* b = list[i]) {
          list[i] = b->next;
          std::free(b);
        }
      }
    }
    bytes = 0;
  }
};
// A plain pointer needs no guard on the hot path; the owner object frees it when the thread ends.
thread_local ThreadCache* thread_cache = nullptr;
thread_local bool thread_ended = false;
struct ThreadCacheOwner {
  ThreadCache cache;
  ~ThreadCacheOwner() {
    thread_cache = nullptr;
    thread_ended = true;
    cache.flush();
    flush_accounts();
  }
};
ThreadCache* make_thread_cache() {
  if (thread_ended) return nullptr;
  thread_local ThreadCacheOwner owner;  // without a cache too: the thread's accounts are handed over when it ends
  return kCache ? thread_cache = &owner.cache : nullptr;
}
inline ThreadCache* cache_of_thread() { return thread_cache ? thread_cache : make_thread_cache(); }

void* system_allocate(std::size_t bytes) { return std::aligned_alloc(64, (bytes + 63) & ~std::size_t{63}); }

std::int64_t memory_limit() {
  std::int64_t l = limit.load(std::memory_order_relaxed);
  if (l == 0) {
    l = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
    limit.store(l);
  }
  return l;
}

std::string human(std::int64_t bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto v = static_cast<double>(bytes);
  int u = 0;
  while (v >= 1024 && u < 6) v /= 1024, ++u;
  char text[48];
  std::snprintf(text, sizeof text, u == 0 ? "%.0f %s" : "%.2f %s", v, kUnits[u]);
  return text;
}

[[noreturn]] void fail_allocation(std::size_t bytes) {
  fail("out of memory: asked for " + human(static_cast<std::int64_t>(bytes)) + " (" + std::to_string(bytes) +
       " bytes); in use " + human(accounts[kTotal].current.load()) + " of " + human(memory_limit()) + " allowed\n" +
       memory_summary());
}

}  // namespace

const char* name(Category category) {
  static const char* const kNames[kCategories] = {"parameters", "masters",     "casts",    "gradients",
                                                  "optimizer",  "activations", "workspace"};
  return kNames[static_cast<int>(category)];
}

MemoryStats memory_stats(Device device) {
  MemoryStats s;
  if (!device.is_cpu()) return s;
  flush_accounts();
  for (int i = 0; i < kCategories; ++i)
    s.by_category[static_cast<std::size_t>(i)] = {accounts[i].current.load(), accounts[i].peak.load()};
  s.total = {accounts[kTotal].current.load(), accounts[kTotal].peak.load()};
  return s;
}

void reset_peak_memory(Device device) {
  if (!device.is_cpu()) return;
  flush_accounts();
  for (Account& a : accounts) a.reset();
}

std::string memory_summary(Device device) {
  const MemoryStats s = memory_stats(device);
  std::string text = "memory on " + to_string(device) + "        current         peak\n";
  char line[96];
  for (int i = 0; i <= kCategories; ++i) {
    const auto& e = i < kCategories ? s.by_category[static_cast<std::size_t>(i)] : s.total;
    std::snprintf(line, sizeof line, "  %-12s %14s %12s\n", i < kCategories ? name(static_cast<Category>(i)) : "total",
                  human(e.current).c_str(), human(e.peak).c_str());
    text += line;
  }
  return text;
}

CategoryScope::CategoryScope(Category category) : saved_(category_now) { category_now = category; }
CategoryScope::~CategoryScope() { category_now = saved_; }
Category current_category() { return category_now; }

void set_memory_limit(std::int64_t bytes) { limit.store(bytes); }

void empty_cache() {
  if (ThreadCache* cache = cache_of_thread()) cache->flush();
  GlobalCache& global = global_cache();
  const std::lock_guard lock(global.mutex);
  for (auto& list : global.blocks) {
    for (void* b : list) std::free(b);
    list.clear();
  }
}

namespace memory {

void* allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const int c = class_of(bytes);
  if (c < kSmallClasses) {
    if (ThreadCache* cache = cache_of_thread()) {
      if (FreeBlock* b = cache->blocks[c]) {
        cache->blocks[c] = b->next;
        cache->bytes -= class_bytes(c);
        return b;
      }
    }
  }
  if (static_cast<std::int64_t>(bytes) < 0 ||
      static_cast<std::int64_t>(bytes) > memory_limit() - accounts[kTotal].current.load(std::memory_order_relaxed))
    fail_allocation(bytes);
  if (c >= kSmallClasses && kCache) {
    GlobalCache& global = global_cache();
    const std::lock_guard lock(global.mutex);
    if (auto& list = global.blocks[c]; !list.empty()) {
      void* b = list.back();
      list.pop_back();
      return b;
    }
  }
  void* block = system_allocate(kCache ? class_bytes(c) : bytes);
  if (!block && kCache) {
    empty_cache();
    block = system_allocate(class_bytes(c));
  }
  if (!block) fail_allocation(bytes);
  return block;
}

void free(void* block, std::size_t bytes) noexcept {
  if (!block) return;
  const int c = class_of(bytes);
  if (c < kSmallClasses) {
    ThreadCache* cache = cache_of_thread();
    if (cache && cache->bytes < kThreadBytes) {
      auto* b = static_cast<FreeBlock*>(block);
      b->next = cache->blocks[c];
      cache->blocks[c] = b;
      cache->bytes += class_bytes(c);
      return;
    }
  } else if (kCache) {
    GlobalCache& global = global_cache();
    const std::lock_guard lock(global.mutex);
    global.blocks[c].push_back(block);
    return;
  }
  std::free(block);
}

void count(Category category, std::int64_t bytes) noexcept {
  change(static_cast<int>(category), bytes);
  change(kTotal, bytes);
  if (thread_ended) flush_accounts();
}

void move(Category from, Category to, std::int64_t bytes) noexcept {
  change(static_cast<int>(from), -bytes);
  change(static_cast<int>(to), bytes);
  if (thread_ended) flush_accounts();
}

void* allocate_object(std::size_t bytes) {
  const std::size_t c = (bytes + 63) / 64 - 1;
  ThreadCache* cache = c < kObjectClasses ? cache_of_thread() : nullptr;
  if (cache) {
    if (FreeBlock* b = cache->objects[c]) {
      cache->objects[c] = b->next;
      return b;
    }
  }
  void* p = system_allocate(bytes);
  if (!p) throw std::bad_alloc();
  return p;
}

void free_object(void* object, std::size_t bytes) noexcept {
  const std::size_t c = (bytes + 63) / 64 - 1;
  ThreadCache* cache = c < kObjectClasses ? cache_of_thread() : nullptr;
  if (!cache) {
    std::free(object);
    return;
  }
  auto* b = static_cast<FreeBlock*>(object);
  b->next = cache->objects[c];
  cache->objects[c] = b;
}

}  // namespace memory

Scratch::Scratch(std::size_t bytes) : data_(memory::allocate(bytes)), bytes_(bytes) {
  memory::count(Category::workspace, static_cast<std::int64_t>(bytes));
}
Scratch::~Scratch() {
  memory::count(Category::workspace, -static_cast<std::int64_t>(bytes_));
  memory::free(data_, bytes_);
}

}  // namespace gradual
