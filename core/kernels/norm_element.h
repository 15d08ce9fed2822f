// Formulas of the norms; all backends share them.
#pragma once

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
