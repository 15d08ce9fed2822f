// batch_norm over channels (Ioffe and Szegedy 2015), in f32 (f64 for f64). For mean and variance each chunk is read
// from memory once. While it is in the cache, a first pass computes its mean, and a second one the sums of the
// deviations from that mean and of their squares. The results of the chunks are merged as in Chan, Golub and LeVeque
// (1983). A channel whose variance leaves the range of f32 is computed again on scaled numbers.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "../kernels/norm_element.h"
#include "channelwise.h"
#include "kernels.h"

namespace gradual::cpu {
namespace {

using namespace channelwise;

// y = (x - mean) * scale + shift, for each channel.
template <class T> struct Affine {
  const Parameter<T> weight, bias;
  std::vector<T> scales, shifts;
  Affine(std::int64_t channels, const Tensor& w, const Tensor& b)
      : weight(w), bias(b), scales(static_cast<std::size_t>(channels)), shifts(scales.size()) {}
  void set(std::int64_t c, T invstd) {
    const auto at = static_cast<std::size_t>(c);
    scales[at] = weight ? invstd * weight[c] : invstd;
    shifts[at] = bias ? bias[c] : T{0};
  }
};

// The numbers of channel c of [N, C, ..] as T, row-major.
template <class T> Parameter<T> channel_of(const Tensor& x, std::int64_t c) {
  Shape sizes = x.sizes();
  Shape strides = x.strides();
  sizes.erase(1);
  strides.erase(1);
  return Parameter<T>(as_strided(x, sizes, strides, x.offset() + c * x.strides()[1]));
}

template <class T> struct ChannelStatistics {
  T mean, invstd;
};
// Of numbers whose squares leave the range of T.
template <class T> ChannelStatistics<T> scaled_statistics(const Tensor& x, std::int64_t c, T eps, T by) {
  const Parameter<T> values = channel_of<T>(x, c);
  const std::int64_t n = x.numel() / x.size(1);
  const auto moved = [&](std::int64_t i) { return values[i] * by; };
  const T mean = blocked_sum<T>(n, moved) / static_cast<T>(n);
  const T square = blocked_sum<T>(n, [&](std::int64_t i) { return (moved(i) - mean) * (moved(i) - mean); });
  return {mean / by, NormScale<T>::invstd(square / static_cast<T>(n), eps, by) * by};
}

// The sum of dy xhat over channel c, with the normalised numbers xhat = (x - mean) invstd. `masked` is dy or 0.
template <class T, class F>
double scaled_gradient(const Tensor& dy, const Tensor& x, std::int64_t c, T mean, T invstd, const F& masked) {
  const Parameter<T> gradients = channel_of<T>(dy, c);
  const Parameter<T> values = channel_of<T>(x, c);
  const auto term = [&](std::int64_t i) {
    return masked(gradients[i], values[i]) * NormScale<T>::normal(values[i], mean, invstd, invstd);
  };
  return static_cast<double>(blocked_sum<T>(x.numel() / x.size(1), term));
}

// Mean and variance of a channel from the sums of its chunks (Chan, Golub and LeVeque 1983): mean, deviations from it,
// and their squares.
struct Merged {
  double mean, variance;
};
template <class F> Merged merged(const Channels& l, const F& sums) {
  const auto n = [&](std::int64_t k) { return static_cast<double>(l.count(k)); };
  const auto rest = [&](std::int64_t k) { return static_cast<double>(sums(k, 1)) / n(k); };
  const auto mean_of = [&](std::int64_t k) { return static_cast<double>(sums(k, 0)) + rest(k); };
  double center = 0;
  for (std::int64_t k = 0; k < l.chunks; ++k) center += n(k) * mean_of(k);
  center /= static_cast<double>(l.count());
  double squares = 0;
  for (std::int64_t k = 0; k < l.chunks; ++k) {
    const double off = mean_of(k) - center;
    squares += static_cast<double>(sums(k, 2)) + n(k) * (off * off - rest(k) * rest(k));
  }
  return {center, squares / static_cast<double>(l.count())};
}

// A channel that is computed again, on numbers times `by`.
template <class T> struct Again {
  std::int64_t channel;
  T by;
};
template <class T, class F> void for_each_again(const std::vector<Again<T>>& again, const F& f) {
  parallel_for(static_cast<std::int64_t>(again.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) f(again[static_cast<std::size_t>(i)]);
  });
}

// The batch's statistics of all channels.
template <class T, class F>
void set_statistics(const Tensor& x, const Channels& l, const F& sums_of, T eps, T* mean, T* invstd) {
  std::vector<Again<T>> again;
  for (std::int64_t c = 0; c < l.channels; ++c) {
    const Merged m = merged(l, sums_of(c));
    mean[c] = static_cast<T>(m.mean);
    const T variance = static_cast<T>(m.variance) + eps;
    invstd[c] = 1 / std::sqrt(variance);
    const T by = NormScale<T>::of_variance(variance, mean[c]);
    if (l.count() > 0 && by != 1) again.push_back({c, by});
  }
  for_each_again(again, [&](const Again<T>& a) {
    const ChannelStatistics<T> s = scaled_statistics<T>(x, a.channel, eps, a.by);
    mean[a.channel] = s.mean;
    invstd[a.channel] = s.invstd;
  });
}
// The running statistics in their place.
template <class T>
void set_statistics(const Tensor& given_mean, const Tensor& given_var, const Channels& l, T eps, T* mean, T* invstd) {
  const Parameter<T> means(given_mean);
  const Parameter<T> variances(given_var);
  for (std::int64_t c = 0; c < l.channels; ++c) {
    mean[c] = means ? means[c] : T{0};
    invstd[c] = 1 / std::sqrt((variances ? variances[c] : T{0}) + eps);
  }
}

// y of channels in which the difference of two numbers may be Inf.
template <class T, class Y>
void map_far_channels(const Piece& p, const Part<Y>& x, const Part<Y>& to, const T* mean, const T* invstd,
                      const Affine<T>& affine, T cut) {
  map<T>(p, x, x, to, [&](std::int64_t at) {
    const auto c = static_cast<std::size_t>(p.channel + at);
    return [=, center = mean[c], s = invstd[c], scale = affine.scales[c], shift = affine.shifts[c]](T v, T) {
      const T value = NormScale<T>::normal(v, center, scale, s) + shift;
      return value < cut ? T{0} : value;
    };
  });
}

// The sums of a piece's channels, and of the deviations from their means and of the squares of these.
template <class T, class E> void add_moments(const Piece& p, const Part<E>& x, T* sums, std::int64_t next) {
  vectorized([=] {
    sum(p, x, x, ChannelSum{sums, [](std::int64_t) { return [](T v, T) { return v; }; }});
    for (std::int64_t c = 0; c < p.channels; ++c) sums[c] /= static_cast<T>(p.images * p.inner);
    const auto rest = [=](std::int64_t c) { return [near = sums[c]](T v, T) { return v - near; }; };
    const auto square = [=](std::int64_t c) { return [near = sums[c]](T v, T) { return (v - near) * (v - near); }; };
    sum(p, x, x, ChannelSum{sums + next, rest}, ChannelSum{sums + 2 * next, square});
  });
}

template <class T, class Y>
void map_channels(const Piece& p, const Part<Y>& x, const Part<Y>& to, const T* means, const Affine<T>& affine, T cut) {
  vectorized(
      [=, m = means + p.channel, scale = affine.scales.data() + p.channel, shift = affine.shifts.data() + p.channel] {
        map<T>(p, x, x, to, [=](std::int64_t c) {
          return [=](T v, T) {  // with local copies of m[c] and the others g++ 12 emits branches
            const T value = (v - m[c]) * scale[c] + shift[c];
            return value < cut ? T{0} : value;
          };
        });
      });
}

template <class T, class E, class Y>
void batch_norm_of(const OpCall& call, const Channels& l, Tensor& y, Outputs& out) {
  const auto& a = call.get<NormAttrs>();
  T* const mean = out[1].data<T>();
  T* const invstd = out[2].data<T>();
  Affine<T> affine(l.channels, call[1], call[2]);
  const T cut = a.relu ? -rounds_to_zero<T>(y.dtype()) : -std::numeric_limits<T>::infinity();
  const auto eps = static_cast<T>(a.eps);
  bool far = false;  // some channel's numbers are

  const Passes<T, E, Y> passes{l, {l.view(call[0]), l}, {{}, l}, {y, l}, y.dtype(), a.training};
  passes.run([&](const Piece& p, const Part<E>& x, const Part<E>&, T* sums) { add_moments(p, x, sums, l.channels); },
             [&](const auto& sums_of) {
               if (a.training) set_statistics<T>(call[0], l, sums_of, eps, mean, invstd);
               else set_statistics<T>(call[3], call[4], l, eps, mean, invstd);
               for (std::int64_t c = 0; c < l.channels; ++c) {
                 affine.set(c, invstd[c]);
                 far = far || NormScale<T>::of_invstd(invstd[c]) != 1;
               }
             },
             [&](const Piece& p, const Part<Y>& x, const Part<Y>&, const Part<Y>& to) {
               if (far) map_far_channels<T>(p, x, to, mean, invstd, affine, cut);
               else map_channels<T>(p, x, to, mean, affine, cut);
             });
}

// dx of a channel in which the difference of two numbers may be Inf; the formula is that of batch_norm_backward_of.
template <class T> struct FarGradient {
  T mean, invstd, shift, slope, scale;
  bool training;
  T operator()(T dy, T x) const {
    return (training ? dy - shift - NormScale<T>::normal(x, mean, slope, invstd) : dy) * scale;
  }
};

template <class T, class Y, class M, class F>
void map_far_gradients(const Piece& p, const Part<Y>& dy, const Part<Y>& x, const Part<Y>& to, const M& mask,
                       const F& gradient) {
  map<T>(p, dy, x, to, [&](std::int64_t at) {
    return [masked = mask(p.channel + at), f = gradient(p.channel + at)](T g, T v) { return f(masked(g, v), v); };
  });
}

// dy, or 0 where relu made y 0.
template <class T, bool kRelu> struct Mask {
  const T* means;
  const T* scales;
  const T* biases;
  T zero;
  T at(std::int64_t c, T dy, T x) const {
    return kRelu ? kept(dy, !((x - means[c]) * scales[c] + biases[c] <= zero)) : dy;
  }
  auto operator()(std::int64_t c) const {
    return [*this, c](T dy, T x) { return at(c, dy, x); };  // with local copies g++ 12 stores them for each element
  }
};

// The numbers of each channel in the formula of dx (batch_norm_backward_of), without the means.
template <class T> struct GradientTerms {
  const T* shifts;
  const T* slopes;
  const T* scales;
  bool training;
};
template <class T, class Y, bool kRelu>
void map_gradients(const Piece& p, const Part<Y>& dy, const Part<Y>& x, const Part<Y>& to, const Mask<T, kRelu>& mask,
                   const GradientTerms<T>& terms) {
  vectorized([=, first = p.channel, training = terms.training] {
    const auto along = [=](auto trains) {
      map<T>(p, dy, x, to, [=](std::int64_t at) {
        return [=, c = first + at](T g, T v) {  // of numbers or of mask(c), g++ 12 would store copies
          const T masked = mask.at(c, g, v);
          const T rest = trains ? masked - terms.shifts[c] - (v - mask.means[c]) * terms.slopes[c] : masked;
          return rest * terms.scales[c];
        };
      });
    };
    training ? along(std::true_type{}) : along(std::false_type{});
  });
}

// The sums of dy and of dy (x - mean) over the channels of a piece.
template <class T, class E, bool kRelu>
void add_gradients(const Piece& p, const Part<E>& dy, const Part<E>& x, const Mask<T, kRelu>& mask, T* shifts,
                   T* slopes) {
  vectorized([=, first = p.channel] {
    const auto shift = [=](std::int64_t c) { return mask(first + c); };
    const auto slope = [=](std::int64_t c) {
      return [=, masked = mask(first + c), center = mask.means[first + c]](T g, T v) {
        return masked(g, v) * (v - center);
      };
    };
    sum(p, dy, x, ChannelSum{shifts, shift}, ChannelSum{slopes, slope});
  });
}

// The sum of one row of sums over all chunks.
template <class F> double added(const Channels& l, const F& sums, int row) {
  double all = 0;
  for (std::int64_t k = 0; k < l.chunks; ++k) all += static_cast<double>(sums(k, row));
  return all;
}

// invstd^2 * along, also where the square alone is Inf.
double slope_of(double invstd, double along) {
  return invstd > NormScale<double>::kNearInvstd ? invstd * (invstd * along) : invstd * invstd * along;
}

// What the gradients of a batch norm's channels need.
template <class T> struct ChannelGradients {
  // of the bias and the weight
  std::vector<T> db, dw;
  // dx = (dy - shift - (x - mean) * slope) * scale
  std::vector<T> shifts, slopes;
  bool far = false;  // some channel's numbers are

  explicit ChannelGradients(std::int64_t channels)
      : db(static_cast<std::size_t>(channels)), dw(db.size()), shifts(db.size()), slopes(db.size()) {}

  // sums_of(c)(k, row): the sums of add_gradients over chunk k.
  template <class F, class M> void set(const OpCall& call, const Channels& l, const F& sums_of, const M& mask) {
    const Parameter<T> means(call[3]);
    const Parameter<T> invstd(call[4]);
    const auto n = static_cast<double>(l.count());
    std::vector<Again<T>> again;
    for (std::int64_t channel = 0; channel < l.channels; ++channel) {
      const auto c = static_cast<std::size_t>(channel);
      const auto sums = sums_of(channel);
      const double b = added(l, sums, 0);
      const double w = added(l, sums, 1);
      const auto scale = static_cast<double>(invstd[channel]);
      db[c] = static_cast<T>(b);
      dw[c] = static_cast<T>(w * scale);
      shifts[c] = static_cast<T>(b / n);
      slopes[c] = static_cast<T>(slope_of(scale, w / n));
      if (NormScale<T>::of_invstd(invstd[channel]) != 1) again.push_back({channel, NormScale<T>::kDown});
    }
    for_each_again(again, [&](const Again<T>& a) {
      const auto c = static_cast<std::size_t>(a.channel);
      const double along =
          scaled_gradient<T>(call[0], call[1], a.channel, means[a.channel], invstd[a.channel], mask(a.channel));
      dw[c] = static_cast<T>(along);
      slopes[c] = static_cast<T>(static_cast<double>(invstd[a.channel]) * (along / n));
    });
    far = !again.empty();
  }
};

// With M values per channel:
// dx = weight * invstd * (dy - sum(dy) / M - (x - mean) * invstd^2 * sum(dy (x - mean)) / M).
// In inference, mean and invstd are constants, and only the term dy remains. With relu, dy is 0 where y is 0; y is
// recomputed bit for bit and need not be stored.
template <class T, class E, class Y, bool kRelu>
void batch_norm_backward_of(const OpCall& call, const Channels& l, Tensor& dx, Outputs& out) {
  const Parameter<T> means(call[3]);
  const Parameter<T> invstd(call[4]);
  const bool training = call.get<NormAttrs>().training;
  Affine<T> affine(l.channels, call[2], call[5]);
  for (std::int64_t c = 0; c < l.channels; ++c) affine.set(c, invstd[c]);
  ChannelGradients<T> gradients(l.channels);
  const Mask<T, kRelu> mask{means.data(), affine.scales.data(), affine.shifts.data(),
                            rounds_to_zero<T>(call[1].dtype())};
  const Passes<T, E, Y> passes{l, {l.view(call[0]), l}, {l.view(call[1]), l}, {dx, l}, dx.dtype(), true};
  passes.run([&](const Piece& p, const Part<E>& dy, const Part<E>& x,
                 T* sums) { add_gradients(p, dy, x, mask, sums, sums + l.channels); },
             [&](const auto& sums_of) { gradients.set(call, l, sums_of, mask); },
             [&](const Piece& p, const Part<Y>& dy, const Part<Y>& x, const Part<Y>& to) {
               if (gradients.far)
                 return map_far_gradients<T>(p, dy, x, to, mask, [&](std::int64_t c) {
                   const auto i = static_cast<std::size_t>(c);
                   return FarGradient<T>{means[c],         invstd[c], gradients.shifts[i], gradients.slopes[i],
                                         affine.scales[i], training};
                 });
               map_gradients<T>(p, dy, x, to, mask,
                                {gradients.shifts.data(), gradients.slopes.data(), affine.scales.data(), training});
             });
  store_parameter(out[1], gradients.dw.data());
  store_parameter(out[2], gradients.db.data());
}

// Updates running statistics: running = move(running, batch). `move` is mean or var of RunningStatistics.
template <class C, class S, class F> void move_running(const Tensor& running, const Tensor& batch, const F& move) {
  const Parameter<C> before(running);
  const Parameter<S> given(batch);
  std::vector<C> moved(static_cast<std::size_t>(running.numel()));
  for (std::size_t k = 0; k < moved.size(); ++k) moved[k] = move(before.data()[k], given.data()[k]);
  cast_and_store(running.dtype(), moved.data(), running.raw(), running.strides()[0], running.numel(),
                 counts_for(dtype_of<C>, running.dtype()));
}
void batch_norm_update(const OpCall& call, Outputs&) {
  visit_floating(call[0].dtype(), [&]<class C>(C) {
    visit_floating(call[3].dtype(), [&]<class S>(S) {
      const RunningStatistics<C, S> to(call[0].dtype(), call.get<RunningAttrs>());
      move_running<C, S>(call[0], call[3], [&](C running, S batch) { return to.mean(running, batch); });
      move_running<C, S>(call[1], call[4], [&](C running, S batch) { return to.var(running, batch); });
    });
  });
  ++*call[2].data<std::int64_t>();
  bump_version(call[1]);
  bump_version(call[2]);
}

// Calls f with values of three types: T is the compute type, E the type in which the sums read their elements, and Y
// the type in which the last pass reads and writes. A bf16 tensor is read and written without a buffer (E or Y is
// BFloat16), with two exceptions: Y is float if the rounding of y is counted, and both are float if pixels have so few
// channels that loops over them do not pay.
template <class F> void visit_elements(const Tensor& x, const Tensor& y, const Channels& l, const F& f) {
  const bool narrow = x.dtype() == DType::bf16 && y.dtype() == DType::bf16;
  if (y.dtype() == DType::f64) f(double{}, double{}, double{});
  else if (!narrow || (l.inner == 1 && l.channels < Channels::kSideBySide)) f(float{}, float{}, float{});
  else if (counts_for(DType::f32, y.dtype())) f(float{}, BFloat16{}, float{});
  else f(float{}, BFloat16{}, BFloat16{});
}
void batch_norm(const OpCall& call, Outputs& out) {
  if (call[0].size(1) == 0) return;
  const Channels l(call[0]);
  write_row_major(l.view(out[0]), [&](Tensor& y) {
    visit_elements(call[0], y, l, [&]<class T, class E, class Y>(T, E, Y) { batch_norm_of<T, E, Y>(call, l, y, out); });
  });
}
void batch_norm_backward(const OpCall& call, Outputs& out) {
  if (call[1].size(1) == 0) return;
  const Channels l(call[1]);
  write_row_major(l.view(out[0]), [&](Tensor& dx) {
    visit_elements(call[0], dx, l, [&]<class T, class E, class Y>(T, E, Y) {
      if (call.get<NormAttrs>().relu) batch_norm_backward_of<T, E, Y, true>(call, l, dx, out);
      else batch_norm_backward_of<T, E, Y, false>(call, l, dx, out);
    });
  });
}

}  // namespace

void register_batch_norm() {
  set_kernel(OpId::batch_norm, batch_norm);
  set_kernel(OpId::batch_norm_backward, batch_norm_backward);
  set_kernel(OpId::batch_norm_update_, batch_norm_update);
}

}  // namespace gradual::cpu
