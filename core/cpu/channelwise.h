// Passes over tensors by channel, in row-major and in channels-last memory: sums of each channel, then a map of each
// element. Tensors are cut by shape alone into pieces that stay in a cache; threads share the pieces.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "../formats/float_types.h"
#include "rows.h"

namespace gradual::cpu::channelwise {

inline Tensor channels_to_back(const Tensor& t) {
  Shape order{0};
  for (int d = 2; d < t.dim(); ++d) order.push_back(d);
  order.push_back(1);
  return permute(t, order);
}

// A tensor [N, C, ..] as images of `channels` planes of `inner` elements each. In channels-last memory each pixel is an
// image, and `inner` is 1. A piece is a group of channels of a chunk of images.
struct Channels {
  static constexpr int kSideBySide = 16;  // channels that a loop handles together if `inner` is 1, at most
  bool last;                              // the memory is channels-last
  std::int64_t images, channels, inner = 1;
  std::int64_t each, chunks;   // images per chunk, number of chunks
  std::int64_t group, groups;  // channels per group, number of groups
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
  Tensor view(const Tensor& t) const { return last ? channels_to_back(t) : t; }  // row-major if t has x's memory order
  std::int64_t count() const { return images * inner; }                          // elements per channel
  std::int64_t count(std::int64_t chunk) const { return std::min(each, images - chunk * each) * inner; }

 private:
  static constexpr std::int64_t kChunk = 4096;     // elements per chunk: of each channel, or of all if `inner` is 1
  static constexpr std::int64_t kTogether = 1024;  // adjacent elements of a group in one image, about
  static constexpr std::int64_t kPiece = 65536;    // elements per piece, at most, unless a group has more in one image
};

struct Piece {
  std::int64_t image, images, channel, channels, inner;
};

// The memory of a piece: images begin `stride` elements apart.
template <class T> struct Part {
  T* data;
  std::int64_t stride;
  T* image(std::int64_t i) const { return data + i * stride; }
};

// The pieces of a tensor as values of E: in place if the dtype is E's, else converted in a buffer. Conversion needs E
// to be float or double.
template <class E> class Pieces {
 public:
  Pieces(const Tensor& t, const Channels& l) : tensor_(row_major(t)), dense_(tensor_), l_(l) {}
  template <class Other> Pieces<Other> as() const { return {tensor_, l_}; }
  bool defined() const { return tensor_.defined(); }
  bool direct() const { return tensor_.dtype() == dtype_of<E>; }
  Part<E> load(const Piece& p, E* buffer) const {
    const Part<E> part = target(p, buffer);
    if constexpr (kBuffers)
      for_runs(p, [&](std::int64_t i, std::int64_t n) { dense_.load(at(p, i), n, part.image(i)); });
    return part;
  }
  // The memory for a piece's results; it is not loaded.
  Part<E> target(const Piece& p, E* buffer) const {
    return {dense_.target(at(p, 0), buffer), (direct() ? l_.channels : p.channels) * l_.inner};
  }
  void store(const Piece& p, const Part<E>& part, CastCounts* counts) const {
    if constexpr (kBuffers)
      for_runs(p, [&](std::int64_t i, std::int64_t n) { dense_.store(part.image(i), at(p, i), n, counts); });
  }

 private:
  // Calls f(first image, number of elements) for each run of adjacent elements of a piece, if the piece needs a buffer.
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

// Loads and stores two adjacent bf16 numbers as 32 bits, so that a loop's vectors of bf16 are as wide as those of its
// floats.
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

// Adds f(x[k], y[k]) for k < n to each sum, in one pass.
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

// sums[c] becomes the sum of f(c)(a, b) over the elements of channel c of a piece.
template <class T, class F> struct ChannelSum {
  T* sums;
  F f;
};
template <class T, class F> ChannelSum(T*, F) -> ChannelSum<T, F>;
// Calls f(first, n) for groups of n adjacent channels. The last group may overlap the one before.
template <class F> void for_side_by_side(std::int64_t channels, const F& f) {
  constexpr int kMost = Channels::kSideBySide;
  constexpr int kSome = 4;
  const auto groups = [&](auto n) {
    for (std::int64_t c = 0; c < channels; c += n) f(std::min(c, channels - n), n);
  };
  if (channels >= kMost) groups(std::integral_constant<int, kMost>{});
  else if (channels >= kSome) groups(std::integral_constant<int, kSome>{});
  else groups(std::integral_constant<int, 1>{});
}
// Sums N channels, from channel c on, over all images. The sums stay in registers.
template <class T, class E, class N, class F>
void add_images(std::int64_t images, const Part<E>& a, const Part<E>& b, std::int64_t c, N n,
                const ChannelSum<T, F>& s) {
  T total[N::value] = {};
  std::int64_t i = 0;
  for (; i + 4 <= images; i += 4) {
    const E* const x0 = a.image(i) + c;
    const E* const x1 = a.image(i + 1) + c;
    const E* const x2 = a.image(i + 2) + c;
    const E* const x3 = a.image(i + 3) + c;
    const E* const y0 = b.image(i) + c;
    const E* const y1 = b.image(i + 1) + c;
    const E* const y2 = b.image(i + 2) + c;
    const E* const y3 = b.image(i + 3) + c;
#pragma omp simd
    for (int k = 0; k < n; ++k) {
      const auto f = s.f(c + k);
      total[k] += (f(T(x0[k]), T(y0[k])) + f(T(x1[k]), T(y1[k]))) + (f(T(x2[k]), T(y2[k])) + f(T(x3[k]), T(y3[k])));
    }
  }
  for (; i < images; ++i) {
    const E* const x = a.image(i) + c;
    const E* const y = b.image(i) + c;
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
          const E* const x = a.image(i) + c * p.inner;
          const E* const y = b.image(i) + c * p.inner;
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

// x if `keep`, else 0, without a branch.
template <class T> T kept(T x, bool keep) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  return std::bit_cast<T>(std::bit_cast<Bits>(x) & -static_cast<Bits>(keep));
}

template <class T> void put(T value, T& to) { to = value; }
inline void put(float value, BFloat16& to) { to.bits = BFloat16(value).bits; }

// y = f(c)(a, b) for channel c of a piece.
template <class T, class E, class F>
void map(const Piece& p, const Part<E>& a, const Part<E>& b, const Part<E>& y, const F& f) {
  if (p.inner > 1) {
    for (std::int64_t i = 0; i < p.images; ++i) {
      const E* as = a.image(i);
      const E* bs = b.image(i);
      E* to = y.image(i);
      for (std::int64_t c = 0; c < p.channels; ++c, as += p.inner, bs += p.inner, to += p.inner)
        map_run<T>(p.inner, as, bs, to, f(c));
    }
    return;
  }
  const auto side_by_side = [&](std::int64_t c, auto n) {
    for (std::int64_t i = 0; i < p.images; ++i) {
      const E* const as = a.image(i) + c;
      const E* const bs = b.image(i) + c;
      E* const to = y.image(i) + c;
#pragma omp simd
      for (int k = 0; k < n; ++k) put(f(c + k)(T(as[k]), T(bs[k])), to[k]);
    }
  };
  for_side_by_side(p.channels, side_by_side);
}

// Three steps: partial(piece, a, b, sums) writes up to kRows rows of sums over the channels of each piece;
// finish(sums_of) combines them, with sums_of(channel)(chunk, row); apply(piece, a, b, y) maps each piece. If `sums`
// is false, the first step is skipped. Threads share the pieces. The first step reads values of E, the last
// one values of Y: counting y's rounding needs a buffer in the last step and must not change the order of a sum.
template <class T, class E, class Y> struct Passes {
  static constexpr std::int64_t kRows = 3;
  const Channels& l;
  Pieces<E> a, b;
  Pieces<Y> y;
  DType stored;
  bool sums;

  template <class P, class F, class A> void run(const P& partial, const F& finish, const A& apply) const {
    const Scratch scratch(static_cast<std::size_t>(l.chunks * kRows * l.channels) * sizeof(T) + 1);
    T* const all = scratch.as<T>();
    const Pieces<Y> last_a = a.template as<Y>();
    const Pieces<Y> last_b = b.template as<Y>();
    const auto add = [&](std::int64_t chunk, std::int64_t g, Y* buffer, CastCounts*) {
      const Piece p = piece(chunk, g);
      // bf16 pieces are read in place
      E* of_a = nullptr;
      E* of_b = nullptr;
      if constexpr (std::is_same_v<E, Y>) {
        of_a = buffer;
        of_b = buffer + size();
      }
      const Part<E> as = a.load(p, of_a);
      partial(p, as, two() ? b.load(p, of_b) : as, all + chunk * kRows * l.channels + p.channel);
    };
    const auto make = [&](std::int64_t chunk, std::int64_t g, Y* buffer, CastCounts* counts) {
      const Piece p = piece(chunk, g);
      const Part<Y> as = last_a.load(p, buffer);
      const Part<Y> bs = two() ? last_b.load(p, buffer + size()) : as;
      const Part<Y> to = y.target(p, buffer + 2 * size());
      apply(p, as, bs, to);
      y.store(p, to, counts);
    };
    const bool direct = last_a.direct() && y.direct() && (!two() || last_b.direct());
    const std::size_t buffered = direct ? 1 : static_cast<std::size_t>(3 * size()) * sizeof(Y);
    if (sums) share(buffered, add);
    finish([=, this](std::int64_t c) {
      return [=, this](std::int64_t chunk, int which) { return all[(chunk * kRows + which) * l.channels + c]; };
    });
    share(buffered, make);
  }

 private:
  bool two() const { return b.defined(); }
  std::int64_t size() const { return l.each * l.group * l.inner; }  // elements of the largest piece
  Piece piece(std::int64_t chunk, std::int64_t g) const {
    const std::int64_t image = chunk * l.each;
    const std::int64_t channel = g * l.group;
    return {image, std::min(l.each, l.images - image), channel, std::min(l.group, l.channels - channel), l.inner};
  }
  // Calls f(chunk, group, buffer, counts) for each piece.
  template <class F> void share(std::size_t buffered, const F& f) const {
    const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, size()));
    parallel_counted(l.chunks * l.groups, grain, dtype_of<T>, stored, [&](auto i, auto end, CastCounts* counts) {
      const Scratch buffer(buffered);
      for (; i < end; ++i) f(i / l.groups, i % l.groups, buffer.as<Y>(), counts);
    });
  }
};

}  // namespace gradual::cpu::channelwise
