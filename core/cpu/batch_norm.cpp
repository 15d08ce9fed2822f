// batch_norm over [N, C, ..] (Ioffe and Szegedy 2015), in f32 (f64 for f64), for planes (N, C, then pixels in memory)
// and for columns (channels last, and [N, C]). Other layouts pass through a copy.
#include <cmath>

#include "../ops.h"
#include "norm.h"

namespace gradual::cpu {
namespace {

// Whether the memory is dense with the channels last. Where that is one with planes, long rows decide.
bool is_columns(const Tensor& t) {
  std::int64_t step = t.size(1);
  if (t.is_contiguous() && t.ndim() > 2 && t.numel() > t.size(0) * step) return false;
  if (step != 1 && t.strides()[1] != 1) return false;
  for (int d = t.ndim() - 1; d >= 0; --d) {
    if (d == 1) continue;
    if (t.sizes()[d] != 1 && t.strides()[d] != step) return false;
    step *= t.sizes()[d];
  }
  return true;
}
Tensor to_columns(const Tensor& t) {
  Shape back{0, t.ndim() - 1};
  Shape order{0};
  for (int d = 2; d < t.ndim(); ++d) {
    order.push_back(d);
    back.push_back(d - 1);
  }
  order.push_back(1);
  return permute(clone(permute(t, order)), back);
}

struct Layout {
  bool columns;
  std::int64_t channels, per_channel;
  Rows rows;
  explicit Layout(const Tensor& x) : columns(is_columns(x)), channels(x.size(1)) {
    per_channel = channels ? x.numel() / channels : 0;
    const std::int64_t length = columns || x.numel() == 0 ? channels : per_channel / x.size(0);
    rows = {length ? x.numel() / length : 0, length, 1};
  }
  bool fits(const Tensor& t) const { return columns ? is_columns(t) : t.is_contiguous(); }
  Tensor arrange(const Tensor& t) const { return fits(t) ? t : columns ? to_columns(t) : contiguous(t); }
  // The memory of a tensor that fits, as rows.
  Tensor flat(const Tensor& t) const { return as_strided(t, {rows.count, rows.length}, {rows.length, 1}, t.offset()); }
};

// sums[c] = sum of f(x, dy, c) over a channel; dy is 0 where there is none. The order depends on the shape alone.
template <class T, class F>
void channel_sums(const Layout& l, const RowReader<T>& x, const RowReader<T>* dy, T* sums, const F& f) {
  const std::int64_t n = l.rows.length;
  const auto row_of = [&](std::int64_t row, T* buffer, const auto& use) {
    const T* xs = x(row, buffer);
    use(xs, dy ? (*dy)(row, buffer + n) : xs);
  };
  std::fill(sums, sums + l.channels, T{0});
  if (!l.columns) {
    const std::int64_t images = l.channels ? l.rows.count / l.channels : 0;
    const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, l.per_channel));
    return parallel_for(l.channels, grain, [&](std::int64_t begin, std::int64_t end) {
      const Scratch scratch(static_cast<std::size_t>(2 * n) * sizeof(T) + 1);
      for (std::int64_t c = begin; c < end; ++c)
        for (std::int64_t i = 0; i < images; ++i)
          row_of(i * l.channels + c, scratch.as<T>(), [&](const T* xs, const T* dys) {
            sums[c] += blocked_sum<T>(n, [&](std::int64_t k) { return f(xs[k], dys[k], c); });
          });
    });
  }
  const std::int64_t grain =
      std::max({std::int64_t{1}, kGrain / std::max<std::int64_t>(1, n), (l.rows.count + 63) / 64});
  const std::int64_t parts = (l.rows.count + grain - 1) / grain;
  const Scratch partial(static_cast<std::size_t>(parts * n) * sizeof(T) + 1);
  parallel_for(l.rows.count, grain, [&](std::int64_t begin, std::int64_t end) {
    const Scratch scratch(static_cast<std::size_t>(2 * n) * sizeof(T) + 1);
    T* sum = partial.as<T>() + begin / grain * n;
    std::fill(sum, sum + n, T{0});
    for (std::int64_t row = begin; row < end; ++row)
      row_of(row, scratch.as<T>(), [&](const T* xs, const T* dys) {
        for (std::int64_t c = 0; c < n; ++c) sum[c] += f(xs[c], dys[c], c);
      });
  });
  for (std::int64_t part = 0; part < parts; ++part)
    for (std::int64_t c = 0; c < n; ++c) sums[c] += partial.as<T>()[part * n + c];
}

// out = f(x, dy, coefficients of the channel).
template <class T, class Coefficients, class F>
void map_channels(const Layout& l, const RowReader<T>& x, const RowReader<T>* dy, Tensor& out,
                  const std::vector<Coefficients>& coefficients, const F& f) {
  const Tensor flat = l.flat(out);
  Tensor target = flat;
  const RowWriter<T> write(target, l.rows);
  for_rows<T>(l.rows, 3, out.dtype(), [&](std::int64_t row, T* buffer, CastCounts* counts) {
    const std::int64_t n = l.rows.length;
    const T* xs = x(row, buffer);
    const T* dys = dy ? (*dy)(row, buffer + n) : xs;
    T* to = write.target(row, buffer + 2 * n);
    if (l.columns) {
      for (std::int64_t c = 0; c < n; ++c) to[c] = f(xs[c], dys[c], coefficients[static_cast<std::size_t>(c)]);
    } else {
      const Coefficients k = coefficients[static_cast<std::size_t>(row % l.channels)];
      for (std::int64_t i = 0; i < n; ++i) to[i] = f(xs[i], dys[i], k);
    }
    write.store(row, to, counts);
  });
}

template <class T> struct Scale {
  T mean, scale, shift, slope;
};

template <class T> void forward(const OpCall& call, const Tensor& x, Tensor& y, Outputs& out) {
  const auto& a = call.get<NormAttrs>();
  const Layout l(x);
  const Tensor flat = l.flat(x);
  const RowReader<T> read(flat, l.rows);
  const Parameter<T> weight(call[1]);
  const Parameter<T> bias(call[2]);
  T* mean = out[1].data<T>();
  T* invstd = out[2].data<T>();
  const auto count = static_cast<T>(l.per_channel);
  if (a.training) {
    channel_sums<T>(l, read, nullptr, mean, [](T v, T, std::int64_t) { return v; });
    for (std::int64_t c = 0; c < l.channels; ++c) mean[c] /= count;
    channel_sums<T>(l, read, nullptr, invstd, [mean](T v, T, std::int64_t c) { return (v - mean[c]) * (v - mean[c]); });
    for (std::int64_t c = 0; c < l.channels; ++c) invstd[c] /= count;
  } else {
    const Parameter<T> given_mean(call[3]);
    const Parameter<T> given_var(call[4]);
    for (std::int64_t c = 0; c < l.channels; ++c) mean[c] = given_mean[c], invstd[c] = given_var[c];
  }
  std::vector<Scale<T>> scales;
  for (std::int64_t c = 0; c < l.channels; ++c) {
    invstd[c] = 1 / std::sqrt(invstd[c] + static_cast<T>(a.eps));
    scales.push_back({mean[c], weight ? invstd[c] * weight[c] : invstd[c], bias ? bias[c] : T{0}, T{0}});
  }
  map_channels<T>(l, read, nullptr, y, scales,
                  [](T v, T, const Scale<T>& k) { return (v - k.mean) * k.scale + k.shift; });
}

// With M values a channel: dx = weight * invstd * (dy - sum(dy) / M - (x - mean) * invstd^2 * sum(dy (x - mean)) / M);
// not training, mean and invstd are constants and the first term stands alone.
template <class T> void backward(const OpCall& call, const Tensor& dy, const Tensor& x, Tensor& dx, Outputs& out) {
  const bool training = call.get<NormAttrs>().training;
  const Layout l(x);
  const Tensor flat_x = l.flat(x);
  const Tensor flat_dy = l.flat(dy);
  const RowReader<T> read_x(flat_x, l.rows);
  const RowReader<T> read_dy(flat_dy, l.rows);
  const Parameter<T> weight(call[2]);
  const Parameter<T> mean(call[3]);
  const Parameter<T> invstd(call[4]);
  std::vector<T> db(static_cast<std::size_t>(l.channels));
  std::vector<T> dw(static_cast<std::size_t>(l.channels));
  channel_sums<T>(l, read_dy, nullptr, db.data(), [](T g, T, std::int64_t) { return g; });
  channel_sums<T>(l, read_x, &read_dy, dw.data(), [&](T v, T g, std::int64_t c) { return g * (v - mean[c]); });
  std::vector<Scale<T>> scales;
  const auto count = static_cast<T>(l.per_channel);
  for (std::int64_t c = 0; c < l.channels; ++c) {
    T& sum = dw[static_cast<std::size_t>(c)];
    scales.push_back({mean[c], weight ? invstd[c] * weight[c] : invstd[c], db[static_cast<std::size_t>(c)] / count,
                      invstd[c] * invstd[c] * (sum / count)});
    sum *= invstd[c];
  }
  if (training) {
    map_channels<T>(l, read_x, &read_dy, dx, scales,
                    [](T v, T g, const Scale<T>& k) { return (g - k.shift - (v - k.mean) * k.slope) * k.scale; });
  } else {
    map_channels<T>(l, read_dy, nullptr, dx, scales, [](T g, T, const Scale<T>& k) { return g * k.scale; });
  }
  store_parameter(out[1], dw.data());
  store_parameter(out[2], db.data());
}

// Where the output to be written lies as the input does, it is written; else a tensor that does, then copied.
template <class F> void arranged(const Tensor& x, Tensor& out, const F& run) {
  const bool plain = x.is_contiguous() || is_columns(x);
  const Tensor in = plain ? x : contiguous(x);
  if (Layout(in).fits(out)) return run(in, out);
  Tensor result = empty(in.sizes(), {.dtype = out.dtype()});
  run(in, result);
  out.copy_(result);
}

}  // namespace

void batch_norm(const OpCall& call, Outputs& out) {
  arranged(call[0], out[0], [&](const Tensor& x, Tensor& y) {
    visit_floating(x.dtype(), [&](auto zero) { forward<decltype(zero)>(call, x, y, out); });
  });
}

void batch_norm_backward(const OpCall& call, Outputs& out) {
  arranged(call[1], out[0], [&](const Tensor& x, Tensor& dx) {
    const Tensor dy = Layout(x).arrange(call[0]);
    visit_floating(x.dtype(), [&](auto zero) { backward<decltype(zero)>(call, dy, x, dx, out); });
  });
}

}  // namespace gradual::cpu
