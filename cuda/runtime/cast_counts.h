// Counts narrowing stores (core/formats/cast_counts.h) on the device.
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

// The data of a kernel that counts the stores of one operand. The counts are those of CastCounts, in its order; null:
// no counting. Additions are integer, so the result does not depend on their order.
struct Counter {
  unsigned long long* counts = nullptr;
  double min_normal = 0;  // of the dtype that is stored; 0 for integers
  double beyond = 0;      // integers: the first value that is too large
  double least = 0;       // integers: the smallest value

  // x: the computed value; y: the stored value.
  __device__ void add(double x, double y) const {
    if (!counts) return;
    atomicAdd(counts + kElements, 1ull);
    const int what = category(x, y);
    if (what != kElements) atomicAdd(counts + what, 1ull);
  }
  GRADUAL_HD Counter of_tensor(int k) const {  // if CountingStores counts per tensor
    Counter c = *this;
    if (counts) c.counts += k * (kInf + 1);
    return c;
  }
  enum { kElements, kZeros, kUnderflow, kSubnormal, kOverflow, kNan, kInf };
  GRADUAL_HD int category(double x, double y) const {
    constexpr double kInfinite = std::numeric_limits<double>::infinity();
    const double size = x < 0 ? -x : x;
    const double stored = y < 0 ? -y : y;
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

// A Counter for stores of type `from` into `to`. The destructor waits for the device and adds the counts to the
// thread's CountScope.
class CountingStores : Pinned {
 public:
  // tensors > 0: the call updates this many tensors, each counted separately.
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
