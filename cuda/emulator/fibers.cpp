// Blocks of threads as fibers.
#include <sys/mman.h>
#include <ucontext.h>

#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "../../core/error.h"
#include "cuda_runtime.h"
#include "stream.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/common_interface_defs.h>
namespace {}
#else
namespace {

void __sanitizer_start_switch_fiber(void**, const void*, std::size_t) {}
void __sanitizer_finish_switch_fiber(void*, const void**, std::size_t*) {}
}  // namespace
#endif

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace gradual::cuda::emulator {
namespace {

constexpr std::size_t kStack = 256 << 10;
constexpr unsigned kWarp = 32;

enum class At { running, block_barrier, warp_barrier, end };

struct Fiber {
  ucontext_t context;
  void* stack = nullptr;
  void* fake_stack = nullptr;  // AddressSanitizer's
  At at = At::end;
  Fiber() {
    stack = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) fail("emulated CUDA: no memory for the stack of a thread");
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber() { munmap(stack, kStack); }
};

// The block that runs. One at a time in a process: __shared__ variables are static ones.
struct Run {
  std::mutex mutex;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<std::uint64_t> slots;
  ucontext_t scheduler;
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  std::size_t scheduler_stack_bytes = 0;
  const std::function<void()>* f = nullptr;
  unsigned current = 0;
  bool together = false;
  // Of every second launch: its last block and thread come first. What depends on an order that a GPU does not keep, as where a
  // barrier is missing or one block reads what another writes, then gives other numbers.
  bool backwards = true;
  std::exception_ptr error;
  unsigned turn(unsigned i, unsigned of) const { return backwards ? of - 1 - i : i; }
};
Run& run() {
  static Run one;
  return one;
}

void enter() {
  Run& r = run();
  __sanitizer_finish_switch_fiber(nullptr, &r.scheduler_stack, &r.scheduler_stack_bytes);
  Fiber& mine = *r.fibers[r.current];
  try {
    (*r.f)();
  } catch (...) { r.error = std::current_exception(); }
  mine.at = At::end;
  __sanitizer_start_switch_fiber(nullptr, r.scheduler_stack, r.scheduler_stack_bytes);
  setcontext(&r.scheduler);
}

void stop_at(At barrier) {
  Run& r = run();
  if (!r.together) fail("emulated CUDA: a barrier in a kernel whose threads do not work together");
  Fiber& mine = *r.fibers[r.current];
  mine.at = barrier;
  __sanitizer_start_switch_fiber(&mine.fake_stack, r.scheduler_stack, r.scheduler_stack_bytes);
  swapcontext(&mine.context, &r.scheduler);
  __sanitizer_finish_switch_fiber(mine.fake_stack, &r.scheduler_stack, &r.scheduler_stack_bytes);
}

void resume(unsigned t) {
  Run& r = run();
  Fiber& fiber = *r.fibers[t];
  r.current = t;
  threadIdx = {t, 0, 0};
  fiber.at = At::running;
  __sanitizer_start_switch_fiber(&r.scheduler_fake_stack, fiber.stack, kStack);
  swapcontext(&r.scheduler, &fiber.context);
  __sanitizer_finish_switch_fiber(r.scheduler_fake_stack, nullptr, nullptr);
}

// Whether all of threads [begin, end) that have not ended wait at `barrier`, and at least one does.
bool all_at(unsigned begin, unsigned end, At barrier) {
  bool any = false;
  for (unsigned t = begin; t < end; ++t) {
    const At at = run().fibers[t]->at;
    if (at != barrier && at != At::end) return false;
    any = any || at == barrier;
  }
  return any;
}
void release(unsigned begin, unsigned end) {
  for (unsigned t = begin; t < end; ++t)
    if (run().fibers[t]->at != At::end) run().fibers[t]->at = At::running;
}

// From barrier to barrier until all threads have ended.
void run_block(unsigned threads) {
  Run& r = run();
  while (r.fibers.size() < threads) r.fibers.push_back(std::make_unique<Fiber>());
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& fiber = *r.fibers[t];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = kStack;
    makecontext(&fiber.context, enter, 0);
    fiber.at = At::running;
  }
  for (unsigned left = threads; left > 0;) {
    bool moved = false;
    for (unsigned i = 0; i < threads; ++i) {
      const unsigned t = r.turn(i, threads);
      if (r.fibers[t]->at != At::running) continue;
      moved = true;
      resume(t);
      if (r.error) std::rethrow_exception(std::exchange(r.error, nullptr));
      if (r.fibers[t]->at == At::end) --left;
    }
    for (unsigned w = 0; w < threads; w += kWarp) {
      const unsigned end = w + kWarp < threads ? w + kWarp : threads;
      if (!all_at(w, end, At::warp_barrier)) continue;
      for (unsigned t = w; t < end; ++t)
        if (r.fibers[t]->at == At::end)
          fail("emulated CUDA: threads of a warp exchange a value with one that has ended");
      release(w, end);
      moved = true;
    }
    if (all_at(0, threads, At::block_barrier)) {
      release(0, threads);
      moved = true;
    }
    if (!moved) fail("emulated CUDA: threads of a block wait at different barriers");
  }
}

}  // namespace

void meet_block() { stop_at(At::block_barrier); }
void meet_warp() { stop_at(At::warp_barrier); }
int lane() { return static_cast<int>(run().current % kWarp); }
void* slot(int lane) {
  Run& r = run();
  return &r.slots[r.current / kWarp * kWarp + static_cast<unsigned>(lane)];
}

void run_now(unsigned blocks, unsigned threads, bool together, const std::function<void()>& f) {
  Run& r = run();
  const std::lock_guard lock(r.mutex);
  r.f = &f;
  r.together = together;
  r.slots.resize((threads + kWarp - 1) / kWarp * kWarp);
  gridDim = {blocks, 1, 1};
  blockDim = {threads, 1, 1};
  r.backwards = !r.backwards;
  for (unsigned b = 0; b < blocks; ++b) {
    blockIdx = {r.turn(b, blocks), 0, 0};
    if (together) {
      run_block(threads);
      continue;
    }
    for (unsigned t = 0; t < threads; ++t) {
      threadIdx = {r.turn(t, threads), 0, 0};
      f();
    }
  }
}

void launch(unsigned blocks, unsigned threads, bool together, void* stream, std::function<void()> f) {
  enqueue(static_cast<cudaStream_t>(stream), [=, f = std::move(f)] { run_now(blocks, threads, together, f); });
}

}  // namespace gradual::cuda::emulator
