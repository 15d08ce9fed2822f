// Streams, events, graphs, and memory that is allocated and freed in the order of a stream.
//
// Work is done when it is enqueued. To ThreadSanitizer each stream is a thread, ordered with the host and with other
// streams only where one waits for the other, as in CUDA. It reports code that reads a result before it synchronises
// with the stream, writes to a buffer of an unfinished copy, or uses two streams without an event between them.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "fiber.h"
#include "stream.h"

using gradual::cuda::emulator::acquire;
using gradual::cuda::emulator::become;
using gradual::cuda::emulator::enqueue;
using gradual::cuda::emulator::Fiber;
using gradual::cuda::emulator::kFindRaces;
using gradual::cuda::emulator::release;
using gradual::cuda::emulator::this_thread;

using Work = std::vector<std::function<void()>>;
struct CUstream_st {
  bool captured = false;
  Work work;  // recorded during a capture
  // ThreadSanitizer orders accesses by these addresses
  char launched = 0;
  char done = 0;
  std::unique_ptr<Fiber> fiber = kFindRaces ? std::make_unique<Fiber>() : nullptr;
};
struct CUevent_st {
  std::chrono::steady_clock::time_point when;
  std::unique_ptr<char> recorded = std::make_unique<char>();  // new at each record, which discards the earlier order
};
struct CUgraph_st {
  Work work;
};
struct CUgraphExec_st {
  struct Steps {
    Work work;
    char ran = 0;  // launches of one graph are ordered, on any streams
  };
  std::shared_ptr<Steps> steps;
};

namespace {

// ThreadSanitizer does not see this mutex: taking turns orders no accesses.
class Lock {
 public:
  void lock() {
    while (held_.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
  }
  void unlock() { held_.clear(std::memory_order_release); }

 private:
  std::atomic_flag held_;
};

// One piece of work at a time in a process.
struct Now {
  Lock mutex;
  std::list<cudaStream_t> streams;  // all existing ones
  int captures = 0;
  // The work of a stream's fiber.
  cudaStream_t stream = nullptr;
  std::function<void()> work;
  ucontext_t host;
  void* host_thread = nullptr;
  std::exception_ptr error;
};
Now& now() {
  static Now& one = *[] {
    // libstdc++ counts the owners of a shared_ptr without atomics until a process has started a second thread. To
    // ThreadSanitizer that is a race.
    if (kFindRaces) std::thread([] {}).join();
    return new Now;  // never destroyed, as the device's own stream
  }();
  return one;
}

void work_in_fiber() {
  Now& n = now();
  acquire(&n.stream->launched);
  try {
    std::exchange(n.work, nullptr)();
  } catch (...) { n.error = std::current_exception(); }
  release(&n.stream->done);
  become(n.host_thread);
  setcontext(&n.host);
}

void do_now(cudaStream_t stream, std::function<void()> work) {
  Now& n = now();
  const std::lock_guard lock(n.mutex);
  if (!kFindRaces || !stream) return work();
  n.stream = stream;
  n.work = std::move(work);
  n.host_thread = this_thread();
  stream->fiber->begin(work_in_fiber);
  release(&stream->launched);
  become(stream->fiber->thread);
  swapcontext(&n.host, &stream->fiber->context);
  if (!n.error) return;
  acquire(&stream->done);
  std::rethrow_exception(std::exchange(n.error, nullptr));
}

// Calls a function in the order of the stream, after the work enqueued so far.
template <class F> auto as_stream(cudaStream_t stream, F f) {
  if (!kFindRaces || !stream) return f();
  const std::lock_guard lock(now().mutex);
  void* const host = this_thread();
  release(&stream->launched);
  become(stream->fiber->thread);
  acquire(&stream->launched);
  struct Back {
    cudaStream_t stream;
    void* host;
    ~Back() {
      release(&stream->done);
      become(host);
    }
  } back{stream, host};
  return f();
}

// Work that waits for the end of a stream is not part of a graph.
cudaError_t unless_captured(cudaStream_t stream) {
  return stream && stream->captured ? cudaErrorInvalidValue : cudaSuccess;
}

}  // namespace

namespace gradual::cuda::emulator {

int captures() {
  const std::lock_guard lock(now().mutex);
  return now().captures;
}
void enqueue(cudaStream_t stream, std::function<void()> work) {
  if (stream && stream->captured) stream->work.push_back(std::move(work));
  else do_now(stream, std::move(work));
}
void wait_for_all() {
  const std::lock_guard lock(now().mutex);
  for (CUstream_st* const stream : now().streams) acquire(&stream->done);
}

}  // namespace gradual::cuda::emulator

// No thread may wait for a device while one of its streams is captured.
cudaError_t cudaDeviceSynchronize() {
  if (gradual::cuda::emulator::captures() > 0) return cudaErrorInvalidValue;
  gradual::cuda::emulator::wait_for_all();
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  const std::lock_guard lock(now().mutex);
  now().streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {  // does not wait
  if (kFindRaces) as_stream(stream, [=] { gradual::cuda::emulator::forget_launches(stream->fiber->thread); });
  const std::lock_guard lock(now().mutex);
  now().streams.remove(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream) acquire(&stream->done);
  return unless_captured(stream);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (stream && stream->captured) return cudaErrorInvalidValue;  // edges of a graph are not emulated
  return as_stream(stream, [=] {
    acquire(event->recorded.get());
    return cudaSuccess;
  });
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (stream && stream->captured) return cudaErrorInvalidValue;
  event->when = std::chrono::steady_clock::now();
  event->recorded = std::make_unique<char>();
  return as_stream(stream, [=] {
    release(event->recorded.get());
    return cudaSuccess;
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  acquire(event->recorded.get());
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  *ms = std::chrono::duration<float, std::milli>(end->when - start->when).count();
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** block, std::size_t bytes, cudaStream_t stream) {
  return as_stream(stream, [=] { return cudaMalloc(block, bytes); });
}
cudaError_t cudaFreeAsync(void* block, cudaStream_t stream) {
  return as_stream(stream, [=] {
    std::free(block);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream->captured) return cudaErrorInvalidValue;
  const std::lock_guard lock(now().mutex);
  stream->captured = true;
  ++now().captures;
  stream->work.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (!stream->captured) return cudaErrorInvalidValue;
  const std::lock_guard lock(now().mutex);
  stream->captured = false;
  --now().captures;
  *graph = new CUgraph_st{std::exchange(stream->work, {})};
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream && stream->captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* run, cudaGraph_t graph, unsigned long long) {
  *run = new CUgraphExec_st{std::make_shared<CUgraphExec_st::Steps>(graph->work)};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t run, cudaStream_t stream) {
  enqueue(stream, [steps = run->steps] {
    acquire(&steps->ran);
    for (const auto& work : steps->work) work();
    release(&steps->ran);
  });
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t run) {
  delete run;
  return cudaSuccess;
}
