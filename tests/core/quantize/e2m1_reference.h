// References for scales of blocks of e2m1: rounding by comparing all values, and the largest magnitude.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>

namespace test {

// To nearest in e2m1, ties to the even code.
inline double e2m1(double x) {
  const double all[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  std::size_t best = 0;
  for (std::size_t i = 1; i < std::size(all); ++i) {
    const double now = std::abs(all[i] - std::abs(x));
    const double before = std::abs(all[best] - std::abs(x));
    if (now < before || (now == before && i % 2 == 0)) best = i;
  }
  return std::copysign(all[best], x);
}

inline float amax_of(const float* x, std::size_t n) {
  float most = 0;
  for (std::size_t i = 0; i < n; ++i) most = std::max(most, std::abs(x[i]));
  return most;
}

}  // namespace test
