// batch_norm over channels (Ioffe and Szegedy 2015), in f32 (f64 for f64). For mean and variance each chunk is read
// from memory once. While it is in the cache, a first pass computes its mean, and a second one the sums of the
// deviations from that mean and of their squares. The results of the chunks are merged as in Chan, Golub and LeVeque
// (1983).
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

template <class T, class E, class Y>
void batch_norm_of(const OpCall& call, const Channels& l, Tensor& y, Outputs& out) {
  const auto& a = call.get<NormAttrs>();
  T* const mean = out[1].data<T>();
  T* const invstd = out[2].data<T>();
  const Parameter<T> given_mean(a.training ? Tensor() : call[3]), given_var(a.training ? Tensor() : call[4]);
  Affine<T> affine(l.channels, call[1], call[2]);
  const T cut = a.relu ? -rounds_to_zero<T>(y.dtype()) : -std::numeric_limits<T>::infinity();

  const Passes<T, E, Y> passes{l, {l.view(call[0]), l}, {{}, l}, {y, l}, y.dtype(), a.training};
  passes.run(
      [&](const Piece& p, const Part<E>& x, const Part<E>&, T* sums) {
        vectorized([=, next = l.channels] {
          sum(p, x, x, ChannelSum{sums, [](std::int64_t) { return [](T v, T) { return v; }; }});
          for (std::int64_t c = 0; c < p.channels; ++c) sums[c] /= static_cast<T>(p.images * p.inner);
          const auto rest = [=](std::int64_t c) { return [near = sums[c]](T v, T) { return v - near; }; };
          const auto square = [=](std::int64_t c) {
            return [near = sums[c]](T v, T) { return (v - near) * (v - near); };
          };
          sum(p, x, x, ChannelSum{sums + next, rest}, ChannelSum{sums + 2 * next, square});
        });
      },
      [&](std::int64_t c, const auto& sums) {
        double center = given_mean ? static_cast<double>(given_mean[c]) : 0;
        double squares = given_var ? static_cast<double>(given_var[c]) : 0;
        if (a.training) {
          const auto n = [&](std::int64_t k) { return static_cast<double>(l.count(k)); };
          const auto rest = [&](std::int64_t k) { return static_cast<double>(sums(k, 1)) / n(k); };
          const auto mean_of = [&](std::int64_t k) { return static_cast<double>(sums(k, 0)) + rest(k); };
          for (std::int64_t k = 0; k < l.chunks; ++k) center += n(k) * mean_of(k);
          center /= static_cast<double>(l.count());
          for (std::int64_t k = 0; k < l.chunks; ++k) {
            const double off = mean_of(k) - center;
            squares += static_cast<double>(sums(k, 2)) + n(k) * (off * off - rest(k) * rest(k));
          }
          squares /= static_cast<double>(l.count());
        }
        mean[c] = static_cast<T>(center);
        invstd[c] = 1 / std::sqrt(static_cast<T>(squares) + static_cast<T>(a.eps));
        affine.set(c, invstd[c]);
      },
      [&](const Piece& p, const Part<Y>& x, const Part<Y>&, const Part<Y>& to) {
        vectorized([=, m = mean + p.channel, scale = affine.scales.data() + p.channel,
                    shift = affine.shifts.data() + p.channel] {
          map<T>(p, x, x, to, [=](std::int64_t c) {
            return [=](T v, T) {  // with local copies of m[c] and the others g++ 12 emits branches
              const T value = (v - m[c]) * scale[c] + shift[c];
              return value < cut ? T{0} : value;
            };
          });
        });
      });
}

// With M values per channel:
// dx = weight * invstd * (dy - sum(dy) / M - (x - mean) * invstd^2 * sum(dy (x - mean)) / M).
// In inference, mean and invstd are constants, and only the term dy remains. With relu, dy is 0 where y is 0; y is
// recomputed bit for bit and need not be stored.
template <class T, class E, class Y, bool kRelu>
void batch_norm_backward_of(const OpCall& call, const Channels& l, Tensor& dx, Outputs& out) {
  const Parameter<T> means(call[3]);
  const Parameter<T> invstd(call[4]);
  const bool training = call.get<NormAttrs>().training;
  const T zero = rounds_to_zero<T>(call[1].dtype());
  const auto channels = static_cast<std::size_t>(l.channels);
  Affine<T> affine(l.channels, call[2], call[5]);
  for (std::int64_t c = 0; c < l.channels; ++c) affine.set(c, invstd[c]);
  std::vector<T> db(channels), dw(channels), shifts(channels), slopes(channels);
  // dy, or 0 where relu made y 0.
  const auto mask = [means = means.data(), scales = affine.scales.data(), biases = affine.shifts.data(),
                     zero](std::int64_t c) {
    return [=](T dy, T x) {  // with local copies of means[c] and the others g++ 12 does not vectorise
      return kRelu ? kept(dy, !((x - means[c]) * scales[c] + biases[c] <= zero)) : dy;
    };
  };

  const Passes<T, E, Y> passes{l, {l.view(call[0]), l}, {l.view(call[1]), l}, {dx, l}, dx.dtype(), true};
  passes.run(
      [&](const Piece& p, const Part<E>& dy, const Part<E>& x, T* sums) {
        vectorized([=, next = l.channels, mean = means.data(), first = p.channel] {
          const auto shift = [=](std::int64_t c) { return mask(first + c); };
          const auto slope = [=](std::int64_t c) {
            return [=, masked = mask(first + c), center = mean[first + c]](T g, T v) {
              return masked(g, v) * (v - center);
            };
          };
          sum(p, dy, x, ChannelSum{sums, shift}, ChannelSum{sums + next, slope});
        });
      },
      [&](std::int64_t channel, const auto& sums) {
        const auto c = static_cast<std::size_t>(channel);
        double b = 0, w = 0;
        for (std::int64_t k = 0; k < l.chunks; ++k)
          b += static_cast<double>(sums(k, 0)), w += static_cast<double>(sums(k, 1));
        const auto n = static_cast<double>(l.count());
        const auto scale = static_cast<double>(invstd[channel]);
        db[c] = static_cast<T>(b), dw[c] = static_cast<T>(w * scale);
        shifts[c] = static_cast<T>(b / n);
        slopes[c] = static_cast<T>(scale * scale * (w / n));
      },
      [&](const Piece& p, const Part<Y>& dy, const Part<Y>& x, const Part<Y>& to) {
        vectorized([=, first = p.channel, mean = means.data(), shift = shifts.data(), slope = slopes.data(),
                    scale = affine.scales.data()] {
          const auto along = [=](auto trains) {
            map<T>(p, dy, x, to, [=](std::int64_t at) {
              const std::int64_t c = first + at;
              return
                  [=, masked = mask(c), center = mean[c], down = shift[c], by = slope[c], times = scale[c]](T g, T v) {
                    const T rest = trains ? masked(g, v) - down - (v - center) * by : masked(g, v);
                    return rest * times;
                  };
            });
          };
          training ? along(std::true_type{}) : along(std::false_type{});
        });
      });
  store_parameter(out[1], dw.data());
  store_parameter(out[2], db.data());
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
