// layer_norm and rms_norm, row by row, in f32 (f64 for f64). batch_norm is in batch_norm.cpp.
#include "norm.h"

#include <cmath>

#include "../dispatch.h"
#include "kernels.h"
#include "rows.h"
#include "softmax.h"

namespace gradual::cpu {
namespace {

template <class T> T mean_of(const T* x, std::int64_t n) {
  return blocked_sum<T>(n, [&](std::int64_t i) { return x[i]; }) / static_cast<T>(n);
}

// y = (x - mean) * invstd * weight + bias, the variance about the mean in a second pass; for rms_norm the mean is 0
// (Ba et al. 2016; Zhang and Sennrich 2019).
template <class T, bool kCenter> void normalize_rows(const OpCall& call, Outputs& out) {
  const auto& a = call.get<NormAttrs>();
  const Rows rows = rows_of_last(call[0].sizes(), a.dims);
  const RowReader<T> read(call[0], rows);
  const RowWriter<T> write(out[0], rows);
  const Parameter<T> weight(call[1]);
  const Parameter<T> bias(kCenter ? call[2] : Tensor());
  T* means = kCenter ? out[1].data<T>() : nullptr;
  T* scales = out[kCenter ? 2 : 1].data<T>();
  for_rows<T>(rows, 2, out[0].dtype(), [&](std::int64_t row, T* buffer, CastCounts* counts) {
    const std::int64_t n = rows.length;
    const T* x = read(row, buffer);
    T* y = write.target(row, buffer + n);
    const T mean = kCenter ? mean_of(x, n) : T{0};
    const T square = blocked_sum<T>(n, [&](std::int64_t i) { return (x[i] - mean) * (x[i] - mean); });
    const T scale = 1 / std::sqrt(square / static_cast<T>(n) + static_cast<T>(a.eps));
    for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale;
    if (weight)
      for (std::int64_t i = 0; i < n; ++i) y[i] *= weight[i];
    if (bias)
      for (std::int64_t i = 0; i < n; ++i) y[i] += bias[i];
    if (kCenter) means[row] = mean;
    scales[row] = scale;
    write.store(row, y, counts);
  });
}

// With g = dy * weight and xhat the normalised row: dx = scale * (g - mean(g) - xhat * mean(g * xhat)), dw = sum of
// dy * xhat, db = sum of dy. Rows are cut by shape alone and their sums added up in order.
template <class T, bool kCenter> void normalize_rows_backward(const OpCall& call, Outputs& out) {
  const auto& a = call.get<NormAttrs>();
  const Rows rows = rows_of_last(call[1].sizes(), a.dims);
  const std::int64_t n = rows.length;
  const RowReader<T> read_dy(call[0], rows);
  const RowReader<T> read_x(call[1], rows);
  const RowWriter<T> write(out[0], rows);
  const Parameter<T> weight(call[2]);
  const Parameter<T> means(kCenter ? call[3] : Tensor());
  const Parameter<T> scales(call[kCenter ? 4 : 3]);
  const std::int64_t grain = std::max({std::int64_t{1}, kGrain / std::max<std::int64_t>(1, n), (rows.count + 63) / 64});
  const std::int64_t parts = (rows.count + grain - 1) / grain;
  const Scratch sums(static_cast<std::size_t>(std::max<std::int64_t>(1, parts) * 2 * n) * sizeof(T) + 1);
  std::fill(sums.as<T>(), sums.as<T>() + 2 * n, T{0});
  CastCounts* const total = counts_for(dtype_of<T>, out[0].dtype());
  parallel_for(rows.count, grain, [&](std::int64_t begin, std::int64_t end) {
    const Scratch scratch(static_cast<std::size_t>(5 * n) * sizeof(T) + 1);
    T* buffer = scratch.as<T>();
    T* g = buffer + 3 * n;
    T* xhat = buffer + 4 * n;
    T* dw = sums.as<T>() + begin / grain * 2 * n;
    T* db = dw + n;
    std::fill(dw, db + n, T{0});
    CastCounts mine;
    for (std::int64_t row = begin; row < end; ++row) {
      const T* dy = read_dy(row, buffer);
      const T* x = read_x(row, buffer + n);
      T* dx = write.target(row, buffer + 2 * n);
      const T mean = kCenter ? means[row] : T{0};
      const T scale = scales[row];
      for (std::int64_t i = 0; i < n; ++i) {
        xhat[i] = (x[i] - mean) * scale;
        g[i] = weight ? dy[i] * weight[i] : dy[i];
        dw[i] += dy[i] * xhat[i];
        db[i] += dy[i];
      }
      const T along = blocked_sum<T>(n, [&](std::int64_t i) { return g[i] * xhat[i]; }) / static_cast<T>(n);
      const T shift = kCenter ? mean_of(g, n) : T{0};
      for (std::int64_t i = 0; i < n; ++i) dx[i] = scale * (g[i] - shift - xhat[i] * along);
      write.store(row, dx, total ? &mine : nullptr);
    }
    if (total) merge_counts(total, mine);
  });
  T* dw = sums.as<T>();
  for (std::int64_t part = 1; part < parts; ++part)
    for (std::int64_t i = 0; i < 2 * n; ++i) dw[i] += dw[part * 2 * n + i];
  store_parameter(out[1], dw);
  if (kCenter) store_parameter(out[2], dw + n);
}

template <bool kCenter> void normalize(const OpCall& call, Outputs& out) {
  visit_floating(out[0].dtype(), [&](auto zero) { normalize_rows<decltype(zero), kCenter>(call, out); });
}
template <bool kCenter> void normalize_backward(const OpCall& call, Outputs& out) {
  visit_floating(out[0].dtype(), [&](auto zero) { normalize_rows_backward<decltype(zero), kCenter>(call, out); });
}

}  // namespace

void register_normalization() {
  KernelFn* cpu = columns().cpu;
  cpu[static_cast<int>(OpId::batch_norm)] = batch_norm;
  cpu[static_cast<int>(OpId::batch_norm_backward)] = batch_norm_backward;
  cpu[static_cast<int>(OpId::layer_norm)] = normalize<true>;
  cpu[static_cast<int>(OpId::layer_norm_backward)] = normalize_backward<true>;
  cpu[static_cast<int>(OpId::rms_norm)] = normalize<false>;
  cpu[static_cast<int>(OpId::rms_norm_backward)] = normalize_backward<false>;
  cpu[static_cast<int>(OpId::softmax)] = softmax;
  cpu[static_cast<int>(OpId::softmax_backward)] = softmax_backward;
  cpu[static_cast<int>(OpId::log_softmax)] = log_softmax;
  cpu[static_cast<int>(OpId::log_softmax_backward)] = log_softmax_backward;
}

}  // namespace gradual::cpu
