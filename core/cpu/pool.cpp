// Pooling over [N, C, H, W], a plane at a time, in the compute type. Small planes are converted together.
#include <algorithm>
#include <initializer_list>
#include <limits>
#include <type_traits>
#include <vector>

#include "../formats/float_types.h"
#include "../ops/dispatch.h"
#include "../support/throwf.h"
#include "channelwise.h"
#include "kernels.h"
#include "rows.h"

namespace gradual::cpu {
namespace {

inline constexpr std::int64_t kOutputs = 512;  // outputs computed together, whose maxima stay in the cache

std::int64_t plane_size(const Tensor& t) { return t.size(2) * t.size(3); }

// Calls f(input plane, output plane, index of the plane) for each plane; planes are row-major. With kBf16, f also takes
// planes of BFloat16: bf16 tensors are then read and written in place, unless stores are counted.
template <bool kBf16 = false, class F> void for_planes(const Tensor& in, Tensor& out, const F& f) {
  write_row_major(out, [&](Tensor& to) {
    const auto run = [&]<class T>(T) {
      map_rows<T>(in.size(0) * in.size(1), in, plane_size(in), {}, 0, to, plane_size(to),
                  [&](std::int64_t plane, const T* x, const T*, T* y) { f(x, y, plane); });
    };
    if constexpr (kBf16)
      if (in.dtype() == DType::bf16 && to.dtype() == DType::bf16 && !counts_for(DType::f32, DType::bf16))
        return run(BFloat16());
    visit_floating(to.dtype(), run);
  });
}

// The inputs [begin, end) of each output along one axis, and the factor of its mean's divisor.
struct Span {
  std::int64_t begin, end, divisor;
};
std::vector<Span> spans_of(const OpCall& call, int axis, std::int64_t inputs, std::int64_t outputs) {
  const auto& a = call.get<PoolAttrs>();
  const bool adaptive = call.op == OpId::adaptive_avg_pool2d || call.op == OpId::adaptive_avg_pool2d_backward;
  std::vector<Span> spans;
  // Adaptive: from floor(o * inputs / outputs) to ceil((o + 1) * inputs / outputs).
  for (std::int64_t o = 0; o < outputs; ++o) {
    const std::int64_t begin = adaptive ? o * inputs / outputs : o * a.stride[axis] - a.padding[axis];
    const std::int64_t end = adaptive ? ((o + 1) * inputs + outputs - 1) / outputs : begin + a.kernel[axis];
    spans.push_back({std::max<std::int64_t>(0, begin), std::min(inputs, end), end - begin});
  }
  return spans;
}

// each() calls f(output, divisor of its mean, visit) for every output of a plane; visit(g) calls g(input) for all
// inputs of that output.
struct Spans {
  std::vector<Span> rows, cols;
  std::int64_t width;
  Spans(const OpCall& call, const Tensor& in, const Tensor& out)
      : rows(spans_of(call, 0, in.size(2), out.size(2))),
        cols(spans_of(call, 1, in.size(3), out.size(3))),
        width(in.size(3)) {}
  template <class F> void each(const F& f) const {
    std::int64_t o = 0;
    for (const Span& r : rows)
      for (const Span& c : cols) {
        f(o++, r.divisor * c.divisor, [&](const auto& visit) {
          for (std::int64_t i = r.begin; i < r.end; ++i)
            for (std::int64_t j = c.begin; j < c.end; ++j) visit(i * width + j);
        });
      }
  }
};

// The position in an input plane of each tap of each output's window: for each tap, all outputs of a plane. A tap in
// the padding takes the nearest position inside, which changes neither a maximum nor which of equal elements is first.
std::vector<std::int32_t> taps_of(const OpCall& call, const Tensor& in, const Tensor& out) {
  const auto& a = call.get<PoolAttrs>();
  const auto at = [&](int axis, std::int64_t output, std::int64_t tap) {
    return std::clamp<std::int64_t>(output * a.stride[axis] - a.padding[axis] + tap, 0, in.size(2 + axis) - 1);
  };
  std::vector<std::int32_t> taps;
  taps.reserve(static_cast<std::size_t>(a.kernel[0] * a.kernel[1] * plane_size(out)));
  for (std::int64_t tap = 0; tap < a.kernel[0] * a.kernel[1]; ++tap)
    for (std::int64_t i = 0; i < out.size(2); ++i)
      for (std::int64_t j = 0; j < out.size(3); ++j)
        taps.push_back(
            static_cast<std::int32_t>(at(0, i, tap / a.kernel[1]) * in.size(3) + at(1, j, tap % a.kernel[1])));
  return taps;
}

// If v is larger than `most`, v becomes the maximum and `at` its position. A NaN exceeds every number, and the first of
// equal elements stays. Branches would be mispredicted, so there are none. T and I are numbers or vectors. They are
// passed by reference, because how functions pass and return vectors depends on the instruction set.
template <class T, class I> void take(const T& v, const I& at, T& most, I& best) {
  const auto larger = (!(v <= most)) & (most == most);
  most = larger ? v : most;
  best = larger ? at : best;
}

// A vector of n elements, and the same at an address of any alignment.
template <class T, int n> using Vec [[gnu::vector_size(n * sizeof(T))]] = T;
template <class T, int n> struct [[gnu::packed, gnu::may_alias]] Anywhere {
  Vec<T, n> v;
};

// The maxima of windows of two columns, with column stride 2 and no padding, in one plane: sizeof...(I) windows at a
// time, loaded without gathers. The last windows of a row may be computed twice. y has `rows` rows of `cols`, which are
// at least sizeof...(I), and x has rows of `width`. E is float, double or BFloat16, the upper half of a float.
template <class E, int... I>
void max_in_pairs(PoolAttrs a, std::int64_t rows, std::int64_t cols, std::int64_t width, const E* x, E* y,
                  std::int64_t* index, std::integer_sequence<int, I...>) {
  constexpr bool kHalf = std::is_same_v<E, BFloat16>;
  using T = std::conditional_t<kHalf, float, E>;
  constexpr int n = sizeof...(I);
  using Place = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  using Places = Vec<Place, n>;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t next = 0; next < cols; next += n) {
      const std::int64_t j = std::min(next, cols - n);
      const auto corner = static_cast<Place>(i * a.stride[0] * width + 2 * j);
      Places at = Places{2 * I...} + corner;
      Places best = at;
      Vec<T, n> most = Vec<T, n>{} - std::numeric_limits<T>::infinity();
      for (std::int64_t tap = 0; tap < a.kernel[0]; ++tap, at += static_cast<Place>(width)) {
        const E* const from = x + corner + tap * width;
        Vec<T, n> left, right;
        if constexpr (kHalf) {
          const auto both = reinterpret_cast<const Anywhere<std::int32_t, n>*>(from)->v;
          left = reinterpret_cast<Vec<T, n>>(both << 16);
          right = reinterpret_cast<Vec<T, n>>(both & -0x10000);
        } else {
          const auto* const both = reinterpret_cast<const Anywhere<T, n>*>(from);
          left = __builtin_shufflevector(both[0].v, both[1].v, 2 * I...);
          right = __builtin_shufflevector(both[0].v, both[1].v, 2 * I + 1 ...);
        }
        take<Vec<T, n>, Places>(left, at, most, best);
        take<Vec<T, n>, Places>(right, at + 1, most, best);
      }
      if constexpr (kHalf) {
        const Places quiet = reinterpret_cast<Places>(most) | ((most != most) & detail::kFloatQuietBit);
        reinterpret_cast<Anywhere<std::int16_t, n>*>(y + i * cols + j)->v =
            __builtin_convertvector(quiet >> 16, Vec<std::int16_t, n>);
      } else reinterpret_cast<Anywhere<T, n>*>(y + i * cols + j)->v = most;
      reinterpret_cast<Anywhere<std::int64_t, n>*>(index + i * cols + j)->v =
          __builtin_convertvector(best, Vec<std::int64_t, n>);
    }
}

// Whether the memory of all is channels-last, in numbers of the compute type. Then loops run over channels, and no
// plane is copied.
bool are_channels_last(std::initializer_list<const Tensor*> tensors) {
  return std::ranges::all_of(tensors, [](const Tensor* t) {
    const bool wide = t->dtype() == DType::f32 || t->dtype() == DType::f64 || t->dtype() == DType::i64;
    return wide && !t->is_contiguous() && channelwise::channels_to_back(*t).is_contiguous();
  });
}
// Calls f(image) for all images of so many elements.
template <class F> void for_images(std::int64_t images, std::int64_t elements, const F& f) {
  parallel_for(images, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, elements)),
               [&](std::int64_t image, std::int64_t end) {
                 for (; image < end; ++image) vectorized([&f, image] { f(image); });
               });
}

// The maxima of one image: at each output those of all channels. taps: taps_of().
template <class T>
void max_over_taps(const T* x, std::int64_t channels, const std::vector<std::int32_t>& taps, std::int64_t outputs, T* y,
                   std::int64_t* index) {
  using Place = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  Place best[kOutputs];
  for (std::int64_t o = 0; o < outputs; ++o)
    for (std::int64_t first = 0; first < channels; first += kOutputs) {
      const std::int64_t n = std::min(kOutputs, channels - first);
      T* const most = y + o * channels + first;
      const auto corner = static_cast<Place>(taps[static_cast<std::size_t>(o)]);
      std::copy_n(x + corner * channels + first, n, most);
      std::fill_n(best, n, corner);
      for (std::int64_t tap = o + outputs; tap < std::ssize(taps); tap += outputs) {
        const auto at = static_cast<Place>(taps[static_cast<std::size_t>(tap)]);
        const T* const from = x + at * channels + first;
#pragma omp simd
        for (std::int64_t c = 0; c < n; ++c) take(from[c], at, most[c], best[c]);
      }
      std::copy_n(best, n, index + o * channels + first);
    }
}

void max_pool2d_last(const OpCall& call, Outputs& out) {
  const std::vector<std::int32_t> taps = taps_of(call, call[0], out[0]);
  const std::int64_t channels = call[0].size(1);
  const std::int64_t outputs = plane_size(out[0]);
  const std::int64_t inputs = plane_size(call[0]);
  visit_floating(out[0].dtype(), [&]<class T>(T) {
    const T* const x = call[0].data<T>();
    T* const y = out[0].data<T>();
    std::int64_t* const index = out[1].data<std::int64_t>();
    for_images(call[0].size(0), inputs * channels, [=, &taps](std::int64_t i) {
      const std::int64_t at = i * outputs * channels;
      max_over_taps(x + i * inputs * channels, channels, taps, outputs, y + at, index + at);
    });
  });
}

void max_pool2d(const OpCall& call, Outputs& out) {
  if (out[0].numel() == 0) return;
  const auto& a = call.get<PoolAttrs>();
  const std::int64_t n = plane_size(out[0]);
  const std::int64_t rows = out[0].size(2);
  const std::int64_t cols = out[0].size(3);
  const std::int64_t width = call[0].size(3);
  if (plane_size(call[0]) > std::numeric_limits<std::int32_t>::max())
    throwf(call, "a plane of {} elements; at most 2^31 - 1 are allowed", plane_size(call[0]));
  if (are_channels_last({&call[0], &out[0], &out[1]})) return max_pool2d_last(call, out);
  const bool pairs = a.kernel[1] == 2 && a.stride[1] == 2 && a.padding[0] == 0 && a.padding[1] == 0 && cols >= 4;
  const std::vector<std::int32_t> taps = pairs ? std::vector<std::int32_t>() : taps_of(call, call[0], out[0]);
  write_row_major(out[1], [&](Tensor& indices) {
    auto* const all = indices.data<std::int64_t>();
    if (pairs)
      return for_planes<true>(call[0], out[0], [&]<class T>(const T* x, T* y, std::int64_t plane) {
        const auto in_groups = [&](auto of) { max_in_pairs(a, rows, cols, width, x, y, all + plane * n, of); };
        constexpr int kWide = sizeof(T) == 8 ? 4 : 8;  // elements of an AVX2 register; g++ splits wider vectors
        if (cpu_isa() >= CpuIsa::avx2 && cols >= kWide) in_groups(std::make_integer_sequence<int, kWide>());
        else in_groups(std::make_integer_sequence<int, kWide / 2>());
      });
    for_planes(call[0], out[0], [&]<class T>(const T* x, T* y, std::int64_t plane) {
      std::int32_t best[kOutputs];
      for (std::int64_t first = 0; first < n; first += kOutputs) {
        const std::int64_t here = std::min(kOutputs, n - first);
        T* const most = y + first;
        for (std::int64_t i = 0; i < here; ++i) most[i] = x[best[i] = taps[static_cast<std::size_t>(first + i)]];
        for (std::int64_t tap = first + n; tap < std::ssize(taps); tap += n) {
          const std::int32_t* const at = taps.data() + tap;
#pragma omp simd
          for (std::int64_t i = 0; i < here; ++i) take(x[at[i]], at[i], most[i], best[i]);
        }
        std::copy_n(best, here, all + plane * n + first);
      }
    });
  });
}

[[noreturn, gnu::noinline]] void refuse_index(const OpCall& call, std::uint64_t index, std::int64_t plane) {
  throwf(call, "index {} lies outside a plane of {} elements; pass the indices of max_pool2d and its input's sizes",
         static_cast<std::int64_t>(index), plane);
}

// all_dy: in channels-last order, as dx and the indices are.
template <class T> void max_pool2d_backward_last(const OpCall& call, const T* all_dy, Tensor& out, bool overlap) {
  const std::int64_t channels = out.size(1);
  const std::int64_t n = plane_size(call[0]) * channels;
  const std::int64_t inputs = plane_size(out);
  for_images(out.size(0), inputs * channels,
             [&call, overlap, channels, n, inputs, all_dy, all = call[1].data<std::int64_t>(),
              all_dx = out.data<T>()](std::int64_t image) {
               const T* const dy = all_dy + image * n;
               const std::int64_t* const index = all + image * n;
               T* const dx = all_dx + image * inputs * channels;
               std::uint64_t largest = 0;
               for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, static_cast<std::uint64_t>(index[i]));
               if (n > 0 && largest >= static_cast<std::uint64_t>(inputs)) refuse_index(call, largest, inputs);
               std::fill_n(dx, inputs * channels, T{});
               for (std::int64_t o = 0; o < n; o += channels)
                 for (std::int64_t c = 0; c < channels; ++c) {
                   T& to = dx[index[o + c] * channels + c];
                   to = (overlap ? to : T{0}) + dy[o + c];
                 }
             });
}

// dx[index] = 0 + dy. In windows that overlap, gradients add up in the order of the outputs. The indices are those of
// max_pool2d, each within its window, so windows that do not overlap share none.
void max_pool2d_backward(const OpCall& call, Outputs& out) {
  const auto& a = call.get<PoolAttrs>();
  const bool overlap = a.kernel[0] > a.stride[0] || a.kernel[1] > a.stride[1];
  if (are_channels_last({&call[1], &out[0]}) && call[0].dtype() == out[0].dtype()) {
    const Tensor dy = contiguous(channelwise::channels_to_back(call[0]));
    return visit_floating(out[0].dtype(),
                          [&]<class T>(T) { max_pool2d_backward_last<T>(call, dy.data<T>(), out[0], overlap); });
  }
  const std::int64_t n = plane_size(call[0]);
  const std::int64_t inputs = plane_size(out[0]);
  const Tensor indices = contiguous(call[1]);
  const auto plane_of = [&]<class T>(const T* dy, T* dx, std::int64_t plane) {
    const std::int64_t* const index = indices.data<std::int64_t>() + plane * n;
    std::uint64_t largest = 0;
    for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, static_cast<std::uint64_t>(index[i]));
    if (n > 0 && largest >= static_cast<std::uint64_t>(inputs)) refuse_index(call, largest, inputs);
    std::fill_n(dx, inputs, T{});
    if constexpr (!std::is_same_v<T, BFloat16>)
      for (std::int64_t i = 0; i < n; ++i) dx[index[i]] = (overlap ? dx[index[i]] : T{0}) + dy[i];
    else
      for (std::int64_t first = 0, here = 0; first < n; first += here) {
        T sums[kOutputs];
        here = std::min(kOutputs, n - first);
        for (std::int64_t i = 0; i < here; ++i) sums[i] = T(0 + static_cast<float>(dy[first + i]));
        for (std::int64_t i = 0; i < here; ++i) dx[index[first + i]] = sums[i];
      }
  };
  overlap ? for_planes(call[0], out[0], plane_of) : for_planes<true>(call[0], out[0], plane_of);
}

// The mean over each window; padding counts as zeros.
void avg_pool2d(const OpCall& call, Outputs& out) {
  const Spans spans(call, call[0], out[0]);
  for_planes(call[0], out[0], [&]<class T>(const T* x, T* y, std::int64_t) {
    spans.each([&](std::int64_t o, std::int64_t divisor, const auto& for_inputs) {
      T sum = 0;
      for_inputs([&](std::int64_t i) { sum += x[i]; });
      y[o] = sum / static_cast<T>(divisor);
    });
  });
}

void avg_pool2d_backward(const OpCall& call, Outputs& out) {
  const Spans spans(call, out[0], call[0]);
  for_planes(call[0], out[0], [&]<class T>(const T* dy, T* dx, std::int64_t) {
    std::fill_n(dx, plane_size(out[0]), T{0});
    spans.each([&](std::int64_t o, std::int64_t divisor, const auto& for_inputs) {
      const T share = dy[o] / static_cast<T>(divisor);
      for_inputs([&](std::int64_t i) { dx[i] += share; });
    });
  });
}

}  // namespace

void register_pooling() {
  set_kernel(OpId::max_pool2d, max_pool2d);
  set_kernel(OpId::max_pool2d_backward, max_pool2d_backward);
  for (const OpId op : {OpId::avg_pool2d, OpId::adaptive_avg_pool2d}) set_kernel(op, avg_pool2d);
  for (const OpId op : {OpId::avg_pool2d_backward, OpId::adaptive_avg_pool2d_backward})
    set_kernel(op, avg_pool2d_backward);
}

}  // namespace gradual::cpu
