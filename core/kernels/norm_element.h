// Formulas of the norms; all backends share them.
#pragma once

#include <cmath>
#include <limits>

#include "../formats/cast_element.h"
#include "../formats/dtype.h"
#include "../ops/attrs.h"
#include "../support/host_device.h"

namespace gradual {

// The largest number that a store as `to` rounds to 0. A fused relu treats numbers up to it as zeros, which keep their
// sign, because relu follows the rounding. T is the compute type.
template <class T> T rounds_to_zero(DType to) {
  return to == dtype_of<T> ? T{0} : static_cast<T>(float_info(to).min_subnormal / 2);
}

// The square of a number beyond 2^64 is Inf in f32 (2^512 in f64), and those of small ones vanish. If the variance
// leaves the range of T, norms compute again with numbers that are multiplied by a power of two. T is the compute type.
template <class T> struct NormScale {
  static constexpr T kDown = static_cast<T>(sizeof(T) == sizeof(double) ? 0x1p-768 : 0x1p-96);
  static constexpr T kUp = 1 / kDown;
  static constexpr T kFarInvstd = static_cast<T>(sizeof(T) == sizeof(double) ? 0x1p-510 : 0x1p-62);
  static constexpr T kNearInvstd = static_cast<T>(sizeof(T) == sizeof(double) ? 0x1p511 : 0x1p63);
  // Larger numbers are not multiplied by kUp: a sum of 2^32 of them would be Inf. Two such numbers that differ have a
  // variance that is normal.
  static constexpr T kMostUp = std::numeric_limits<T>::max() * kDown / static_cast<T>(0x1p32);

  // 1 if the variance of the unscaled numbers, with eps, is a normal number, else the scale for a second attempt. If
  // the mean is too large for kUp, a variance of less than a normal number is 0: the numbers are equal.
  GRADUAL_HD static T of_variance(T variance, T mean) {
    const bool large = !(variance <= std::numeric_limits<T>::max());  // or NaN
    if (large) return kDown;
    const bool small = variance < std::numeric_limits<T>::min() && std::fabs(mean) < kMostUp;
    return small ? kUp : T{1};
  }
  // 1 / sqrt(variance + eps) of numbers that are multiplied by `by` and have this variance; eps is not multiplied.
  GRADUAL_HD static T invstd(T variance, T eps, T by) {
    const T all = variance + eps * by * by;
    return all == 0 ? 1 / std::sqrt(eps) / by : 1 / std::sqrt(all);
  }
  // kDown if the numbers are so large that the difference of two may be Inf, else 1. invstd: 1 / sqrt(variance + eps).
  GRADUAL_HD static T of_invstd(T invstd) { return invstd < kFarInvstd ? kDown : T{1}; }
  // (x - mean) * scale for a channel or row of this invstd; the same bits as without the detour where that is finite.
  GRADUAL_HD static T normal(T x, T mean, T scale, T invstd) {
    const bool far = invstd < kFarInvstd;
    const T by = far ? kDown : T{1};
    return (x * by - mean * by) * (far ? scale * kUp : scale);
  }
};

// True if sums of powers of `order` of numbers of this dtype may leave the range of double, in which norms compute: a
// float to the sixth is at most 2^768, and at least 2^-894.
inline bool powers_leave_double(DType dtype, double order) { return dtype == DType::f64 || order > 6; }

// batch_norm_update_'s formula: moves running statistics of `dtype` towards a batch's statistics of type S. C is the
// compute type (double for f64, else float). The caller rounds the results to `dtype`.
template <class C, class S> struct RunningStatistics {
  DType dtype;
  C keep, mean_rate, var_rate;
  S eps;

  RunningStatistics(DType to, const RunningAttrs& a)
      : dtype(to),
        keep(static_cast<C>(1 - a.momentum)),
        mean_rate(static_cast<C>(a.momentum)),
        var_rate(static_cast<C>(a.momentum * static_cast<double>(a.count) / static_cast<double>(a.count - 1))),
        eps(static_cast<S>(a.eps)) {}

  GRADUAL_HD C mean(C running, S batch) const { return rounded(running * keep) + mean_rate * rounded(batch); }
  GRADUAL_HD C var(C running, S invstd) const {
    const S batch = 1 / (invstd * invstd) - eps;  // rounding may make it negative
    return rounded(running * keep) + var_rate * rounded(batch < 0 ? S{0} : batch);
  }

 private:
  template <class From> GRADUAL_HD C rounded(From x) const {
    C y{};
    visit_dtype(dtype, [&]<class T> { y = cast_element<C>(cast_element<T>(x)); });
    return y;
  }
};

}  // namespace gradual
