// The runtime's functions on the CPU: device memory is the host's, a stream is a list of work that is done at once.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "stream.h"

using Work = std::vector<std::function<void()>>;
struct CUstream_st {
  bool captured = false;
  Work work;
};
struct CUevent_st {
  std::chrono::steady_clock::time_point when;
};
struct CUgraph_st {
  Work work;
};
struct CUgraphExec_st {
  Work work;
};

namespace gradual::cuda::emulator {
namespace {
std::atomic<int> captures_now{0};
}  // namespace

int captures() { return captures_now; }
void enqueue(cudaStream_t stream, std::function<void()> work) {
  if (stream && stream->captured) stream->work.push_back(std::move(work));
  else work();
}

}  // namespace gradual::cuda::emulator

using gradual::cuda::emulator::enqueue;

namespace {
std::size_t physical_memory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
}
// Work that waits for the stream's end is no part of a graph.
cudaError_t unless_captured(cudaStream_t stream) {
  return stream && stream->captured ? cudaErrorInvalidValue : cudaSuccess;
}
}  // namespace

const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaErrorMemoryAllocation ? "out of memory"
         : status == cudaSuccess             ? "no error"
                                             : "invalid argument";
}
const char* cudaGetErrorName(cudaError_t status) {
  return status == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
         : status == cudaSuccess             ? "cudaSuccess"
                                             : "cudaErrorInvalidValue";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidValue; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {};
  std::snprintf(p->name, sizeof p->name, "emulated on the CPU");
  p->major = 9;
  p->multiProcessorCount = 1;
  p->totalGlobalMem = physical_memory();
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 0;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }
// A device whose stream is captured is not waited for, by any thread.
cudaError_t cudaDeviceSynchronize() {
  return gradual::cuda::emulator::captures() > 0 ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return unless_captured(stream); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->when = std::chrono::steady_clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  *ms = std::chrono::duration<float, std::milli>(end->when - start->when).count();
  return cudaSuccess;
}

// Blocks have their own size, so that a sanitizer sees what reads past them.
cudaError_t cudaMalloc(void** block, std::size_t bytes) {
  return bytes <= physical_memory() && posix_memalign(block, 256, bytes) == 0 ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* block) {
  std::free(block);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** block, std::size_t bytes, cudaStream_t) { return cudaMalloc(block, bytes); }
cudaError_t cudaFreeAsync(void* block, cudaStream_t) { return cudaFree(block); }
cudaError_t cudaHostAlloc(void** block, std::size_t bytes, unsigned) { return cudaMalloc(block, bytes); }
cudaError_t cudaFreeHost(void* block) { return cudaFree(block); }
cudaError_t cudaMemGetInfo(std::size_t* left, std::size_t* all) {
  *left = *all = physical_memory();
  return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = nullptr;
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) { return cudaSuccess; }
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}
cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t bytes, cudaStream_t stream) {
  enqueue(stream, [=] { std::memset(to, byte, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream->captured) return cudaErrorInvalidValue;
  stream->captured = true;
  ++gradual::cuda::emulator::captures_now;
  stream->work.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (!stream->captured) return cudaErrorInvalidValue;
  stream->captured = false;
  --gradual::cuda::emulator::captures_now;
  *graph = new CUgraph_st{std::exchange(stream->work, {})};
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream && stream->captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* run, cudaGraph_t graph, unsigned long long) {
  *run = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t run, cudaStream_t) {
  for (const auto& work : run->work) work();
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
