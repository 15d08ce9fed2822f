// Kernel launches, in two forms: for_each calls a function object once per index, for_blocks once per block of threads,
// which may cooperate (block.h). Function objects are small structs whose call operator is GRADUAL_HD or __device__.
// They are passed by value.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "profiling.h"
#include "runtime.h"

namespace gradual::cuda {

// Threads per block: few enough for any number of registers per thread.
#ifdef GRADUAL_EMULATED_THREADS
inline constexpr unsigned kThreads = GRADUAL_EMULATED_THREADS;
#else
inline constexpr unsigned kThreads = 256;
#endif
inline constexpr unsigned kWarp = 32;
inline constexpr std::int64_t kMostBlocks = 4096;  // of for_each: fills any GPU; blocks take several indices

struct Grid {
  unsigned blocks, threads;
};
// For n independent indices, at least 1.
constexpr Grid grid_for(std::int64_t n) {
  const std::int64_t blocks = (n - 1) / kThreads + 1;
  return {static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads};
}

// A block of threads as a kernel sees it.
struct Block {
  std::int64_t index;
  int thread, threads;
};

#if defined(__CUDACC__) || defined(GRADUAL_CUDA_EMULATED)  // host sources see only the rest
#ifdef GRADUAL_CUDA_EMULATED
template <class F> void start(Grid grid, bool together, const F& f) {
  if (notes) note(*notes, typeid(F));
  emulator::launch(grid.blocks, grid.threads, together, current_stream(), f);
}
#else
// __grid_constant__: otherwise an indexed argument is copied to every thread.
template <class F> __global__ void __launch_bounds__(kThreads) kernel(const __grid_constant__ F f) { f(); }
template <class F> void start(Grid grid, bool, const F& f) {
  if (notes) note(*notes, typeid(F));
  kernel<<<grid.blocks, grid.threads, 0, current_stream()>>>(f);
  check(cudaGetLastError(), "kernel launch");
}
#endif

template <class F> struct EachIndex {
  std::int64_t n;
  F f;
  __device__ void operator()() const {
    const auto step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
    for (auto i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) f(i);
  }
};
// f(i) for 0 <= i < n, in any order.
template <class F> void for_each(std::int64_t n, const F& f) {
  if (n > 0) start(grid_for(n), false, EachIndex<F>{n, f});
}

template <class F> struct EachBlock {
  std::int64_t n;
  F f;
  __device__ void operator()() const {
    for (std::int64_t i = blockIdx.x; i < n; i += gridDim.x) {
      f(Block{i, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)});
      __syncthreads();  // shared memory may be written anew
    }
  }
};
// f(block) for 0 <= block.index < n; kThreads threads execute it together.
template <class F> void for_blocks(std::int64_t n, const F& f) {
  constexpr std::int64_t kMost = 65535;
  if (n > 0) start({static_cast<unsigned>(n < kMost ? n : kMost), kThreads}, true, EachBlock<F>{n, f});
}
#endif

}  // namespace gradual::cuda
