#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>

#include "../support/thread_pool.h"
#include "../support/throwf.h"

#ifndef __has_feature  // g++
#define __has_feature(x) 0
#endif

namespace gradual {
namespace {

#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
constexpr bool kCache = false;  // so that the sanitizer sees every use after free
#else
constexpr bool kCache = true;
#endif

struct Account {
  std::atomic<std::int64_t> current{0};
  std::atomic<std::int64_t> peak{0};
  // Adds a thread's changes; `high` is their largest sum in between.
  void add(std::int64_t bytes, std::int64_t high) {
    const std::int64_t before = current.fetch_add(bytes, std::memory_order_relaxed);
    std::int64_t seen = peak.load(std::memory_order_relaxed);
    while (before + high > seen && !peak.compare_exchange_weak(seen, before + high, std::memory_order_relaxed)) {}
  }
};
constexpr int kTotal = kCategories;
using Accounts = Account[kCategories + 1];  // the last one is the total
Accounts accounts;                          // those of the CPU
Accounts gpu_accounts[device::kMost];  // updated directly: an allocation there costs more than a locked instruction
Accounts& accounts_of(Device device) { return device.is_cpu() ? accounts : gpu_accounts[device.index]; }
std::atomic<std::int64_t> limit{0};  // 0: the machine's memory

// Each thread batches small changes before it updates the accounts: a locked instruction costs as much as a small op.
// All figures of one thread, including peaks, are exact. Workers of parallel loops hold back nothing once a loop has
// ended. Each further thread that the user starts may hold back up to kHeldBack bytes.
constexpr std::int64_t kHeldBack = 64 << 10;
struct HeldBack {
  std::int64_t delta = 0;
  std::int64_t high = 0;  // the largest delta since the last flush
};

struct Cache;
// All data of a thread in one struct: one address to compute, without a call even in position-independent code.
struct Mine {
  HeldBack held[kCategories + 1];
  Cache* cache = nullptr;  // a plain pointer needs no guard on the hot path
  bool ended = false;
};
[[gnu::tls_model("initial-exec")]] constinit thread_local Mine mine;

[[gnu::noinline]] void flush_accounts() {
  for (int i = 0; i <= kCategories; ++i) {
    HeldBack& h = mine.held[i];
    if (h.delta == 0 && h.high == 0) continue;
    accounts[i].add(h.delta, h.high);
    h = {};
  }
}
[[maybe_unused]] const bool workers_flush = [] {
  set_leave_loop(flush_accounts);
  return true;
}();
// True if the account must be flushed.
inline bool change(HeldBack& h, std::int64_t bytes) {
  h.delta += bytes;
  if (h.delta > h.high) h.high = h.delta;
  return h.delta > kHeldBack || h.delta < -kHeldBack;
}

constexpr int kClasses = 4 * 40;
// The bytes of a block of a size class.
std::size_t class_bytes(int c) {
  if (c == 0) return 64;
  const int log = (c - 1) / 4 + 6;
  const std::size_t raw = (std::size_t{1} << log) + (static_cast<std::size_t>((c - 1) % 4 + 1) << (log - 2));
  return (raw + 63) & ~std::size_t{63};
}

constexpr int kSmallClasses = 40;  // up to 56 KiB: cached per thread, at most 1 MiB of each class
constexpr std::int64_t kThreadBlocks = kCache ? 1 << 14 : 0;

// Each large block begins some cache lines later in its page than the previous one. Otherwise arrays that an op reads
// in parallel would map to the same cache sets and memory banks. The word before the block holds the address that the
// system returned.
constexpr std::size_t kStagger = 4096 + 256;
constexpr std::size_t kStaggers = 16;
bool is_staggered(int c) { return kCache && c >= kSmallClasses; }

// Blocks of 2 MiB and more ask Linux for huge pages: fewer TLB misses, fewer faults.
void* from_system(std::size_t size, int c) {
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  static std::atomic<std::size_t> blocks{0};
  const bool huge = size >= kHugePage;
  const bool staggered = is_staggered(c);
  const std::size_t alignment = huge ? kHugePage : staggered ? kPage : 64;
  const std::size_t shift = staggered ? 64 + blocks.fetch_add(1, std::memory_order_relaxed) % kStaggers * kStagger : 0;
  size += shift;
  void* base = nullptr;
  if (posix_memalign(&base, alignment, size) != 0) return nullptr;
#ifdef MADV_HUGEPAGE
  if (huge) madvise(base, size / kHugePage * kHugePage, MADV_HUGEPAGE);  // a hint that may be refused
#endif
  char* const block = static_cast<char*>(base) + shift;
  if (staggered) std::memcpy(block - sizeof base, &base, sizeof base);
  return block;
}

void to_system(void* block, int c) noexcept {
  void* base = block;
  if (is_staggered(c)) std::memcpy(&base, static_cast<char*>(block) - sizeof base, sizeof base);
  std::free(base);
}

// Free blocks by size class: each holds the address of the next.
struct Cache {
  struct Block {
    Block* next;
  };
  Block* first[kClasses] = {};
  std::int64_t room[kClasses] = {};  // number of further blocks that a thread's cache takes

  void* take(int c) {
    Block* block = first[c];
    if (block) {
      first[c] = block->next;
      ++room[c];
    }
    return block;
  }
  void give(int c, void* block) {
    first[c] = new (block) Block{first[c]};
    --room[c];
  }
  void clear() {
    for (int c = 0; c < kClasses; ++c)
      while (void* block = take(c)) to_system(block, c);
  }
};

struct SharedCache : Cache {
  std::mutex mutex;
};
SharedCache& shared_cache() {
  static auto* cache = new SharedCache;  // never destroyed: tensors may outlive static objects
  return *cache;
}

// Makes the cache and its owner, which returns all blocks when the thread ends.
[[gnu::noinline]] Cache* make_thread_cache() {
  struct Owner {
    Cache cache;
    Owner() {
      for (int c = 0; c < kSmallClasses; ++c) cache.room[c] = kThreadBlocks >> (c / 4);
    }
    ~Owner() {
      mine.cache = nullptr;
      mine.ended = true;
      cache.clear();
      flush_accounts();
    }
  };
  if (mine.ended) return nullptr;
  thread_local Owner owner;
  return mine.cache = &owner.cache;
}
inline Cache* cache_of_thread() { return mine.cache ? mine.cache : make_thread_cache(); }

std::int64_t memory_limit() {
  static const std::int64_t physical = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  const std::int64_t set = limit.load(std::memory_order_relaxed);
  return set ? set : physical;
}

std::string human(auto bytes) {
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024; value /= 1024) ++unit;
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 2, kUnits[unit]);
}

[[noreturn]] void fail_allocation(std::size_t bytes) {
  throwf("out of memory: asked for {} ({} bytes); in use {} of {} allowed\n{}", human(bytes), bytes,
         human(accounts[kTotal].current.load()), human(memory_limit()), memory_summary());
}

}  // namespace

const char* to_string(Category category) {
  constexpr const char* kNames[kCategories] = {"parameters", "masters",     "casts",    "gradients",
                                               "optimizer",  "activations", "workspace"};
  return kNames[static_cast<int>(category)];
}

MemoryStats memory_stats(Device device) {
  MemoryStats s;
  flush_accounts();
  for (int i = 0; i <= kCategories; ++i) {
    auto& entry = i == kTotal ? s.total : s.by_category[static_cast<std::size_t>(i)];
    const Account& account = accounts_of(device)[i];
    entry = {account.current.load(), account.peak.load()};
  }
  return s;
}

void reset_peak_memory(Device device) {
  flush_accounts();
  for (Account& a : accounts_of(device)) a.peak.store(a.current.load());
}

std::string memory_summary(Device device) {
  const MemoryStats s = memory_stats(device);
  std::string text = "memory on " + to_string(device) + "        current         peak\n";
  for (int i = 0; i <= kCategories; ++i) {
    const auto category = static_cast<Category>(i);
    const auto& [current, peak] = i == kTotal ? s.total : s[category];
    text += fmt::format("  {:<12} {:>14} {:>12}\n", i == kTotal ? "total" : to_string(category), human(current),
                        human(peak));
  }
  return text;
}

void set_memory_limit(std::int64_t bytes) { limit.store(bytes); }

void empty_cache() {
  if (Cache* cache = cache_of_thread()) cache->clear();
  SharedCache& shared = shared_cache();
  const std::lock_guard lock(shared.mutex);
  shared.clear();
}

namespace memory {

// Allocates a block that the thread's cache does not have.
[[gnu::noinline]] static void* allocate_afresh(std::size_t bytes, int c) {
  const std::int64_t room = memory_limit() - accounts[kTotal].current.load(std::memory_order_relaxed);
  if (room < 0 || bytes > static_cast<std::size_t>(room) || c >= kClasses) fail_allocation(bytes);
  if (c >= kSmallClasses) {
    SharedCache& shared = shared_cache();
    const std::lock_guard lock(shared.mutex);
    if (void* block = shared.take(c)) return block;
  }
  // Without caches a block has its own size, so that the sanitizer sees what reads past it.
  const std::size_t size = kCache ? class_bytes(c) : (bytes + 63) & ~std::size_t{63};
  void* block = from_system(size, c);
  if (!block) {
    empty_cache();
    block = from_system(size, c);
  }
  if (!block) fail_allocation(bytes);
  return block;
}

// Frees a block that the thread's cache has no room for.
[[gnu::noinline]] static void free_for_all(void* block, int c) noexcept {
  if (c < kSmallClasses || !kCache) return to_system(block, c);
  SharedCache& shared = shared_cache();
  const std::lock_guard lock(shared.mutex);
  shared.give(c, block);
}

void* allocate_class(int c, std::size_t bytes) {
  if (Cache* cache = c < kSmallClasses ? mine.cache : nullptr)
    if (void* block = cache->take(c)) return block;
  return allocate_afresh(bytes, c);
}

void free_class(int c, void* block) noexcept {
  if (Cache* cache = cache_of_thread())
    if (cache->room[c] > 0) return cache->give(c, block);
  free_for_all(block, c);
}

// Changes two accounts.
static inline void change_both(int a, std::int64_t to_a, int b, std::int64_t to_b, Device device) noexcept {
  if (device.is_cuda()) {
    gpu_accounts[device.index][a].add(to_a, to_a);
    gpu_accounts[device.index][b].add(to_b, to_b);
    return;
  }
  Mine& m = mine;
  const bool full = change(m.held[a], to_a) | change(m.held[b], to_b);
  if (full || m.ended) flush_accounts();
}

void count(Category category, std::int64_t bytes, Device device) noexcept {
  change_both(static_cast<int>(category), bytes, kTotal, bytes, device);
}

void move(Category from, Category to, std::int64_t bytes, Device device) noexcept {
  change_both(static_cast<int>(from), -bytes, static_cast<int>(to), bytes, device);
}

}  // namespace memory

}  // namespace gradual
