// The runtime's functions on the CPU, except for streams (streams.cpp). Device memory is host memory.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "stream.h"

using gradual::cuda::emulator::enqueue;

namespace {
std::size_t physical_memory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
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
// Allocations have exact sizes, so that a sanitizer reports reads past their ends.
cudaError_t cudaMalloc(void** block, std::size_t bytes) {
  return bytes <= physical_memory() && posix_memalign(block, 256, bytes) == 0 ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* block) {
  gradual::cuda::emulator::wait_for_all();
  std::free(block);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** block, std::size_t bytes, unsigned) { return cudaMalloc(block, bytes); }
cudaError_t cudaFreeHost(void* block) {
  std::free(block);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* left, std::size_t* all) {
  *all = physical_memory();
  *left = *all;
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
