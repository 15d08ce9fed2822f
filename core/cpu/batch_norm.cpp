// batch_norm over channels (Ioffe and Szegedy 2015), in f32 (f64 for f64). A chunk that is in the cache is summed up, then what
// it differs from its mean by, and its square, and chunks are merged (Chan, Golub and LeVeque 1983): memory is read once
// for mean and variance.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "../dispatch.h"
#include "../norm_element.h"
#include "kernels.h"
#include "rows.h"

namespace gradual::cpu {
namespace {

Tensor channels_to_back(const Tensor& t) {
  Shape order{0};
  for (int d = 2; d < t.ndim(); ++d) order.push_back(d);
  order.push_back(1);
  return permute(t, order);
}

// Tensors of [N, C, ..] as images of `channels` planes of `inner` elements; where the memory has the channels last, each
// pixel is an image. Kernels take pieces: a group of channels of a chunk of images.
struct Channels {
  bool last;
  std::int64_t images, channels, inner = 1;
  std::int64_t each, chunks;   // images of a chunk
  std::int64_t group, groups;  // channels of a group
  explicit Channels(const Tensor& x)
      : last(!x.is_contiguous() && channels_to_back(x).is_contiguous()), channels(x.size(1)) {
    for (int d = 2; d < x.ndim() && !last; ++d) inner *= x.size(d);
    images = x.numel() > 0 ? x.numel() / (channels * inner) : 0;
    each = std::max<std::int64_t>(1, inner > 1 ? kChunk / inner : 8 * kChunk / channels);
    chunks = (images + each - 1) / each;
    group = inner > 1 ? std::clamp<std::int64_t>(kTogether / inner, 1, channels) : channels;
    groups = (channels + group - 1) / group;
  }
  Tensor view(const Tensor& t) const { return last ? channels_to_back(t) : t; }  // row-major if t lies like x
  std::int64_t count() const { return images * inner; }                          // of a channel's elements
  std::int64_t count(std::int64_t chunk) const { return std::min(each, images - chunk * each) * inner; }

 private:
  static constexpr std::int64_t kChunk = 512;      // elements of a channel
  static constexpr std::int64_t kTogether = 1024;  // of an image's group, at least: memory likes them in a row
};

struct Piece {
  std::int64_t image, images, channel, channels, inner;
};

// Where a piece of a tensor lies: its images are `stride` elements apart.
template <class T> struct Part {
  T* data;
  std::int64_t stride;
  T* image(std::int64_t i) const { return data + i * stride; }
};

// A tensor's pieces: where they lie, or in a buffer where the dtype is not T.
template <class T> class Images {
 public:
  Images(const Tensor& t, const Channels& l) : tensor_(row_major(t)), dense_(tensor_), l_(l) {}
  bool defined() const { return tensor_.defined(); }
  bool direct() const { return tensor_.dtype() == dtype_of<T>; }
  Part<T> load(const Piece& p, T* buffer) const {
    const Part<T> part = target(p, buffer);
    for_runs(p, [&](std::int64_t i, std::int64_t n) { dense_.load(at(p, i), n, part.image(i)); });
    return part;
  }
  // Not loaded.
  Part<T> target(const Piece& p, T* buffer) const {
    return {dense_.target(at(p, 0), buffer), (direct() ? l_.channels : p.channels) * l_.inner};
  }
  void store(const Piece& p, const Part<T>& part, CastCounts* counts) const {
    for_runs(p, [&](std::int64_t i, std::int64_t n) { dense_.store(part.image(i), at(p, i), n, counts); });
  }
  // A piece that comes next: processors fetch ahead within a page, and a group's next image lies in another.
  void fetch(const Piece& p) const {
    const std::int64_t bytes = p.channels * l_.inner * static_cast<std::int64_t>(size_of(tensor_.dtype()));
    for (std::int64_t i = 0; i < p.images; ++i)
      for (std::int64_t line = 0; line < bytes; line += 64)
        __builtin_prefetch(static_cast<const char*>(dense_.at(at(p, i))) + line, 0, 2);
  }

 private:
  // f(first image, elements) for what lies together.
  template <class F> void for_runs(const Piece& p, const F& f) const {
    if (direct()) return;
    if (p.channels == l_.channels) return f(0, p.images * l_.channels * l_.inner);
    for (std::int64_t i = 0; i < p.images; ++i) f(i, p.channels * l_.inner);
  }
  std::int64_t at(const Piece& p, std::int64_t i) const { return ((p.image + i) * l_.channels + p.channel) * l_.inner; }

  Tensor tensor_;
  Dense<T> dense_;
  const Channels& l_;
};

// sums[c] = the sum of f(c)(a, b) over channel c of a piece.
template <class T, class F> void sum(const Piece& p, const Part<T>& a, const Part<T>& b, T* sums, const F& f) {
  if (p.inner > 1) {
    for (std::int64_t c = 0; c < p.channels; ++c) {
      const auto g = f(c);
      Lanes<T> lanes;
      for (std::int64_t i = 0; i < p.images; ++i) {
        const T *const x = a.image(i) + c * p.inner, *const y = b.image(i) + c * p.inner;
        lanes.add(p.inner, [=](std::int64_t k) { return g(x[k], y[k]); });
      }
      sums[c] = lanes.sum();
    }
    return;
  }
  std::fill_n(sums, p.channels, T{0});
  std::int64_t i = 0;
  for (; i + 4 <= p.images; i += 4) {
    const T *const x = a.image(i), *const y = b.image(i);
    const auto value = [=](std::int64_t k, std::int64_t c) { return f(c)(x[k * a.stride + c], y[k * b.stride + c]); };
#pragma omp simd
    for (std::int64_t c = 0; c < p.channels; ++c) sums[c] += (value(0, c) + value(1, c)) + (value(2, c) + value(3, c));
  }
  for (; i < p.images; ++i)
#pragma omp simd
    for (std::int64_t c = 0; c < p.channels; ++c) sums[c] += f(c)(a.image(i)[c], b.image(i)[c]);
}

// y = f(c)(a, b) for channel c of a piece.
template <class T, class F> void map(const Piece& p, const Part<T>& a, const Part<T>& b, const Part<T>& y, const F& f) {
  for (std::int64_t i = 0; i < p.images; ++i) {
    const T *as = a.image(i), *bs = b.image(i);
    T* to = y.image(i);
    if (p.inner == 1) {
#pragma omp simd
      for (std::int64_t c = 0; c < p.channels; ++c) to[c] = f(c)(as[c], bs[c]);
      continue;
    }
    for (std::int64_t c = 0; c < p.channels; ++c, as += p.inner, bs += p.inner, to += p.inner) {
      const auto g = f(c);
#pragma omp simd
      for (std::int64_t k = 0; k < p.inner; ++k) to[k] = g(as[k], bs[k]);
    }
  }
}

// For every piece partial(piece, a, b, sums), which leaves kRows rows of sums for its channels; for every channel
// finish(channel, chunk -> those sums); for every piece apply(piece, a, b, y). A group of channels is gone through at a time, for
// its numbers may then be in a cache still; where these are too few for the threads, all pieces.
template <class T> struct Passes {
  static constexpr std::int64_t kRows = 3;
  const Channels& l;
  Images<T> a, b, y;
  DType stored;
  bool sums;

  template <class P, class F, class A> void run(const P& partial, const F& finish, const A& apply) const {
    const Scratch scratch(static_cast<std::size_t>(l.chunks * kRows * l.channels) * sizeof(T) + 1);
    T* const all = scratch.as<T>();
    const bool two = b.defined();
    const auto piece = [&](std::int64_t chunk, std::int64_t g) {
      const std::int64_t image = chunk * l.each, channel = g * l.group;
      return Piece{image, std::min(l.each, l.images - image), channel, std::min(l.group, l.channels - channel),
                   l.inner};
    };
    const std::int64_t size = l.each * l.group * l.inner;
    const auto one = [&](std::int64_t chunk, std::int64_t g, bool applies, T* buffer, CastCounts* counts) {
      const Piece p = piece(chunk, g);
      const Part<T> as = a.load(p, buffer), bs = two ? b.load(p, buffer + size) : as;
      if (!applies) return partial(p, as, bs, all + chunk * kRows * l.channels + p.channel);
      const Part<T> to = y.target(p, buffer + 2 * size);
      apply(p, as, bs, to);
      y.store(p, to, counts);
    };
    const auto fetch = [&](const Piece& p) {
      a.fetch(p);
      if (two) b.fetch(p);
    };
    const auto with_buffer = [&](const auto& f) {
      const bool direct = a.direct() && y.direct() && (!two || b.direct());
      const Scratch buffer(direct ? 1 : static_cast<std::size_t>(3 * size) * sizeof(T));
      f(buffer.as<T>());
    };
    const auto finish_group = [&](std::int64_t g) {
      for (std::int64_t c = g * l.group; c < std::min(l.channels, (g + 1) * l.group); ++c)
        finish(c, [&](std::int64_t chunk, int which) { return all[(chunk * kRows + which) * l.channels + c]; });
    };
    const int threads = num_threads();
    if (l.groups % threads == 0 || l.groups > 8 * threads) {
      const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, l.chunks * size));
      parallel_counted(l.groups, grain, dtype_of<T>, stored, [&](std::int64_t g, std::int64_t end, CastCounts* counts) {
        with_buffer([&](T* buffer) {
          for (; g < end; ++g) {
            for (const bool applies : {false, true}) {
              for (std::int64_t k = 0; (sums || applies) && k < l.chunks; ++k) {
                if (k + 1 < l.chunks) fetch(piece(k + 1, g));
                one(k, g, applies, buffer, counts);
              }
              if (!applies) finish_group(g);
            }
          }
        });
      });
      return;
    }
    const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, size));
    const auto each_piece = [&](bool applies) {
      parallel_counted(l.chunks * l.groups, grain, dtype_of<T>, stored,
                       [&](std::int64_t i, std::int64_t end, CastCounts* counts) {
                         with_buffer([&](T* buffer) {
                           for (; i < end; ++i) one(i / l.groups, i % l.groups, applies, buffer, counts);
                         });
                       });
    };
    if (sums) each_piece(false);
    for (std::int64_t g = 0; g < l.groups; ++g) finish_group(g);
    each_piece(true);
  }
};

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

template <class T> void batch_norm_of(const OpCall& call, const Channels& l, Tensor& y, Outputs& out) {
  const auto& a = call.get<NormAttrs>();
  T* const mean = out[1].data<T>();
  T* const invstd = out[2].data<T>();
  const Parameter<T> given_mean(a.training ? Tensor() : call[3]), given_var(a.training ? Tensor() : call[4]);
  Affine<T> affine(l.channels, call[1], call[2]);
  const T cut = a.relu ? -rounds_to_zero<T>(y.dtype()) : -std::numeric_limits<T>::infinity();

  const Passes<T> passes{l, {l.view(call[0]), l}, {{}, l}, {y, l}, y.dtype(), a.training};
  passes.run(
      [&](const Piece& p, const Part<T>& x, const Part<T>&, T* sums) {
        vectorized([=, next = l.channels] {
          sum<T>(p, x, x, sums, [](std::int64_t) { return [](T v, T) { return v; }; });
          for (std::int64_t c = 0; c < p.channels; ++c) sums[c] /= static_cast<T>(p.images * p.inner);
          sum<T>(p, x, x, sums + next, [=](std::int64_t c) { return [near = sums[c]](T v, T) { return v - near; }; });
          sum<T>(p, x, x, sums + 2 * next,
                 [=](std::int64_t c) { return [near = sums[c]](T v, T) { return (v - near) * (v - near); }; });
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
      [&](const Piece& p, const Part<T>& x, const Part<T>&, const Part<T>& to) {
        vectorized([=, m = mean + p.channel, scale = affine.scales.data() + p.channel,
                    shift = affine.shifts.data() + p.channel] {
          map<T>(p, x, x, to, [=](std::int64_t c) {
            return [=](T v, T) {  // with copies of a channel's numbers g++ 12 makes branches of it
              const T value = (v - m[c]) * scale[c] + shift[c];
              return value < cut ? T{0} : value;
            };
          });
        });
      });
}

// With M values a channel: dx = weight * invstd * (dy - sum(dy) / M - (x - mean) * invstd^2 * sum(dy (x - mean)) / M);
// not training, mean and invstd are constants and the first term stands alone. Under relu dy counts where y is above 0;
// y is computed again, bit for bit, and need not be kept.
template <class T, bool kRelu>
void batch_norm_backward_of(const OpCall& call, const Channels& l, Tensor& dx, Outputs& out) {
  const Parameter<T> means(call[3]);
  const Parameter<T> invstd(call[4]);
  const bool training = call.get<NormAttrs>().training;
  const T zero = rounds_to_zero<T>(call[1].dtype());
  const auto channels = static_cast<std::size_t>(l.channels);
  Affine<T> affine(l.channels, call[2], call[5]);
  for (std::int64_t c = 0; c < l.channels; ++c) affine.set(c, invstd[c]);
  std::vector<T> db(channels), dw(channels), shifts(channels), slopes(channels);
  // A channel's dy where y is above 0.
  const auto mask = [means = means.data(), scales = affine.scales.data(), biases = affine.shifts.data(),
                     zero](std::int64_t c) {
    return [=, mean = means[c], scale = scales[c], bias = biases[c]](T dy, T x) {
      return !kRelu || (x - mean) * scale + bias > zero ? dy : T{0};
    };
  };

  const Passes<T> passes{l, {l.view(call[0]), l}, {l.view(call[1]), l}, {dx, l}, dx.dtype(), true};
  passes.run(
      [&](const Piece& p, const Part<T>& dy, const Part<T>& x, T* sums) {
        vectorized([=, next = l.channels, mean = means.data()] {
          const auto first = p.channel;
          sum<T>(p, dy, x, sums, [=](std::int64_t c) { return mask(first + c); });
          sum<T>(p, dy, x, sums + next, [=](std::int64_t c) {
            return [=, masked = mask(first + c), center = mean[first + c]](T g, T v) {
              return masked(g, v) * (v - center);
            };
          });
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
      [&](const Piece& p, const Part<T>& dy, const Part<T>& x, const Part<T>& to) {
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

void register_batch_norm() {
  set_kernel(OpId::batch_norm, batch_norm);
  set_kernel(OpId::batch_norm_backward, batch_norm_backward);
}

}  // namespace gradual::cpu
