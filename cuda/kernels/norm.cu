// layer_norm and rms_norm over rows, batch_norm over channels, in f32 (f64 for f64); counterpart of core/cpu/norm.cpp
// and core/cpu/batch_norm.cpp. A second pass computes the variance about the mean. Rows and channels whose variance
// leaves the range of f32 are computed on scaled numbers.
#include <algorithm>
#include <cmath>

#include "../../core/kernels/norm_element.h"
#include "kernels.h"
#include "movement.h"
#include "reduce.h"
#include "rows.h"

namespace gradual::cuda {
namespace {

// A weight, bias or statistic as contiguous C; null if absent.
template <class C> struct Parameter {
  explicit Parameter(const Tensor& t) {
    if (!t.defined()) return;
    values = dense(t, dtype_of<C>);
    data = static_cast<const C*>(values.raw());
  }
  Tensor values;
  const C* data = nullptr;
};

// A gradient in a dtype that kernels with compute type C can load.
template <class C> Tensor loadable(const Tensor& t) {
  const bool loads = t.dtype() == dtype_of<C> || (std::is_same_v<C, float> && is_half(t.dtype()));
  return loads ? t : copied(t, dtype_of<C>);
}

// Two sums computed together.
template <class C> struct Pair {
  C a, b;
  template <class F> __device__ Pair each(const F& f) const { return {f(a), f(b)}; }
  __device__ Pair operator+(const Pair& o) const { return {a + o.a, b + o.b}; }
};
template <class C> struct SumPairs {
  using Number = C;
  using Acc = Pair<C>;
  static constexpr int kInputs = 2;
  __device__ Acc identity() const { return {0, 0}; }
  __device__ Acc combine(const Acc& x, const Acc& y) const { return x + y; }
};

// --- over rows -------------------------------------------------------------------------------------------------------

// y = (x - mean) * scale * weight + bias with scale = 1 / sqrt(variance + eps); for rms_norm the mean is 0
// (Ba et al. 2016; Zhang and Sennrich 2019).
template <class C> struct Normalize {
  C eps;
  // rms_norm has no means
  C* means;
  C* scales;
  bool weight, bias;
  // The mean and the variance of the elements times `by`.
  template <class R> __device__ Pair<C> moments(R& row, C by) const {
    const auto n = static_cast<C>(row.length);
    const C mean = means ? row.sum([=](std::int64_t, const auto& x, const auto&) { return x[0] * by; }) / n : C{0};
    const C square =
        row.sum([=](std::int64_t, const auto& x, const auto&) { return (x[0] * by - mean) * (x[0] * by - mean); });
    return {mean, square / n};
  }
  template <class R> __device__ void operator()(R& row) const {
    Pair<C> m = moments(row, C{1});
    const C by = NormScale<C>::of_variance(m.b + eps, m.a);  // the same for all threads of the row
    if (by != C{1}) m = moments(row, by);
    const C scale = NormScale<C>::invstd(m.b, eps, by);
    row.write([&](std::int64_t, const auto& x, const auto& p) {
      C y = (x[0] * by - m.a) * scale;
      if (weight) y *= p[0];
      if (bias) y += p[1];
      return y;
    });
    if (!row.first_lane()) return;
    if (means) means[row.index] = m.a / by;
    scales[row.index] = scale * by;
  }
};

// With g = dy * weight and xhat the normalised row: dx = scale * (g - mean(g) - xhat * mean(g * xhat)). x: dy, x.
template <class C> struct NormalizeBackward {
  const C* means;
  const C* scales;
  bool weight;
  template <class R> __device__ void operator()(R& row) const {
    const auto n = static_cast<C>(row.length);
    const C mean = means ? means[row.index] : C{0};
    const C scale = scales[row.index];
    const auto xhat = [&](const auto& x) { return NormScale<C>::normal(x[1], mean, scale, scale); };
    const auto g = [&](const auto& x, const auto& p) { return weight ? x[0] * p[0] : x[0]; };
    const C along = row.sum([&](std::int64_t, const auto& x, const auto& p) { return g(x, p) * xhat(x); }) / n;
    const C shift = means ? row.sum([&](std::int64_t, const auto& x, const auto& p) { return g(x, p); }) / n : C{0};
    row.write([&](std::int64_t, const auto& x, const auto& p) { return scale * (g(x, p) - shift - xhat(x) * along); });
  }
};
// dw = sum of dy * xhat, db = sum of dy, over rows.
template <class C> struct RowGradients : SumPairs<C> {
  const C* means;
  const C* scales;
  Stored<C> dw, db;
  __device__ Pair<C> map(const C (&x)[2], std::int64_t, std::int64_t row) const {
    const C mean = means ? means[row] : C{0};
    return {x[0] * NormScale<C>::normal(x[1], mean, scales[row], scales[row]), x[0]};
  }
  __device__ void finish(const Pair<C>& sums, std::int64_t i) const {
    dw(sums.a, i);
    if (db.data) db(sums.b, i);
  }
};

// Row-major tensors as [rows, length].
struct RowShape {
  std::int64_t rows = 1;
  std::int64_t length = 1;
  RowShape(const Shape& sizes, int dims) {
    for (int d = 0; d < sizes.size(); ++d) (d < sizes.size() - dims ? rows : length) *= sizes[d];
  }
  Tensor of(const Tensor& t) const { return dense(t, t.dtype()).view({rows, length}); }
};

template <class C> void normalize_rows(const OpCall& call, Outputs& out) {
  const auto& a = call.get<NormAttrs>();
  const bool center = call.op == OpId::layer_norm;
  const RowShape shape(call[0].sizes(), a.dims);
  const Parameter<C> weight(call[1]), bias(center ? call[2] : Tensor());
  const Tensor y = shape.of(out[0]);
  const Tensor x = shape.of(call[0]);
  const CountingStores counting(dtype_of<C>, y.dtype());
  const Tensor* const operands[] = {&y, &x};
  const C* const parameters[] = {weight.data, bias.data};
  C* const means = center ? static_cast<C*>(out[1].raw()) : nullptr;
  for_rows(row_set<C>(operands, 1, parameters, counting),
           Normalize<C>{static_cast<C>(a.eps), means, static_cast<C*>(out[center ? 2 : 1].raw()),
                        weight.data != nullptr, bias.data != nullptr});
}

template <class C> void normalize_rows_backward(const OpCall& call, Outputs& out) {
  const bool center = call.op == OpId::layer_norm_backward;
  const RowShape shape(call[1].sizes(), call.get<NormAttrs>().dims);
  const Parameter<C> weight(call[2]), means(center ? call[3] : Tensor()), scales(call[center ? 4 : 3]);
  const Tensor dx = shape.of(out[0]);
  const Tensor dy = shape.of(loadable<C>(call[0]));
  const Tensor x = shape.of(call[1]);
  {
    const CountingStores counting(dtype_of<C>, dx.dtype());
    const Tensor* const operands[] = {&dx, &dy, &x};
    const C* const parameters[] = {weight.data};
    for_rows(row_set<C>(operands, 1, parameters, counting),
             NormalizeBackward<C>{means.data, scales.data, weight.data != nullptr});
  }
  const CountingStores counting(dtype_of<C>, out[1].dtype());
  const Tensor* const operands[] = {&dy, &x};
  const Stored<C> dw(out[1], counting), db = center ? Stored<C>(out[2], counting) : Stored<C>();
  reduce(reduce_source(operands, 1), RowGradients<C>{{}, means.data, scales.data, dw, db});
}

// --- over channels (Ioffe and Szegedy 2015) --------------------------------------------------------------------------

// (x - mean) * scale + shift, for each channel.
template <class C> struct Affine {
  const C* weight;
  const C* bias;
  C* scales;
  C* shifts;
  __device__ void operator()(std::int64_t c, C invstd) const {
    scales[c] = weight ? invstd * weight[c] : invstd;
    shifts[c] = bias ? bias[c] : C{0};
  }
};

// The sum is computed twice: as it is, and of numbers times NormScale::kDown, for channels in which it leaves the range
// of C.
template <class C> struct ChannelMean : SumPairs<C> {
  static constexpr int kInputs = 1;
  C count;
  C* mean;
  __device__ Pair<C> map(const C (&x)[1], std::int64_t, std::int64_t) const {
    return {x[0], x[0] * NormScale<C>::kDown};
  }
  __device__ void finish(const Pair<C>& sum, std::int64_t c) const {
    mean[c] = std::isfinite(sum.a) ? sum.a / count : sum.b / count * NormScale<C>::kUp;
  }
};
// Squares about the mean as they are, and of the numbers that leave the range of C: the sum of far numbers' squares
// times kDown^2, or, if there are none, that of near numbers' squares times kUp^2, negated. A far number (or NaN) makes
// the variance too large for near ones to matter.
template <class C> struct Squares {
  static constexpr C kFar = static_cast<C>(sizeof(C) == sizeof(double) ? 0x1p300 : 0x1p40);
  __device__ static C scaled(C rest, C down) {
    const C up = rest * NormScale<C>::kUp;
    const C size = std::fabs(rest);
    if (!(size <= kFar)) return down * down;
    return size < 1 / kFar ? -(up * up) : C{0};
  }
  __device__ static C joined(C x, C y) {
    const bool far = !(x <= 0) || !(y <= 0);
    return far ? (x <= 0 ? C{0} : x) + (y <= 0 ? C{0} : y) : x + y;
  }
};
template <class C> struct ChannelDeviation : SumPairs<C> {
  static constexpr int kInputs = 1;
  C count, eps;
  const C* mean;
  C* invstd;
  Affine<C> affine;
  __device__ Pair<C> map(const C (&x)[1], std::int64_t c, std::int64_t) const {
    const C rest = x[0] - mean[c];
    const C down = x[0] * NormScale<C>::kDown - mean[c] * NormScale<C>::kDown;
    return {rest * rest, Squares<C>::scaled(rest, down)};
  }
  __device__ Pair<C> combine(const Pair<C>& x, const Pair<C>& y) const {
    return {x.a + y.a, Squares<C>::joined(x.b, y.b)};
  }
  __device__ void finish(const Pair<C>& square, std::int64_t c) const {
    const C variance = square.a / count;
    const C by = NormScale<C>::of_variance(variance + eps, mean[c]);
    const C scaled = std::fabs(square.b) / count;
    invstd[c] = by == C{1} ? 1 / std::sqrt(variance + eps) : NormScale<C>::invstd(scaled, eps, by) * by;
    affine(c, invstd[c]);
  }
};
// The running statistics in place of the batch's.
template <class C> struct GivenStatistics {
  const C* given_mean;
  const C* given_var;
  C eps;
  C* mean;
  C* invstd;
  Affine<C> affine;
  __device__ void operator()(std::int64_t c) const {
    mean[c] = given_mean[c];
    invstd[c] = 1 / std::sqrt(given_var[c] + eps);
    affine(c, invstd[c]);
  }
};
template <class C> struct AffineOfChannels {
  const C* invstd;
  Affine<C> affine;
  __device__ void operator()(std::int64_t c) const { affine(c, invstd[c]); }
};

// out = f(x, p) for elements x of N operands and M parameters p of their channel.
template <class C, int N, int M, class F> struct MapChannels {
  Geometry<N + 2> g;  // the output, the operands, the position of the channel
  bool wide;          // in runs of eight, of one channel or of eight channels
  const C* parameters[M];
  F f;
  Counter counter;

  __device__ void operator()(std::int64_t i) const {
    std::int64_t at[N + 2];
    g.locate(wide ? i * kRun : i, at);
    if (wide) run(at);
    else one(at);
  }

 private:
  __device__ void one(const std::int64_t (&at)[N + 2]) const {
    C x[N], p[M];
    for (int k = 0; k < N; ++k) x[k] = load_element<C>(g.operand[k + 1].dtype, g.operand[k + 1].data, at[k + 1]);
    for (int m = 0; m < M; ++m) p[m] = parameters[m][at[N + 1]];
    const ElementOperand& out = g.operand[0];
    store_counted(out.dtype, f(x, p), out.data, at[0], counter);
  }
  __device__ void run(const std::int64_t (&at)[N + 2]) const {
    C x[N][kRun], p[M][kRun], y[kRun];
    for (int k = 0; k < N; ++k) load_run(g.operand[k + 1], at[k + 1], x[k]);
    const bool alone = g.operand[N + 1].strides[g.ndim - 1] == 0;
    for (int m = 0; m < M; ++m) {
      const C* const numbers = parameters[m] + at[N + 1];
      const auto* parts = reinterpret_cast<const RunPart<C>*>(numbers);
      for (int j = 0; j < kRun; ++j)
        p[m][j] = alone ? *numbers : parts[j / RunPart<C>::kSize].of[j % RunPart<C>::kSize];
    }
    for (int j = 0; j < kRun; ++j) {
      C of[N], with[M];
      for (int k = 0; k < N; ++k) of[k] = x[k][j];
      for (int m = 0; m < M; ++m) with[m] = p[m][j];
      y[j] = f(of, with);
    }
    store_run(g.operand[0], at[0], y, counter);
  }
};

// The same for row-major operands, in runs that may begin in one plane and end in the next. Planes have any size from
// kRun on.
template <class C, int N, int M, class F> struct MapPlanes {
  ElementOperand operand[N + 1];  // the output, then the operands
  std::int64_t plane, channels;
  bool narrow;  // positions fit in 32 bits
  const C* parameters[M];
  F f;
  Counter counter;

  __device__ void operator()(std::int64_t i) const {
    const std::int64_t first = i * kRun;
    const std::int64_t image_plane = divided(first, plane);
    const std::int64_t c = image_plane - divided(image_plane, channels) * channels;
    const std::int64_t next = c + 1 == channels ? 0 : c + 1;
    const std::int64_t left = (image_plane + 1) * plane - first;
    C x[N][kRun], y[kRun], here[M], there[M];
    unrolled<N>([&](auto k) { load_run(operand[k + 1], first, x[k]); });
    for (int m = 0; m < M; ++m) {
      here[m] = parameters[m][c];
      there[m] = parameters[m][next];
    }
    for (int j = 0; j < kRun; ++j) {
      C of[N], with[M];
      for (int k = 0; k < N; ++k) of[k] = x[k][j];
      for (int m = 0; m < M; ++m) with[m] = j < left ? here[m] : there[m];
      y[j] = f(of, with);
    }
    store_run(operand[0], first, y, counter);
  }

 private:
  __device__ std::int64_t divided(std::int64_t a, std::int64_t b) const {
    return narrow ? static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b) : a / b;
  }
};
// True if the operands allow it; then the kernel was started.
template <class C, int K, int M, class F>
bool map_planes(const Tensor* const (&operands)[K], const C* const (&parameters)[M], const F& f,
                const CountingStores& counting) {
  const Tensor& out = *operands[0];
  const std::int64_t channels = out.size(1);
  const std::int64_t plane = out.numel() / (out.size(0) * channels);
  if (plane < kRun || plane % kRun == 0 || out.numel() % kRun != 0) return false;  // whole runs need no choice
  MapPlanes<C, K - 1, M, F> map{{}, plane, channels, out.numel() <= INT32_MAX, {}, f, counting.counter()};
  for (int k = 0; k < K; ++k) {
    const Tensor& t = *operands[k];
    if (!t.is_contiguous() || !aligned(t.raw())) return false;
    map.operand[k].data = static_cast<char*>(t.raw());
    map.operand[k].dtype = t.dtype();
  }
  for (int m = 0; m < M; ++m) map.parameters[m] = parameters[m];
  for_each(out.numel() / kRun, map);
  return true;
}

// Tensors of [N, C, ..]; `statistic` is one of [C].
template <class C, int K, int M, class F>
void map_channels(const Tensor& statistic, const Tensor* const (&operands)[K], const C* const (&parameters)[M],
                  const F& f) {
  const Tensor& out = *operands[0];
  if (out.numel() == 0) return;
  Shape strides;
  for (int d = 0; d < out.dim(); ++d) strides.push_back(d == 1 ? 1 : 0);
  const Tensor channel = as_strided(statistic, out.sizes(), strides, statistic.offset());
  const Tensor* all[K + 1];
  for (int k = 0; k < K; ++k) all[k] = operands[k];
  all[K] = &channel;
  const Tensor* const(&views)[K + 1] = all;
  const CountingStores counting(dtype_of<C>, out.dtype());
  if (map_planes<C>(operands, parameters, f, counting)) return;
  MapChannels<C, K - 1, M, F> map{make_geometry(out.sizes(), views, false), false, {}, f, counting.counter()};
  const std::int64_t step = map.g.operand[K].strides[map.g.ndim - 1];
  map.wide = wide(map.g, Geometry<K + 1>{}, K) && (step == 0 || step == 1);
  for (int m = 0; m < M; ++m) {
    map.parameters[m] = parameters[m];
    map.wide = map.wide && (step == 0 || aligned(parameters[m]));
  }
  for_each(map.wide ? out.numel() / kRun : out.numel(), map);
}

std::uint32_t all_but_channels(const Tensor& x) { return ((1u << x.dim()) - 1) & ~2u; }
double values_per_channel(const Tensor& x) { return x.numel() == 0 ? 0 : static_cast<double>(x.numel() / x.size(1)); }
// Scratch memory of `rows` rows with one number per channel, each row aligned.
template <class C> struct ChannelMemory {
  std::int64_t pitch;
  Workspace memory;
  ChannelMemory(std::int64_t channels, std::int64_t rows)
      : pitch((channels + 3) / 4 * 4), memory(static_cast<std::size_t>(pitch * rows) * sizeof(C)) {}
  C* row(std::int64_t i) const { return memory.template as<C>() + i * pitch; }
};

template <class C> struct NormalizeChannels {
  C cut;  // smaller values become 0
  // p: mean, scale, shift, invstd
  GRADUAL_HD C operator()(const C (&x)[1], const C (&p)[4]) const {
    const C value = NormScale<C>::normal(x[0], p[0], p[1], p[3]) + p[2];
    return value < cut ? C{0} : value;
  }
};

template <class C> void batch_norm_of(const OpCall& call, Outputs& out) {
  const auto& a = call.get<NormAttrs>();
  const std::int64_t channels = call[0].size(1);
  const Parameter<C> weight(call[1]), bias(call[2]);
  const ChannelMemory<C> memory(channels, 2);
  const Affine<C> affine{weight.data, bias.data, memory.row(0), memory.row(1)};
  C* const mean = static_cast<C*>(out[1].raw());
  C* const invstd = static_cast<C*>(out[2].raw());
  const auto count = static_cast<C>(values_per_channel(call[0]));
  const auto eps = static_cast<C>(a.eps);
  if (a.training) {
    const Tensor* const operands[] = {&call[0]};
    const ReduceSource<1> s = reduce_source(operands, all_but_channels(call[0]));
    reduce(s, ChannelMean<C>{{}, count, mean});
    reduce(s, ChannelDeviation<C>{{}, count, eps, mean, invstd, affine});
  } else {
    const Parameter<C> given_mean(call[3]), given_var(call[4]);
    for_each(channels, GivenStatistics<C>{given_mean.data, given_var.data, eps, mean, invstd, affine});
  }
  const Tensor* const operands[] = {&out[0], &call[0]};
  const C* const parameters[] = {mean, affine.scales, affine.shifts, invstd};
  const C cut = a.relu ? -rounds_to_zero<C>(out[0].dtype()) : -std::numeric_limits<C>::infinity();
  map_channels(out[1], operands, parameters, NormalizeChannels<C>{cut});
}

// dy unless y is 0: recomputing y with the same bits costs less than reading it.
template <class C> struct ReluMask {
  bool relu;
  C zero;  // up to it y is stored as 0
  GRADUAL_HD C operator()(C dy, C x, C mean, C scale, C shift, C invstd) const {
    return relu && NormScale<C>::normal(x, mean, scale, invstd) + shift <= zero ? C{0} : dy;
  }
};
// db = sum(dy), dw = sum(dy (x - mean)) * invstd, and the averages that dx needs.
template <class C> struct ChannelGradients : SumPairs<C> {
  ReluMask<C> mask;
  const C* mean;
  const C* invstd;
  const C* scales;
  const C* shifts;
  C count;
  C* averages;
  C* slopes;
  Stored<C> dw, db;
  __device__ Pair<C> map(const C (&x)[2], std::int64_t c, std::int64_t) const {
    const C dy = mask(x[0], x[1], mean[c], scales[c], shifts[c], invstd[c]);
    return {dy, dy * NormScale<C>::normal(x[1], mean[c], NormScale<C>::of_invstd(invstd[c]), invstd[c])};
  }
  // sums.b is scaled by NormScale::of_invstd.
  __device__ void finish(const Pair<C>& sums, std::int64_t c) const {
    const C back = invstd[c] / NormScale<C>::of_invstd(invstd[c]);
    averages[c] = sums.a / count;
    const bool ordinary = back == invstd[c] && invstd[c] <= NormScale<C>::kNearInvstd;  // its square is finite
    slopes[c] = ordinary ? invstd[c] * invstd[c] * (sums.b / count) : back * (invstd[c] * (sums.b / count));
    db(sums.a, c);
    dw(sums.b * back, c);
  }
};
// With M values per channel:
// dx = weight * invstd * (dy - sum(dy) / M - (x - mean) * invstd^2 * sum(dy (x - mean)) / M).
// In inference, mean and invstd are constants, and only the term dy remains.
template <class C> struct ChannelsBackward {
  ReluMask<C> mask;
  bool training;
  // p: mean, scale, shift, average, slope, invstd
  GRADUAL_HD C operator()(const C (&x)[2], const C (&p)[6]) const {
    const C dy = mask(x[0], x[1], p[0], p[1], p[2], p[5]);
    return training ? (dy - p[3] - NormScale<C>::normal(x[1], p[0], p[4], p[5])) * p[1] : dy * p[1];
  }
};

template <class C> void batch_norm_backward_of(const OpCall& call, Outputs& out) {
  const auto& a = call.get<NormAttrs>();
  const std::int64_t channels = call[1].size(1);
  const Parameter<C> weight(call[2]), mean(call[3]), invstd(call[4]), bias(call[5]);
  const ChannelMemory<C> memory(channels, 4);
  const Affine<C> affine{weight.data, bias.data, memory.row(0), memory.row(1)};
  for_each(channels, AffineOfChannels<C>{invstd.data, affine});
  const ReluMask<C> mask{a.relu, rounds_to_zero<C>(call[1].dtype())};
  const Tensor dy = loadable<C>(call[0]);
  {
    const CountingStores counting(dtype_of<C>, out[1].dtype());
    const Tensor* const operands[] = {&dy, &call[1]};
    reduce(reduce_source(operands, all_but_channels(call[1])),
           ChannelGradients<C>{{},
                               mask,
                               mean.data,
                               invstd.data,
                               affine.scales,
                               affine.shifts,
                               static_cast<C>(values_per_channel(call[1])),
                               memory.row(2),
                               memory.row(3),
                               Stored<C>(out[1], counting),
                               Stored<C>(out[2], counting)});
  }
  const Tensor* const operands[] = {&out[0], &dy, &call[1]};
  const C* const parameters[] = {mean.data, affine.scales, affine.shifts, memory.row(2), memory.row(3), invstd.data};
  map_channels(mean.values, operands, parameters, ChannelsBackward<C>{mask, a.training});
}

// One channel per thread. The first thread counts the batch, even without channels.
template <class C, class S> struct MoveStatistics {
  Geometry<4> g;  // running mean and var, the batch's mean and invstd
  RunningStatistics<C, S> to;
  std::int64_t* batches;
  Counter counter;
  __device__ void operator()(std::int64_t i) const {
    if (i == 0) ++*batches;
    if (g.numel == 0) return;
    std::int64_t at[4];
    g.locate(i, at);
    const auto running = [&](int k) { return load_element<C>(to.dtype, g.operand[k].data, at[k]); };
    const auto batch = [&](int k) { return static_cast<const S*>(static_cast<const void*>(g.operand[k].data))[at[k]]; };
    const C mean = to.mean(running(0), batch(2));
    const C var = to.var(running(1), batch(3));
    store_counted(to.dtype, mean, g.operand[0].data, at[0], counter);
    store_counted(to.dtype, var, g.operand[1].data, at[1], counter);
  }
};
void batch_norm_update(const OpCall& call, Outputs&) {
  const DType dtype = call[0].dtype();
  cpu::visit_floating(dtype, [&]<class C>(C) {
    cpu::visit_floating(call[3].dtype(), [&]<class S>(S) {
      const Tensor* const operands[] = {&call[0], &call[1], &call[3], &call[4]};
      const CountingStores counting(dtype_of<C>, dtype);
      for_each(std::max<std::int64_t>(1, call[0].numel()),
               MoveStatistics<C, S>{make_geometry(call[0].sizes(), operands, true),
                                    {dtype, call.get<RunningAttrs>()},
                                    static_cast<std::int64_t*>(call[2].raw()),
                                    counting.counter()});
    });
  });
  bump_version(call[1]);
  bump_version(call[2]);
}

// In the compute type of output 0.
void over_rows(const OpCall& call, Outputs& out) {
  cpu::visit_floating(out[0].dtype(), [&]<class C>(C) { normalize_rows<C>(call, out); });
}
void over_rows_backward(const OpCall& call, Outputs& out) {
  cpu::visit_floating(out[0].dtype(), [&]<class C>(C) { normalize_rows_backward<C>(call, out); });
}
void batch_norm(const OpCall& call, Outputs& out) {
  cpu::visit_floating(out[0].dtype(), [&]<class C>(C) { batch_norm_of<C>(call, out); });
}
void batch_norm_backward(const OpCall& call, Outputs& out) {
  cpu::visit_floating(out[0].dtype(), [&]<class C>(C) { batch_norm_backward_of<C>(call, out); });
}

}  // namespace

void register_normalization() {
  set_kernel(OpId::layer_norm, over_rows);
  set_kernel(OpId::rms_norm, over_rows);
  set_kernel(OpId::layer_norm_backward, over_rows_backward);
  set_kernel(OpId::rms_norm_backward, over_rows_backward);
  set_kernel(OpId::batch_norm, batch_norm);
  set_kernel(OpId::batch_norm_update_, batch_norm_update);
  set_kernel(OpId::batch_norm_backward, batch_norm_backward);
}

}  // namespace gradual::cuda
