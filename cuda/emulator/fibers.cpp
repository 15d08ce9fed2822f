// Blocks of threads as fibers.
#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <vector>

#include "../../core/support/error.h"
#include "cuda_runtime.h"
#include "fiber.h"
#include "stream.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace gradual::cuda::emulator {
namespace {

constexpr unsigned kWarp = 32;

enum class At { running, block_barrier, warp_barrier, end };

struct Thread : Fiber {
  At at = At::end;
};

// The running block. A process runs one block at a time (streams.cpp).
struct Run {
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<std::uint64_t> values;  // that lanes exchange, one per thread
  ucontext_t scheduler;
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  std::size_t scheduler_stack_bytes = 0;
  void* scheduler_thread = nullptr;
  // ThreadSanitizer orders accesses by these addresses
  char begins = 0;
  char ends = 0;
  char barriers[2] = {};
  unsigned barrier = 0;  // the next of the two: a thread may be one barrier ahead
  const std::function<void()>* f = nullptr;
  unsigned current = 0;
  bool together = false;
  // Every second launch runs the last block and thread first. Kernels that depend on an order that a GPU does not keep
  // (a missing barrier, a block that reads what another writes) then give other numbers.
  bool backwards = true;
  std::exception_ptr error;
  unsigned turn(unsigned i, unsigned of) const { return backwards ? of - 1 - i : i; }
};
// One per launching thread or stream (a stream is a thread to ThreadSanitizer): threads of one stream are not ordered
// with those of another.
std::map<void*, Run>& runs() {
  static auto& all = *new std::map<void*, Run>;  // never destroyed, as the device's own stream
  return all;
}
Run* running = nullptr;
Run& run() { return *running; }

void enter() {
  Run& r = run();
  arrive_on_stack(nullptr, &r.scheduler_stack, &r.scheduler_stack_bytes);
  Thread& mine = *r.threads[r.current];
  acquire(&r.begins);
  try {
    (*r.f)();
  } catch (...) { r.error = std::current_exception(); }
  mine.at = At::end;
  leave_stack(nullptr, r.scheduler_stack, r.scheduler_stack_bytes);
  become(r.scheduler_thread);
  setcontext(&r.scheduler);
}

void stop_at(At barrier) {
  Run& r = run();
  if (!r.together) throw_error("emulated CUDA: a barrier in a kernel whose threads do not work together");
  Thread& mine = *r.threads[r.current];
  mine.at = barrier;
  char* const meeting = &r.barriers[r.barrier];
  if (barrier == At::block_barrier) release(meeting);
  leave_stack(&mine.fake_stack, r.scheduler_stack, r.scheduler_stack_bytes);
  become(r.scheduler_thread);
  swapcontext(&mine.context, &r.scheduler);
  arrive_on_stack(mine.fake_stack, &r.scheduler_stack, &r.scheduler_stack_bytes);
  if (barrier == At::block_barrier) acquire(meeting);
}

void resume(unsigned t) {
  Run& r = run();
  Thread& thread = *r.threads[t];
  r.current = t;
  threadIdx = {t, 0, 0};
  thread.at = At::running;
  leave_stack(&r.scheduler_fake_stack, thread.stack, Fiber::kStack);
  become(thread.thread);
  swapcontext(&r.scheduler, &thread.context);
  arrive_on_stack(r.scheduler_fake_stack, nullptr, nullptr);
}

// True if every thread of [begin, end) that has not ended waits at `barrier`, and at least one does.
bool all_at(unsigned begin, unsigned end, At barrier) {
  bool any = false;
  for (unsigned t = begin; t < end; ++t) {
    const At at = run().threads[t]->at;
    if (at != barrier && at != At::end) return false;
    any = any || at == barrier;
  }
  return any;
}
void go_on(unsigned begin, unsigned end) {
  for (unsigned t = begin; t < end; ++t)
    if (run().threads[t]->at != At::end) run().threads[t]->at = At::running;
}

// Runs from barrier to barrier until all threads have ended.
void run_block(unsigned threads) {
  Run& r = run();
  while (r.threads.size() < threads) r.threads.push_back(std::make_unique<Thread>());
  for (unsigned t = 0; t < threads; ++t) {
    r.threads[t]->begin(enter);
    r.threads[t]->at = At::running;
  }
  for (unsigned left = threads; left > 0;) {
    bool moved = false;
    for (unsigned i = 0; i < threads; ++i) {
      const unsigned t = r.turn(i, threads);
      if (r.threads[t]->at != At::running) continue;
      moved = true;
      resume(t);
      if (r.error) std::rethrow_exception(std::exchange(r.error, nullptr));
      if (r.threads[t]->at == At::end) --left;
    }
    for (unsigned w = 0; w < threads; w += kWarp) {
      const unsigned end = w + kWarp < threads ? w + kWarp : threads;
      if (!all_at(w, end, At::warp_barrier)) continue;
      for (unsigned t = w; t < end; ++t)
        if (r.threads[t]->at == At::end)
          throw_error("emulated CUDA: threads of a warp exchange a value with one that has ended");
      go_on(w, end);
      moved = true;
    }
    if (all_at(0, threads, At::block_barrier)) {
      go_on(0, threads);
      r.barrier ^= 1;
      moved = true;
    }
    if (!moved) throw_error("emulated CUDA: threads of a block wait at different barriers");
  }
}

// Orders the accesses of the threads before what follows, also if an error has left them at a barrier.
void join() {
  if (!kFindRaces) return;
  Run& r = run();
  for (const auto& thread : r.threads) {
    become(thread->thread);
    release(&r.ends);
  }
  become(r.scheduler_thread);
  acquire(&r.ends);
  release(&r.begins);
}

}  // namespace

void meet_block() { stop_at(At::block_barrier); }
std::uint64_t exchange(std::uint64_t value, int mask) {
  Run& r = run();
  const unsigned mine = r.current;
  const unsigned other = mine ^ static_cast<unsigned>(mask);
  if (other / kWarp != mine / kWarp || other >= r.values.size())
    throw_error("emulated CUDA: a thread exchanges a value with one that its warp does not have");
  r.values[mine] = value;
  stop_at(At::warp_barrier);
  value = r.values[other];
  stop_at(At::warp_barrier);
  return value;
}

void run_now(unsigned blocks, unsigned threads, bool together, const std::function<void()>& f) {
  running = &runs()[this_thread()];
  Run& r = run();
  r.f = &f;
  r.together = together;
  r.values.resize(threads);
  gridDim = {blocks, 1, 1};
  blockDim = {threads, 1, 1};
  r.backwards = !r.backwards;
  r.scheduler_thread = this_thread();
  release(&r.begins);
  struct Join {
    ~Join() { join(); }
  } at_the_end;
  for (unsigned b = 0; b < blocks; ++b) {
    blockIdx = {r.turn(b, blocks), 0, 0};
    if (together) {
      run_block(threads);
      join();  // the next block uses the same __shared__ variables
    } else if (kFindRaces) {
      run_block(threads);  // each on its own stack
      std::rotate(r.threads.begin(), r.threads.begin() + 7 % r.threads.size(),
                  r.threads.end());  // the next block has other threads
    } else {
      for (unsigned t = 0; t < threads; ++t) {
        threadIdx = {r.turn(t, threads), 0, 0};
        f();
      }
    }
  }
}

void forget_launches(void* thread) { runs().erase(thread); }

void launch(unsigned blocks, unsigned threads, bool together, void* stream, std::function<void()> f) {
  enqueue(static_cast<cudaStream_t>(stream), [=, f = std::move(f)] { run_now(blocks, threads, together, f); });
}

}  // namespace gradual::cuda::emulator
