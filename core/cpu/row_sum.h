// The sum of one short row, with the bits of the op sum.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace gradual::cpu {

// A row is summed in lanes: element i belongs to lane i % sum_lanes(n). Each lane adds its elements in order, at most
// kLaneRows at a time, and the lanes are combined pairwise.
inline constexpr std::int64_t kMostLanes = 256;
inline constexpr std::int64_t kLaneRows = 32;
inline std::int64_t sum_lanes(std::int64_t n) {
  const auto quarter = static_cast<std::uint64_t>(std::max<std::int64_t>(n, 4)) / 4;
  return std::min(kMostLanes, static_cast<std::int64_t>(std::bit_floor(quarter)));
}

// The elements of a row that sum_of_row() takes, at most.
inline constexpr std::int64_t kShortRow = kMostLanes * kLaneRows;

// For vectorized().
template <class T> T sum_of_row(const T* x, std::int64_t n) {
  const std::int64_t lanes = sum_lanes(n);
  T sums[kMostLanes];
  for (std::int64_t i = 0; i < lanes; ++i) sums[i] = i < n ? x[i] + T{0} : T{0};
  std::int64_t at = lanes;
  for (; at + lanes <= n; at += lanes)
    for (std::int64_t i = 0; i < lanes; ++i) sums[i] += x[at + i];
  for (std::int64_t i = 0; at + i < n; ++i) sums[i] += x[at + i];
  for (std::int64_t width = lanes / 2; width > 0; width /= 2)
    for (std::int64_t i = 0; i < width; ++i) sums[i] += sums[i + width];
  return sums[0];
}

}  // namespace gradual::cpu
