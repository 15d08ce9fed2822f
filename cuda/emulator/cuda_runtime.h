// CUDA on the CPU: the part of the runtime's interface that cuda/ uses, so that its sources, including kernels, run
// without a GPU, in a debugger and under sanitizers (GRADUAL_CUDA=EMULATED). The threads of a block are fibers that run
// one after the other from barrier to barrier; blocks run one after the other. Every second launch runs them in reverse
// order. It is for tests, and slow.
//
// A barrier that some threads of a block or warp reach and others do not is an Error here; on a GPU it hangs.
#pragma once

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>

#define GRADUAL_CUDA_EMULATED
// The language's keywords.
#define __global__
#define __device__
#define __host__
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define __shared__ static thread_local  // two threads may launch the same kernel on different streams
#else
#define __shared__ static
#endif

struct dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};
// The indices of the running thread.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

// --- barriers and exchange -------------------------------------------------------------------------------------------

namespace gradual::cuda::emulator {

// Runs f() for every thread of every block on this thread, or records it if the stream is captured. together: threads
// of a block may use barriers.
void launch(unsigned blocks, unsigned threads, bool together, void* stream, std::function<void()> f);

void meet_block();
std::uint64_t exchange(std::uint64_t value, int mask);  // with the lane whose index differs by mask

}  // namespace gradual::cuda::emulator

inline void __syncthreads() { gradual::cuda::emulator::meet_block(); }
template <class T> T __shfl_xor_sync(unsigned, T value, int mask) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = gradual::cuda::emulator::exchange(bits, mask);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// Atomic only for ThreadSanitizer: one thread runs at a time.
template <class T> T atomicAdd(T* p, std::type_identity_t<T> value) {
  return std::atomic_ref(*p).fetch_add(value, std::memory_order_relaxed);
}
template <class T> T atomicMax(T* p, std::type_identity_t<T> value) {
  const std::atomic_ref there(*p);
  T old = there.load(std::memory_order_relaxed);
  while (old < value && !there.compare_exchange_weak(old, value, std::memory_order_relaxed)) {}
  return old;
}
template <class T> T atomicOr(T* p, std::type_identity_t<T> value) {
  return std::atomic_ref(*p).fetch_or(value, std::memory_order_relaxed);
}
inline void __threadfence_system() {}

// --- the runtime -----------------------------------------------------------------------------------------------------

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100
};
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaMemPoolAttr { cudaMemPoolAttrReleaseThreshold = 4 };
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaHostAllocDefault = 0;

struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUmemPoolHandle_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
using cudaGraph_t = CUgraph_st*;
using cudaGraphExec_t = CUgraphExec_st*;
using cudaMemPool_t = CUmemPoolHandle_st*;
struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount;
  std::size_t totalGlobalMem;
};

const char* cudaGetErrorString(cudaError_t status);
const char* cudaGetErrorName(cudaError_t status);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaDeviceSynchronize();

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end);

cudaError_t cudaMalloc(void** block, std::size_t bytes);
cudaError_t cudaFree(void* block);
cudaError_t cudaMallocAsync(void** block, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void* block, cudaStream_t stream);
cudaError_t cudaHostAlloc(void** block, std::size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* block);
cudaError_t cudaMemGetInfo(std::size_t* left, std::size_t* all);
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value);
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t bytes);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                                cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t bytes, cudaStream_t stream);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* run, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t run, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t run);
