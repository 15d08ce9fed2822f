// layer_norm and rms_norm over rows, in f32 (f64 for f64). A second pass computes the variance about the mean. A row
// whose variance leaves the range of f32 is computed again on scaled numbers.
#include <algorithm>
#include <cmath>
#include <vector>

#include "../kernels/norm_element.h"
#include "../ops/dispatch.h"
#include "kernels.h"
#include "rows.h"

namespace gradual::cpu {
namespace {

// Statistics of the numbers x(0) .. x(n-1); without `center` the mean is 0.
template <class T> struct Moments {
  T mean, variance;
};
template <class T, class F> Moments<T> moments(std::int64_t n, bool center, const F& x) {
  const T mean = center ? blocked_sum<T>(n, x) / static_cast<T>(n) : T{0};
  const T square = blocked_sum<T>(n, [&](std::int64_t i) { return (x(i) - mean) * (x(i) - mean); });
  return {mean, square / static_cast<T>(n)};
}

// y = (x - mean) * scale * weight + bias with scale = 1 / sqrt(variance + eps); for rms_norm the mean is 0
// (Ba et al. 2016; Zhang and Sennrich 2019).
template <class T> void normalize_rows(const OpCall& call, Outputs& out) {
  const auto& a = call.get<NormAttrs>();
  const bool center = call.op == OpId::layer_norm;
  const Rows rows(call[0].sizes(), a.dims);
  const std::int64_t n = rows.length;
  const Parameter<T> weight(call[1]);
  const Parameter<T> bias(center ? call[2] : Tensor());
  const auto eps = static_cast<T>(a.eps);
  T* means = center ? out[1].data<T>() : nullptr;
  T* scales = out[center ? 2 : 1].data<T>();
  map_rows<T>(rows.count, n, call[0], {}, out[0], [&](std::int64_t row, const T* x, const T*, T* y) {
    const auto normalize = [&](const auto& value, T mean, T scale) {
      const T* const w = weight.data();
      const T* const b = bias.data();
      for (std::int64_t i = 0; i < n; ++i) {
        const T normal = (value(i) - mean) * scale;
        const T scaled = w ? normal * w[i] : normal;
        y[i] = b ? scaled + b[i] : scaled;
      }
      scales[row] = scale;
    };
    const auto plain = [=](std::int64_t i) { return x[i]; };
    Moments<T> m = moments<T>(n, center, plain);
    const T by = NormScale<T>::of_variance(m.variance + eps, m.mean);
    if (by == 1) {
      normalize(plain, m.mean, 1 / std::sqrt(m.variance + eps));
    } else {
      const auto moved = [=](std::int64_t i) { return x[i] * by; };
      m = moments<T>(n, center, moved);
      normalize(moved, m.mean, NormScale<T>::invstd(m.variance, eps, by));
      scales[row] *= by;
      m.mean /= by;
    }
    if (center) means[row] = m.mean;
  });
}

// With g = dy * weight and xhat the normalised row: dx = scale * (g - mean(g) - xhat * mean(g * xhat)), dw = sum of
// dy * xhat, db = sum of dy. kFar: some row's numbers are so large that the difference of two may be Inf.
template <class T, bool kFar>
void normalize_rows_backward(const OpCall& call, const Parameter<T>& scales, Outputs& out) {
  const bool center = call.op == OpId::layer_norm_backward;
  const Rows rows(call[1].sizes(), call.get<NormAttrs>().dims);
  const std::int64_t n = rows.length;
  const Parameter<T> weight(call[2]);
  const Parameter<T> means(center ? call[3] : Tensor());
  const auto xhat = [&](std::int64_t row, const T* x) {
    return [x, mean = means ? means[row] : T{0}, scale = scales[row]](std::int64_t i) {
      return kFar ? NormScale<T>::normal(x[i], mean, scale, scale) : (x[i] - mean) * scale;
    };
  };
  std::vector<T> gradients(static_cast<std::size_t>(2 * n));  // dw, then db
  map_and_sum_rows<T>(rows.count, n, call[0], call[1], out[0], 2 * n, gradients.data(),
                      [&](std::int64_t row, const T* dy, const T* x, T* dx, T* dw) {
                        const auto h = xhat(row, x);
                        const auto g = [&](std::int64_t i) { return weight ? dy[i] * weight[i] : dy[i]; };
                        const T along =
                            blocked_sum<T>(n, [&](std::int64_t i) { return g(i) * h(i); }) / static_cast<T>(n);
                        const T shift = center ? blocked_sum<T>(n, g) / static_cast<T>(n) : T{0};
                        for (std::int64_t i = 0; i < n; ++i) dx[i] = scales[row] * (g(i) - shift - h(i) * along);
                        for (std::int64_t i = 0; i < n; ++i) dw[i] += dy[i] * h(i);
                        for (std::int64_t i = 0; i < n; ++i) dw[n + i] += dy[i];
                      });
  store_parameter(out[1], gradients.data());
  if (center) store_parameter(out[2], gradients.data() + n);
}

template <class T> void normalize_rows_backward(const OpCall& call, Outputs& out) {
  const Tensor& invstd = call[call.op == OpId::layer_norm_backward ? 4 : 3];
  const Parameter<T> scales(invstd);
  const auto far = [](T scale) { return NormScale<T>::of_invstd(scale) != 1; };
  if (std::any_of(scales.data(), scales.data() + invstd.numel(), far))
    normalize_rows_backward<T, true>(call, scales, out);
  else normalize_rows_backward<T, false>(call, scales, out);
}

}  // namespace

void register_normalization() {
  const auto forward = floating([]<class T>(const OpCall& call, Outputs& out) { normalize_rows<T>(call, out); });
  const auto backward =
      floating([]<class T>(const OpCall& call, Outputs& out) { normalize_rows_backward<T>(call, out); });
  set_kernel(OpId::layer_norm, forward);
  set_kernel(OpId::rms_norm, forward);
  set_kernel(OpId::layer_norm_backward, backward);
  set_kernel(OpId::rms_norm_backward, backward);
}

}  // namespace gradual::cpu
