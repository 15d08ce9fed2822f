// Cooperative functions of a block. Every thread of the block must reach each of these calls. The order of sums depends
// on the number of threads alone: the same bits every time.
#pragma once

#include <type_traits>

#include "../runtime/launch.h"

namespace gradual::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// The value of the lane whose number differs by the bit `step`. A struct applies f to its members by each(f).
template <class T> __device__ T of_partner(T value, int step) {
  if constexpr (std::is_arithmetic_v<T>) return __shfl_xor_sync(kAllLanes, value, step);
  else return value.each([=](auto member) { return of_partner(member, step); });
}

// value combined over the 32 threads of a warp; all threads get the result. combine must be commutative.
template <class T, class Combine> __device__ T reduce_warp(T value, Combine combine) {
  for (int step = static_cast<int>(kWarp) / 2; step > 0; step /= 2) value = combine(value, of_partner(value, step));
  return value;
}

// value combined over the block; all threads get the result.
template <class T, class Combine> __device__ T reduce_block(const Block& block, T value, T identity, Combine combine) {
  __shared__ T partial[kWarp];
  const int lane = block.thread % static_cast<int>(kWarp);
  const int warp = block.thread / static_cast<int>(kWarp);
  const int warps = block.threads / static_cast<int>(kWarp);
  value = reduce_warp(value, combine);
  if (warps == 1) return value;
  __syncthreads();  // the previous call's partial results have been read
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  return reduce_warp(lane < warps ? partial[lane] : identity, combine);
}

struct Plus {
  template <class T> __device__ T operator()(T a, T b) const { return a + b; }
};
template <class T> __device__ T sum_block(const Block& block, T value) {
  return reduce_block(block, value, T{0}, Plus{});
}

}  // namespace gradual::cuda
