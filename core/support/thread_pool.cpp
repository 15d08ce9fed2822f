#include "thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "scoped.h"

namespace gradual {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr microseconds kIdleSpin{200};         // an idle worker spins this long, then sleeps
constexpr microseconds kWaitSpin{50};          // the caller spins this long for the last chunks, then sleeps
constexpr microseconds kLate{1000};            // a wait this much longer than two chunks means that a worker is late
constexpr microseconds kFirstRest{8'000};      // then the caller runs loops alone for this long; doubled each time
constexpr microseconds kLongestRest{256'000};  // that workers are late again soon after, up to this

thread_local constinit bool in_loop = false;
constinit std::atomic<void (*)()> leave_loop{nullptr};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins until done() holds, at most for `time`. Returns done().
template <class Done> bool spin(microseconds time, const Done& done) {
  const Clock::time_point end = Clock::now() + time;
  do {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      pause();
    }
  } while (Clock::now() < end);
  return false;
}

struct Pool : Pinned {
  // Returns false and does nothing if the caller must run the loop alone.
  bool run(std::int64_t chunks, int threads, const std::function<void(std::int64_t)>& chunk) {
    const std::unique_lock lock(caller_, std::try_to_lock);
    const Clock::time_point begin = lock ? Clock::now() : Clock::time_point();
    if (!lock || begin < rest_until_) return false;
    start_workers(threads - 1);
    chunk_ = &chunk;
    chunks_ = chunks;
    // A thread takes several chunks at a time: neighbours share cache lines, and the counter moves between cores.
    some_ = chunks / (std::int64_t{16} * threads) + 1;
    next_.store(0, std::memory_order_relaxed);
    const std::int64_t useful = std::min<std::int64_t>({threads - 1, workers_, (chunks + some_ - 1) / some_ - 1});
    state_.store(static_cast<std::uint32_t>(useful) * kSeat);
    if (useful == workers_) state_.notify_all();
    else
      for (std::int64_t i = 0; i < useful; ++i) state_.notify_one();
    wait_for_workers(begin, take_chunks());
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    return true;
  }

  // Bits of state_: the number of workers that may still join, whether the caller waits, the number of active workers.
  static constexpr std::uint32_t kSeat = 1 << 16;
  static constexpr std::uint32_t kWaited = 1 << 15;
  static constexpr std::uint32_t kWorking = kWaited - 1;

  std::mutex caller_;  // held by the caller during its loop
  Clock::time_point rest_until_{};
  microseconds rest_{0};
  int workers_ = 0;
  bool can_start_ = true;

  const std::function<void(std::int64_t)>* chunk_ = nullptr;
  std::int64_t chunks_ = 0;
  std::int64_t some_ = 1;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  alignas(64) std::atomic<std::int64_t> next_{0};
  alignas(64) std::atomic<std::uint32_t> state_{0};
  alignas(64) std::atomic<std::uint32_t> ended_{0};  // counts loops whose caller waited

  void start_workers(int wanted) {
    try {
      for (; can_start_ && workers_ < wanted; ++workers_) std::thread([this] { work(); }).detach();
    } catch (const std::system_error&) {
      can_start_ = false;  // the system allows no more threads
    }
  }

  [[noreturn]] void work() {
    in_loop = true;
    for (;;) {
      std::uint32_t state = 0;
      const auto has_seat = [&] { return (state = state_.load(std::memory_order_relaxed)) >= kSeat; };
      if (!spin(kIdleSpin, has_seat)) state_.wait(state, std::memory_order_relaxed);
      if (state < kSeat || !state_.compare_exchange_strong(state, state - kSeat + 1)) continue;
      take_chunks();
      if (auto* const leave = leave_loop.load(std::memory_order_relaxed)) leave();
      if (state_.fetch_sub(1) != kWaited + 1) continue;
      ended_.fetch_add(1);
      ended_.notify_one();
    }
  }

  // Takes and runs chunks; returns how many times it took some.
  std::int64_t take_chunks() {
    for (std::int64_t times = 0;; ++times) {
      const std::int64_t first = next_.fetch_add(some_, std::memory_order_relaxed);
      if (first >= chunks_) return times;
      for (std::int64_t c = first; c < std::min(first + some_, chunks_); ++c) {
        try {
          (*chunk_)(c);
        } catch (...) {
          const std::lock_guard lock(error_mutex_);
          if (!error_) error_ = std::current_exception();
        }
      }
    }
  }

  void wait_for_workers(Clock::time_point begin, std::int64_t taken) {
    const std::uint32_t before = ended_.load();
    std::uint32_t state = state_.load();
    std::uint32_t closed = 0;
    do closed = state & kWorking ? (state & kWorking) | kWaited : 0;
    while (!state_.compare_exchange_weak(state, closed));
    if (!closed) return;
    const Clock::time_point done = Clock::now();
    if (!spin(kWaitSpin, [&] { return ended_.load() != before; })) ended_.wait(before);
    const Clock::time_point end = Clock::now();
    const Clock::duration each = (done - begin) / std::max<std::int64_t>(1, taken);
    if (end - done < 2 * each + kLate) return;
    rest_ = end - rest_until_ < rest_ ? std::min(2 * rest_, kLongestRest) : kFirstRest;
    rest_until_ = end + rest_;
  }
};

// Never destroyed: its workers use it until the process ends.
Pool& pool() {
  static Pool& pool = *new Pool;
  return pool;
}

}  // namespace

void set_leave_loop(void (*leave)()) noexcept { leave_loop.store(leave, std::memory_order_relaxed); }

bool in_parallel_loop() { return in_loop; }

void run_chunks(std::int64_t chunks, int threads, const std::function<void(std::int64_t)>& chunk) {
  const Scoped<bool> scope(in_loop, true);
  if (threads > 1 && pool().run(chunks, threads, chunk)) return;
  for (std::int64_t c = 0; c < chunks; ++c) chunk(c);
}

}  // namespace gradual
