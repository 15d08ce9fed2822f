#include "norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "../autograd/activation_checkpoint.h"
#include "../autograd/grad_mode.h"
#include "../core/kernels/norm_element.h"
#include "../core/ops/dispatch.h"
#include "../core/support/throwf.h"
#include "../core/tensor/modes.h"

namespace gradual::nn {

static Tensor full_or_none(bool wanted, const Shape& sizes, double value, DType dtype = DType::f32) {
  return wanted ? full(sizes, value, {.dtype = dtype}) : Tensor();
}

BatchNorm::BatchNorm(std::int64_t channels, int min_dims, int max_dims, const BatchNormOptions& o)
    : weight(register_parameter("weight", full_or_none(o.affine, {count("BatchNorm", "channels", channels)}, 1))),
      bias(register_parameter("bias", full_or_none(o.affine, {channels}, 0))),
      running_mean(register_buffer("running_mean", full_or_none(o.track_running_stats, {channels}, 0),
                                   BufferKind::running_statistic)),
      running_var(register_buffer("running_var", full_or_none(o.track_running_stats, {channels}, 1),
                                  BufferKind::running_statistic)),
      num_batches_tracked(
          register_buffer("num_batches_tracked", full_or_none(o.track_running_stats, {}, 0, DType::i64))),
      options_(o),
      min_dims_(min_dims),
      max_dims_(max_dims) {}

namespace {

// Statistics of the numbers of all parts, [C] each but `rest`, and the number of values per channel.
struct PartsStatistics {
  Tensor rest;  // this part's numbers less the mean
  Tensor mean, variance;
  double count = 0;
};
PartsStatistics over_parts(const Tensor& values, const Shape& along, const Shape& others, double own_count) {
  const SumOverParts& sum_over_parts = *modes().sum_over_parts;
  const std::int64_t channels = values.size(1);
  const Tensor own = values.sum(others);
  const Tensor first = sum_over_parts(cat({own, mul(ones_like(own), own_count)}));
  PartsStatistics s;
  s.count = first[channels].item();
  s.mean = div(first.narrow(0, 0, channels), s.count);
  s.rest = sub(values, s.mean.reshape(along));
  s.variance = div(sum_over_parts(square(s.rest).sum(others)), s.count);
  return s;
}

// What each channel's numbers are multiplied by in a second attempt (see NormScale); undefined if all are ordinary. All
// parts have the same statistics, so they agree.
template <class T> Tensor second_scales(const PartsStatistics& s, double eps) {
  const NoGrad off;
  const std::vector<T> means = s.mean.detach().template to_vector<T>();
  std::vector<T> scales = s.variance.detach().template to_vector<T>();
  for (std::size_t c = 0; c < scales.size(); ++c)
    scales[c] = NormScale<T>::of_variance(scales[c] + static_cast<T>(eps), means[c]);
  const bool ordinary = std::ranges::all_of(scales, [](T by) { return by == 1; });
  if (ordinary) return {};
  return from_data(scales, s.mean.sizes(), {.dtype = dtype_of<T>, .device = s.mean.device()});
}

// NormScale::invstd of each channel: equal numbers whose eps vanishes under the scale have that of eps alone.
Tensor invstd_of_scaled(const Tensor& variance, double eps, const Tensor& by) {
  const Tensor all = add(variance, mul(mul(by, eps), by));
  const Tensor flat = eq(all, 0);
  return where(flat, div(1 / std::sqrt(eps), by), rsqrt(where(flat, 1, all)));
}

}  // namespace

// As batch_norm: y, mean, invstd. count: of the values of a channel in this part; then in all parts.
Outputs BatchNorm::over_parts(const Tensor& x, bool relu, double& count) const {
  Shape along = x.sizes(), others;
  // 0, 2, 3, ..
  for (int d = 0; d < x.dim(); d += d ? 1 : 2) {
    others.push_back(d);
    along[d] = 1;
  }
  const Tensor values = x.dtype() == DType::f64 ? x : x.to(DType::f32);
  PartsStatistics s = nn::over_parts(values, along, others, count);
  const bool f64 = values.dtype() == DType::f64;
  const Tensor by = f64 ? second_scales<double>(s, options_.eps) : second_scales<float>(s, options_.eps);
  if (by.defined()) s = nn::over_parts(mul(values, by.reshape(along)), along, others, count);
  count = s.count;
  const Tensor invstd =
      by.defined() ? invstd_of_scaled(s.variance, options_.eps, by) : rsqrt(add(s.variance, options_.eps));
  Tensor y = mul(s.rest, (weight.defined() ? mul(invstd, weight) : invstd).reshape(along));
  if (bias.defined()) y = add(y, bias.reshape(along));
  const Tensor mean = by.defined() ? div(s.mean, by) : s.mean;
  const Tensor unscaled = by.defined() ? mul(invstd, by) : invstd;
  return {{(relu ? gradual::relu(y) : y).to(x.dtype()), mean.detach(), unscaled.detach()}};
}

Tensor BatchNorm::run(const Tensor& x, const Fusion* fusion, const Attrs& second) {
  if (x.dim() < min_dims_ || x.dim() > max_dims_)
    throwf("{}: input {}; allowed is {}", kind(), to_string(x.sizes()),
           min_dims_ == 4 ? "[N, C, H, W]" : "[N, C] or [N, C, L]");
  const bool use_batch = training() || !options_.track_running_stats;
  if (use_batch && !training() && x.numel() > 0 && x.numel() / x.size(1) < 2)
    throwf("{}: input {}: it keeps no running statistics, so evaluation needs more than one value per channel too",
           kind(), to_string(x.sizes()));
  const Attrs own = NormAttrs{.eps = options_.eps, .training = use_batch};
  auto count = static_cast<double>(x.numel()) / static_cast<double>(std::max<std::int64_t>(1, x.size(1)));
  const Outputs out =
      use_batch && modes().sum_over_parts
          ? over_parts(x, fusion != nullptr, count)
          : dispatch(fusion ? fusion->whole : OpId::batch_norm, {&x, &weight, &bias, &running_mean, &running_var},
                     fusion ? fusion->whole_attrs(own, second) : own, Loc::current());
  if (training() && options_.track_running_stats && x.numel() > 0 && !recomputing()) {
    const NoGrad no_grad;
    const CauseScope cause(causes::statistics);
    batch_norm_update_(running_mean, running_var, num_batches_tracked, out[1], out[2],
                       {options_.momentum, options_.eps, static_cast<std::int64_t>(count)});
  }
  return out[0];
}

static const Shape& counts(const char* layer, const Shape& normalized) {
  for (const std::int64_t size : normalized) count(layer, "a normalized size", size);
  return normalized;
}

TrailingNorm::TrailingNorm(const char* layer, const Shape& normalized, bool affine, double eps)
    : weight(register_parameter("weight", full_or_none(affine, counts(layer, normalized), 1))),
      normalized_(normalized),
      eps_(eps) {}

int TrailingNorm::dims(const Tensor& x) const {
  const int n = normalized_.size();
  if (x.dim() >= n && std::equal(normalized_.begin(), normalized_.end(), x.sizes().end() - n)) return n;
  throwf("{}: input {} does not end in the normalised shape {}", kind(), to_string(x.sizes()), to_string(normalized_));
}

LayerNorm::LayerNorm(const Shape& normalized, LayerNormOptions o)
    : TrailingNorm("LayerNorm", normalized, o.affine, o.eps),
      bias(register_parameter("bias", full_or_none(o.affine && o.bias, normalized, 0))) {}

GroupNorm::GroupNorm(std::int64_t groups, std::int64_t channels, GroupNormOptions o)
    : weight(register_parameter("weight", full_or_none(o.affine, {count("GroupNorm", "channels", channels)}, 1))),
      bias(register_parameter("bias", full_or_none(o.affine, {channels}, 0))),
      groups_(count("GroupNorm", "groups", groups)),
      channels_(channels),
      eps_(o.eps) {
  if (channels % groups != 0) throwf("GroupNorm: {} groups do not divide {} channels", groups, channels);
}

Tensor GroupNorm::forward(const Tensor& x) {
  if (x.dim() < 2 || x.size(1) != channels_)
    throwf("GroupNorm: input {}; allowed is [N, {}, ..]", to_string(x.sizes()), channels_);
  const Tensor wide = x.dtype() == DType::f64 ? x : x.to(DType::f32);
  std::int64_t in_group = channels_ / groups_;
  for (int d = 2; d < x.dim(); ++d) in_group *= x.size(d);
  Tensor y = layer_norm(wide.reshape({x.size(0), groups_, in_group}), 1, {}, {}, eps_).reshape(x.sizes());
  Shape along = Shape::filled(x.dim(), 1);
  along[1] = channels_;
  if (weight.defined()) y = y * weight.reshape(along) + bias.reshape(along);
  return y.to(x.dtype());
}

Tensor LayerNorm::forward(const Tensor& x) { return layer_norm(x, dims(x), weight, bias, eps_); }
Tensor RMSNorm::forward(const Tensor& x) { return rms_norm(x, dims(x), weight, eps_); }

}  // namespace gradual::nn
