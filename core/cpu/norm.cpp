// layer_norm and rms_norm over rows, batch_norm over channels, in f32 (f64 for f64). The variance is taken about the
// mean in a second pass.
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "../dispatch.h"
#include "../norm_element.h"
#include "kernels.h"
#include "rows.h"

namespace gradual::cpu {
namespace {

// A weight, bias or statistic as T; false where it is absent.
template <class T> struct Parameter : Loaded<T> {
  explicit Parameter(const Tensor& t) : Loaded<T>(t, Loaded<T>::As::rows) {}
  explicit operator bool() const { return this->data() != nullptr; }
  T operator[](std::int64_t i) const { return this->data()[i]; }
};

template <class T> void store_parameter(Tensor& out, const T* values) {
  store(out.dtype(), values, out.raw(), 1, out.numel(), counts_for(dtype_of<T>, out.dtype()));
}

// --- over rows -----------------------------------------------------------------------------------------------------

// y = (x - mean) * scale * weight + bias with scale = 1 / sqrt(variance + eps); for rms_norm the mean is 0
// (Ba et al. 2016; Zhang and Sennrich 2019).
template <class T> void normalize_rows(const OpCall& call, Outputs& out) {
  const auto& a = call.get<NormAttrs>();
  const bool center = call.op == OpId::layer_norm;
  const Rows rows(call[0].sizes(), a.dims);
  const std::int64_t n = rows.length;
  const Parameter<T> weight(call[1]);
  const Parameter<T> bias(center ? call[2] : Tensor());
  T* means = center ? out[1].data<T>() : nullptr;
  T* scales = out[center ? 2 : 1].data<T>();
  map_rows<T>(rows.count, n, call[0], {}, out[0], [&](std::int64_t row, const T* x, const T*, T* y) {
    const T mean = center ? blocked_sum<T>(n, [&](std::int64_t i) { return x[i]; }) / static_cast<T>(n) : T{0};
    const T square = blocked_sum<T>(n, [&](std::int64_t i) { return (x[i] - mean) * (x[i] - mean); });
    const T scale = 1 / std::sqrt(square / static_cast<T>(n) + static_cast<T>(a.eps));
    const T *const w = weight.data(), *const b = bias.data();
    if (w && b)
      for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale * w[i] + b[i];
    else if (w)
      for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale * w[i];
    else if (b)
      for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale + b[i];
    else
      for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale;
    if (center) means[row] = mean;
    scales[row] = scale;
  });
}

// With g = dy * weight and xhat the normalised row: dx = scale * (g - mean(g) - xhat * mean(g * xhat)), dw = sum of
// dy * xhat, db = sum of dy.
template <class T> void normalize_rows_backward(const OpCall& call, Outputs& out) {
  const bool center = call.op == OpId::layer_norm_backward;
  const Rows rows(call[1].sizes(), call.get<NormAttrs>().dims);
  const std::int64_t n = rows.length;
  const Parameter<T> weight(call[2]);
  const Parameter<T> means(center ? call[3] : Tensor());
  const Parameter<T> scales(call[center ? 4 : 3]);
  const auto xhat = [&](std::int64_t row, const T* x) {
    return [x, mean = means ? means[row] : T{0}, scale = scales[row]](std::int64_t i) { return (x[i] - mean) * scale; };
  };
  map_rows<T>(rows.count, n, call[0], call[1], out[0], [&](std::int64_t row, const T* dy, const T* x, T* dx) {
    const auto h = xhat(row, x);
    const auto g = [&](std::int64_t i) { return weight ? dy[i] * weight[i] : dy[i]; };
    const T along = blocked_sum<T>(n, [&](std::int64_t i) { return g(i) * h(i); }) / static_cast<T>(n);
    const T shift = center ? blocked_sum<T>(n, g) / static_cast<T>(n) : T{0};
    for (std::int64_t i = 0; i < n; ++i) dx[i] = scales[row] * (g(i) - shift - h(i) * along);
  });
  std::vector<T> gradients(static_cast<std::size_t>(2 * n));  // dw, then db
  sum_rows<T>(rows.count, n, call[0], call[1], 2 * n, gradients.data(),
              [&](std::int64_t row, const T* dy, const T* x, T* dw) {
                const auto h = xhat(row, x);
                for (std::int64_t i = 0; i < n; ++i) dw[i] += dy[i] * h(i);
                for (std::int64_t i = 0; i < n; ++i) dw[n + i] += dy[i];
              });
  store_parameter(out[1], gradients.data());
  if (center) store_parameter(out[2], gradients.data() + n);
}

// --- over channels (Ioffe and Szegedy 2015) --------------------------------------------------------------------------

Tensor channels_to_back(const Tensor& t) {
  Shape order{0};
  for (int d = 2; d < t.ndim(); ++d) order.push_back(d);
  order.push_back(1);
  return permute(t, order);
}

// Tensors of [N, C, ..] as [outer, channels, inner]: whole images, or pixels where the memory has the channels last. Rows
// are planes where these are large: a row that is converted should stay in the nearest cache.
struct Channels {
  bool last;
  std::int64_t outer, channels, inner = 1;
  std::int64_t rows, group;  // a row has so many channels
  explicit Channels(const Tensor& x)
      : last(!x.is_contiguous() && channels_to_back(x).is_contiguous()), channels(x.size(1)) {
    for (int d = 2; d < x.ndim() && !last; ++d) inner *= x.size(d);
    outer = x.numel() > 0 ? x.numel() / (channels * inner) : 0;
    group = inner >= kLargePlane ? 1 : channels;
    rows = group == 1 ? outer * channels : outer;
  }
  Tensor view(const Tensor& t) const { return last ? channels_to_back(t) : t; }  // row-major if t lies like x

  // y = f(a, b, channel) for all elements; b is a where it is undefined.
  template <class T, class F> void map(const Tensor& a, const Tensor& b, Tensor& y, const F& f) const {
    map_rows<T>(rows, group * inner, view(a), b.defined() ? view(b) : b, y,
                [&](std::int64_t row, const T* as, const T* bs, T* to) {
                  if (!bs) bs = as;
                  if (inner == 1) {
#pragma omp simd
                    for (std::int64_t c = 0; c < channels; ++c) to[c] = f(as[c], bs[c], c);
                    return;
                  }
                  const std::int64_t first = row * group % channels;
                  for (std::int64_t c = first; c < first + group; ++c, to += inner, as += inner, bs += inner)
#pragma omp simd
                    for (std::int64_t i = 0; i < inner; ++i) to[i] = f(as[i], bs[i], c);
                });
  }
  // sums[channel] = the sum of f(a, b, channel), and those of further functions behind.
  template <class T, class... F> void sum(const Tensor& a, const Tensor& b, T* sums, const F&... f) const {
    sum_rows<T>(rows, group * inner, view(a), b.defined() ? view(b) : b,
                channels * static_cast<std::int64_t>(sizeof...(F)), sums,
                [&](std::int64_t row, const T* as, const T* bs, T* part) {
                  if (!bs) bs = as;
                  (add(row, as, bs, std::exchange(part, part + channels), f), ...);
                });
  }

 private:
  static constexpr std::int64_t kLargePlane = 64;
  template <class T, class F> void add(std::int64_t row, const T* as, const T* bs, T* part, const F& f) const {
    if (inner == 1) {
      for (std::int64_t c = 0; c < channels; ++c) part[c] += f(as[c], bs[c], c);
      return;
    }
    const std::int64_t first = row * group % channels;
    for (std::int64_t c = first; c < first + group; ++c, as += inner, bs += inner)
      part[c] += blocked_sum<T>(inner, [&](std::int64_t i) { return f(as[i], bs[i], c); });
  }
};

// y = (x - mean) * scale + shift, for each channel.
template <class T> struct Affine {
  std::vector<T> scales, shifts;
  Affine(std::int64_t channels, const T* invstd, const Tensor& w, const Tensor& b) {
    const Parameter<T> weight(w);
    const Parameter<T> bias(b);
    for (std::int64_t c = 0; c < channels; ++c) {
      scales.push_back(weight ? invstd[c] * weight[c] : invstd[c]);
      shifts.push_back(bias ? bias[c] : T{0});
    }
  }
};

template <class T> void batch_norm_of(const OpCall& call, const Channels& l, Tensor& y, Outputs& out) {
  const auto& a = call.get<NormAttrs>();
  T* mean = out[1].data<T>();
  T* invstd = out[2].data<T>();
  const auto count = static_cast<T>(l.outer * l.inner);
  if (a.training) {
    l.sum(call[0], {}, mean, [](T x, T, std::int64_t) { return x; });
    for (std::int64_t c = 0; c < l.channels; ++c) mean[c] /= count;
    l.sum(call[0], {}, invstd, [=](T x, T, std::int64_t c) { return (x - mean[c]) * (x - mean[c]); });
    for (std::int64_t c = 0; c < l.channels; ++c) invstd[c] /= count;
  } else {
    const Parameter<T> given_mean(call[3]);
    const Parameter<T> given_var(call[4]);
    for (std::int64_t c = 0; c < l.channels; ++c) mean[c] = given_mean[c], invstd[c] = given_var[c];
  }
  for (std::int64_t c = 0; c < l.channels; ++c) invstd[c] = 1 / std::sqrt(invstd[c] + static_cast<T>(a.eps));
  const Affine<T> affine(l.channels, invstd, call[1], call[2]);
  const T* scale = affine.scales.data();
  const T* shift = affine.shifts.data();
  const T cut = a.relu ? -rounds_to_zero<T>(y.dtype()) : -std::numeric_limits<T>::infinity();
  l.map<T>(call[0], {}, y, [=](T x, T, std::int64_t c) {
    const T value = (x - mean[c]) * scale[c] + shift[c];
    return value < cut ? T{0} : value;
  });
}

// With M values a channel: dx = weight * invstd * (dy - sum(dy) / M - (x - mean) * invstd^2 * sum(dy (x - mean)) / M);
// not training, mean and invstd are constants and the first term stands alone. Under relu dy counts where y is above 0;
// y is computed again, bit for bit, and need not be kept.
template <class T, bool kRelu>
void batch_norm_backward_of(const OpCall& call, const Channels& l, Tensor& dx, Outputs& out) {
  const Parameter<T> means(call[3]);
  const T* mean = means.data();
  const Parameter<T> invstd(call[4]);
  const Affine<T> affine(l.channels, invstd.data(), call[2], call[5]);
  const T* scale = affine.scales.data();
  const T* bias = affine.shifts.data();
  const T zero = rounds_to_zero<T>(call[1].dtype());
  const auto masked = [=](T dy, T x, std::int64_t c) {
    return !kRelu || (x - mean[c]) * scale[c] + bias[c] > zero ? dy : T{0};
  };
  const auto channels = static_cast<std::size_t>(l.channels);
  std::vector<T> sums(2 * channels), shifts(channels), slopes(channels);
  T* const db = sums.data();
  T* const dw = db + channels;
  l.sum(call[0], call[1], db, masked, [=](T dy, T x, std::int64_t c) { return masked(dy, x, c) * (x - mean[c]); });
  const bool training = call.get<NormAttrs>().training;
  const auto count = static_cast<T>(l.outer * l.inner);
  for (std::size_t c = 0; c < channels; ++c) {
    const auto at = static_cast<std::int64_t>(c);
    shifts[c] = db[c] / count;
    slopes[c] = invstd[at] * invstd[at] * (dw[c] / count);
    dw[c] *= invstd[at];
  }
  const T* shift = shifts.data();
  const T* slope = slopes.data();
  if (training)
    l.map<T>(call[0], call[1], dx, [=](T dy, T x, std::int64_t c) {
      return (masked(dy, x, c) - shift[c] - (x - mean[c]) * slope[c]) * scale[c];
    });
  else
    l.map<T>(call[0], kRelu ? call[1] : Tensor(), dx,
             [=](T dy, T x, std::int64_t c) { return masked(dy, x, c) * scale[c]; });
  store_parameter(out[1], dw);
  store_parameter(out[2], db);
}

void batch_norm(const OpCall& call, Outputs& out) {
  const Channels l(call[0]);
  write_row_major(l.view(out[0]), [&](Tensor& y) {
    visit_floating(y.dtype(), [&]<class T>(T) { batch_norm_of<T>(call, l, y, out); });
  });
}
void batch_norm_backward(const OpCall& call, Outputs& out) {
  const Channels l(call[1]);
  write_row_major(l.view(out[0]), [&](Tensor& dx) {
    visit_floating(dx.dtype(), [&]<class T>(T) {
      if (call.get<NormAttrs>().relu) batch_norm_backward_of<T, true>(call, l, dx, out);
      else batch_norm_backward_of<T, false>(call, l, dx, out);
    });
  });
}
}  // namespace

void register_normalization() {
  const auto forward = floating([]<class T>(const OpCall& call, Outputs& out) { normalize_rows<T>(call, out); });
  const auto backward =
      floating([]<class T>(const OpCall& call, Outputs& out) { normalize_rows_backward<T>(call, out); });
  set_kernel(OpId::batch_norm, batch_norm);
  set_kernel(OpId::batch_norm_backward, batch_norm_backward);
  set_kernel(OpId::layer_norm, forward);
  set_kernel(OpId::rms_norm, forward);
  set_kernel(OpId::layer_norm_backward, backward);
  set_kernel(OpId::rms_norm_backward, backward);
}

}  // namespace gradual::cpu
