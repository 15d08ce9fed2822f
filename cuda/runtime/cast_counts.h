// Counting what narrowing stores do (core/formats/cast_counts.h), on the device.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <exception>
#include <limits>
#include <optional>

#include "../../core/formats/convert.h"
#include "../../core/formats/dtype.h"
#include "../../core/support/host_device.h"
#include "memory.h"

namespace gradual::cuda {

// What a kernel needs to count the stores of one operand. The counts are those of CastCounts, in its order; null: none are
// wanted. Integer additions, so the same numbers every time.
struct Counter {
  unsigned long long* counts = nullptr;
  double min_normal = 0;  // of the dtype that is stored; 0 for integers
  double beyond = 0;      // integers: the first value too large,
  double least = 0;       // and the smallest one

  // x as it was computed, y as it is stored.
  __device__ void add(double x, double y) const {
    if (!counts) return;
    atomicAdd(counts + kElements, 1ull);
    const int what = category(x, y);
    if (what != kElements) atomicAdd(counts + what, 1ull);
  }
  GRADUAL_HD Counter of_tensor(int k) const {  // where CountingStores counts tensor by tensor
    Counter c = *this;
    if (counts) c.counts += k * (kInf + 1);
    return c;
  }
  enum { kElements, kZeros, kUnderflow, kSubnormal, kOverflow, kNan, kInf };
  GRADUAL_HD int category(double x, double y) const {
    constexpr double kInfinite = std::numeric_limits<double>::infinity();
    const double size = x < 0 ? -x : x, stored = y < 0 ? -y : y;
    if (x == 0) return kZeros;
    if (x != x) return kNan;
    if (size == kInfinite) return kInf;
    if (beyond != 0) {  // an integer
      const double whole = std::trunc(x);
      if (whole >= beyond || whole < least) return kOverflow;
      return whole == 0 ? kUnderflow : kElements;
    }
    if (y == 0) return kUnderflow;
    if (!(stored < kInfinite)) return kOverflow;
    return stored < min_normal ? kSubnormal : kElements;
  }
};

// A Counter for stores of type `from` into `to` while it lives; then its counts are added to those of the thread's
// CountScope, for which it waits for the device.
class CountingStores : Pinned {
 public:
  // tensors > 0: of a call that serves so many, counted one by one.
  CountingStores(DType from, DType to, int tensors = 0);
  ~CountingStores() noexcept(false);
  const Counter& counter() const { return counter_; }  // of the first tensor
  explicit operator bool() const { return counter_.counts != nullptr; }

 private:
  CastCounts* into_ = nullptr;
  int tensors_ = 0;
  int thrown_ = std::uncaught_exceptions();
  std::optional<Workspace> memory_;
  Counter counter_;
};

}  // namespace gradual::cuda
