// batch_norm over channels (Ioffe and Szegedy 2015), in f32 (f64 for f64). A chunk that is in the cache is summed up, then what
// it differs from its mean by, and its square, and chunks are merged (Chan, Golub and LeVeque 1983): memory is read once
// for mean and variance.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "../formats/float_types.h"
#include "../kernels/norm_element.h"
#include "../ops/dispatch.h"
#include "kernels.h"
#include "rows.h"

namespace gradual::cpu {
namespace {

Tensor channels_to_back(const Tensor& t) {
  Shape order{0};
  for (int d = 2; d < t.dim(); ++d) order.push_back(d);
  order.push_back(1);
  return permute(t, order);
}

// Tensors of [N, C, ..] as images of `channels` planes of `inner` elements; where the memory has the channels last, each
// pixel is an image. Kernels take pieces: a group of channels of a chunk of images.
struct Channels {
  static constexpr int kSideBySide = 16;  // where the channels are last, at most
  bool last;
  std::int64_t images, channels, inner = 1;
  std::int64_t each, chunks;   // images of a chunk
  std::int64_t group, groups;  // channels of a group
  explicit Channels(const Tensor& x)
      : last(!x.is_contiguous() && channels_to_back(x).is_contiguous()), channels(x.size(1)) {
    for (int d = 2; d < x.dim() && !last; ++d) inner *= x.size(d);
    images = x.numel() > 0 ? x.numel() / (channels * inner) : 0;
    group = inner > 1 ? std::clamp<std::int64_t>(kTogether / inner, 1, channels) : channels;
    each = std::min(kChunk / (inner > 1 ? inner : channels), kPiece / (group * inner));
    each = std::clamp<std::int64_t>(each, 1, std::max<std::int64_t>(1, images));
    chunks = (images + each - 1) / each;
    groups = (channels + group - 1) / group;
  }
  Tensor view(const Tensor& t) const { return last ? channels_to_back(t) : t; }  // row-major if t lies like x
  std::int64_t count() const { return images * inner; }                          // of a channel's elements
  std::int64_t count(std::int64_t chunk) const { return std::min(each, images - chunk * each) * inner; }

 private:
  static constexpr std::int64_t kChunk = 4096;     // elements of a channel, or, channels last, of all
  static constexpr std::int64_t kTogether = 1024;  // of an image's group, at least: memory likes them in a row
  static constexpr std::int64_t kPiece = 65536;    // of a piece, at most, or one image's
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

// A tensor's pieces as E: where they lie, or, of an E that is computed in, in a buffer where the dtype is another.
template <class E> class Images {
 public:
  Images(const Tensor& t, const Channels& l) : tensor_(row_major(t)), dense_(tensor_), l_(l) {}
  template <class Other> Images<Other> as() const { return {tensor_, l_}; }
  bool defined() const { return tensor_.defined(); }
  bool direct() const { return tensor_.dtype() == dtype_of<E>; }
  Part<E> load(const Piece& p, E* buffer) const {
    const Part<E> part = target(p, buffer);
    if constexpr (kBuffers)
      for_runs(p, [&](std::int64_t i, std::int64_t n) { dense_.load(at(p, i), n, part.image(i)); });
    return part;
  }
  // Not loaded.
  Part<E> target(const Piece& p, E* buffer) const {
    return {dense_.target(at(p, 0), buffer), (direct() ? l_.channels : p.channels) * l_.inner};
  }
  void store(const Piece& p, const Part<E>& part, CastCounts* counts) const {
    if constexpr (kBuffers)
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

  static constexpr bool kBuffers = std::is_floating_point_v<E>;
  Tensor tensor_;
  Dense<E> dense_;
  const Channels& l_;
};

// Of bf16 numbers two neighbours at a time, in 32 bits: a loop's vectors then are as wide as those of its floats.
struct Two {
  static std::uint32_t load(const BFloat16* x, std::int64_t pair) {
    std::uint32_t bits;
    std::memcpy(&bits, x + 2 * pair, sizeof bits);
    return bits;
  }
  static float first(const BFloat16* x, std::int64_t pair) { return std::bit_cast<float>(load(x, pair) << 16); }
  static float second(const BFloat16* x, std::int64_t pair) { return std::bit_cast<float>(load(x, pair) & 0xffff0000); }
  static void store(float first, float second, BFloat16* to, std::int64_t pair) {
    const std::uint32_t bits = BFloat16(first).bits | std::uint32_t{BFloat16(second).bits} << 16;
    std::memcpy(to + 2 * pair, &bits, sizeof bits);
  }
};

// To each sum f(x[k], y[k]) for k < n, in one pass.
template <class T, class E, class... F>
void add_run(std::int64_t n, const E* x, const E* y, const Summand<T, F>&... s) {
  if constexpr (std::is_same_v<E, BFloat16>) {
    const auto first = [=](const auto& f) {
      return [=](std::int64_t k) { return f(Two::first(x, k), Two::first(y, k)); };
    };
    const auto second = [=](const auto& f) {
      return [=](std::int64_t k) { return f(Two::second(x, k), Two::second(y, k)); };
    };
    Lanes<T>::add(n / 2, s.sum.of(first(s.f))..., s.sum.of(second(s.f))...);
    if (n % 2 != 0) Lanes<T>::add(1, s.sum.of([=, f = s.f](std::int64_t) { return f(T(x[n - 1]), T(y[n - 1])); })...);
  } else {
    Lanes<T>::add(n, s.sum.of([=, f = s.f](std::int64_t k) { return f(x[k], y[k]); })...);
  }
}
// to[k] = f(x[k], y[k]).
template <class T, class E, class F> void map_run(std::int64_t n, const E* x, const E* y, E* to, const F& f) {
  if constexpr (std::is_same_v<E, BFloat16>) {
#pragma omp simd
    for (std::int64_t k = 0; k < n / 2; ++k)
      Two::store(f(Two::first(x, k), Two::first(y, k)), f(Two::second(x, k), Two::second(y, k)), to, k);
    if (n % 2 != 0) to[n - 1] = E(f(T(x[n - 1]), T(y[n - 1])));
  } else {
#pragma omp simd
    for (std::int64_t k = 0; k < n; ++k) to[k] = f(x[k], y[k]);
  }
}

// To sums[c], the sum of f(c)(a, b) over channel c of a piece.
template <class T, class F> struct ChannelSum {
  T* sums;
  F f;
};
template <class T, class F> ChannelSum(T*, F) -> ChannelSum<T, F>;
// f(first, n) for groups of n channels that lie side by side, the last of which may have been in the one before.
template <class F> void for_side_by_side(std::int64_t channels, const F& f) {
  constexpr int kMost = Channels::kSideBySide, kSome = 4;
  const auto groups = [&](auto n) {
    for (std::int64_t c = 0; c < channels; c += n) f(std::min(c, channels - n), n);
  };
  if (channels >= kMost) groups(std::integral_constant<int, kMost>{});
  else if (channels >= kSome) groups(std::integral_constant<int, kSome>{});
  else groups(std::integral_constant<int, 1>{});
}
// The sums of N channels from c on, in registers while images pass.
template <class T, class E, class N, class F>
void add_images(std::int64_t images, const Part<E>& a, const Part<E>& b, std::int64_t c, N n,
                const ChannelSum<T, F>& s) {
  T total[N::value] = {};
  std::int64_t i = 0;
  for (; i + 4 <= images; i += 4) {
    const E *const x0 = a.image(i) + c, *const x1 = a.image(i + 1) + c, *const x2 = a.image(i + 2) + c,
                   *const x3 = a.image(i + 3) + c;
    const E *const y0 = b.image(i) + c, *const y1 = b.image(i + 1) + c, *const y2 = b.image(i + 2) + c,
                   *const y3 = b.image(i + 3) + c;
#pragma omp simd
    for (int k = 0; k < n; ++k) {
      const auto f = s.f(c + k);
      total[k] += (f(T(x0[k]), T(y0[k])) + f(T(x1[k]), T(y1[k]))) + (f(T(x2[k]), T(y2[k])) + f(T(x3[k]), T(y3[k])));
    }
  }
  for (; i < images; ++i) {
    const E *const x = a.image(i) + c, *const y = b.image(i) + c;
#pragma omp simd
    for (int k = 0; k < n; ++k) total[k] += s.f(c + k)(T(x[k]), T(y[k]));
  }
  std::copy_n(total, n, s.sums + c);
}
template <class T, class E, class... F>
void sum(const Piece& p, const Part<E>& a, const Part<E>& b, const ChannelSum<T, F>&... s) {
  if (p.inner > 1) {
    for (std::int64_t c = 0; c < p.channels; ++c) {
      const auto channel = [&](auto... lanes) {
        for (std::int64_t i = 0; i < p.images; ++i) {
          const E *const x = a.image(i) + c * p.inner, *const y = b.image(i) + c * p.inner;
          add_run<T>(p.inner, x, y, lanes.of(s.f(c))...);
        }
        ((s.sums[c] = lanes.sum()), ...);
      };
      channel((static_cast<void>(s), Lanes<T>())...);
    }
    return;
  }
  for_side_by_side(p.channels, [&](std::int64_t c, auto n) { (add_images<T>(p.images, a, b, c, n, s), ...); });
}

// x or 0, without a branch.
inline float kept(float x, bool keep) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & -static_cast<std::uint32_t>(keep));
}
inline double kept(double x, bool keep) {
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(x) & -static_cast<std::uint64_t>(keep));
}

inline void put(float value, float& to) { to = value; }
inline void put(double value, double& to) { to = value; }
inline void put(float value, BFloat16& to) { to.bits = BFloat16(value).bits; }

// y = f(c)(a, b) for channel c of a piece.
template <class T, class E, class F>
void map(const Piece& p, const Part<E>& a, const Part<E>& b, const Part<E>& y, const F& f) {
  if (p.inner > 1) {
    for (std::int64_t i = 0; i < p.images; ++i) {
      const E *as = a.image(i), *bs = b.image(i);
      E* to = y.image(i);
      for (std::int64_t c = 0; c < p.channels; ++c, as += p.inner, bs += p.inner, to += p.inner)
        map_run<T>(p.inner, as, bs, to, f(c));
    }
    return;
  }
  const auto side_by_side = [&](std::int64_t c, auto n) {
    for (std::int64_t i = 0; i < p.images; ++i) {
      const E *const as = a.image(i) + c, *const bs = b.image(i) + c;
      E* const to = y.image(i) + c;
#pragma omp simd
      for (int k = 0; k < n; ++k) put(f(c + k)(T(as[k]), T(bs[k])), to[k]);
    }
  };
  for_side_by_side(p.channels, side_by_side);
}

// For every piece partial(piece, a, b, sums), which leaves kRows rows of sums for its channels; for every channel
// finish(channel, chunk -> those sums); for every piece apply(piece, a, b, y). A group of channels is gone through at a time, for
// its numbers may then be in a cache still; where these are too few for the threads, all pieces. Sums are of Es, and y is
// made as Ys: an observer that counts y's rounding wants a buffer there, and must not change the order of a sum.
template <class T, class E, class Y> struct Passes {
  static constexpr std::int64_t kRows = 3;
  const Channels& l;
  Images<E> a, b;
  Images<Y> y;
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
    const Images<Y> last_a = a.template as<Y>(), last_b = b.template as<Y>();
    const auto one = [&](std::int64_t chunk, std::int64_t g, bool applies, Y* buffer, CastCounts* counts) {
      const Piece p = piece(chunk, g);
      if (!applies) {
        T* const to = all + chunk * kRows * l.channels + p.channel;
        E *of_a = nullptr, *of_b = nullptr;  // E without buffers
        if constexpr (std::is_same_v<E, Y>) of_a = buffer, of_b = buffer + size;
        const Part<E> as = a.load(p, of_a);
        return partial(p, as, two ? b.load(p, of_b) : as, to);
      }
      const Part<Y> as = last_a.load(p, buffer), bs = two ? last_b.load(p, buffer + size) : as;
      const Part<Y> to = y.target(p, buffer + 2 * size);
      apply(p, as, bs, to);
      y.store(p, to, counts);
    };
    const auto fetch = [&](const Piece& p) {
      a.fetch(p);
      if (two) b.fetch(p);
    };
    const auto with_buffer = [&](const auto& f) {
      const bool direct = last_a.direct() && y.direct() && (!two || last_b.direct());
      const Scratch buffer(direct ? 1 : static_cast<std::size_t>(3 * size) * sizeof(Y));
      f(buffer.as<Y>());
    };
    const auto finish_group = [&](std::int64_t g) {
      for (std::int64_t c = g * l.group; c < std::min(l.channels, (g + 1) * l.group); ++c)
        finish(c, [&](std::int64_t chunk, int which) { return all[(chunk * kRows + which) * l.channels + c]; });
    };
    const int threads = num_threads();
    if (l.groups % threads == 0 || l.groups > 8 * threads) {
      const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, l.chunks * size));
      parallel_counted(l.groups, grain, dtype_of<T>, stored, [&](std::int64_t g, std::int64_t end, CastCounts* counts) {
        with_buffer([&](Y* buffer) {
          for (; g < end; ++g) {
            for (const bool applies : {false, true}) {
              for (std::int64_t k = 0; (sums || applies) && k < l.chunks; ++k) {
                if (!applies && k + 1 < l.chunks) fetch(piece(k + 1, g));
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
                         with_buffer([&](Y* buffer) {
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
            return [=](T v, T) {  // with copies of a channel's numbers g++ 12 makes branches of it
              const T value = (v - m[c]) * scale[c] + shift[c];
              return value < cut ? T{0} : value;
            };
          });
        });
      });
}

// With M values a channel: dx = weight * invstd * (dy - sum(dy) / M - (x - mean) * invstd^2 * sum(dy (x - mean)) / M);
// not training, mean and invstd are constants and the first term stands alone. Under relu dy counts unless y is 0;
// y is computed again, bit for bit, and need not be kept.
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
  // A channel's dy unless y is 0.
  const auto mask = [means = means.data(), scales = affine.scales.data(), biases = affine.shifts.data(),
                     zero](std::int64_t c) {
    return [=](T dy, T x) {  // of copies of a channel's numbers g++ 12 makes no vectors
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

// Moves running statistics by `move`, one of the pair in RunningStatistics.
template <class C, class S, class F> void move_running(const Tensor& running, const Tensor& batch, const F& move) {
  CastCounts* const counts = counts_for(dtype_of<C>, running.dtype());
  C moved[kBlock];
  S given[kBlock];
  const auto at = [](const Tensor& t, std::int64_t i) {
    return static_cast<char*>(t.raw()) + i * t.strides()[0] * static_cast<std::int64_t>(size_of(t.dtype()));
  };
  for (std::int64_t i = 0; i < running.numel(); i += kBlock) {
    const std::int64_t n = std::min(running.numel() - i, kBlock);
    load(running.dtype(), at(running, i), running.strides()[0], moved, n);
    load(batch.dtype(), at(batch, i), batch.strides()[0], given, n);
    for (std::int64_t k = 0; k < n; ++k) moved[k] = move(moved[k], given[k]);
    store(running.dtype(), moved, at(running, i), running.strides()[0], n, counts);
  }
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

// f(a number of the type to compute in, one of what sums are of, one of what y is made as): bf16 is converted on the way,
// but through a buffer where its rounding is counted, or a pixel has so few channels that loops over them are not worth it
// (there sums of either have one order).
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
