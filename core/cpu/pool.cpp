// Pooling over [N, C, H, W]: a plane at a time, each read into (and written from) the compute type once.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "../dispatch.h"
#include "kernels.h"
#include "rows.h"

namespace gradual::cpu {
namespace {

// Reads and writes the [H, W] planes of a tensor with any strides.
struct Planes {
  std::int64_t count, channels, height, width;
  const Shape& strides;
  DType dtype;
  char* data;
  explicit Planes(const Tensor& t)
      : count(t.size(0) * t.size(1)),
        channels(t.size(1)),
        height(t.size(2)),
        width(t.size(3)),
        strides(t.strides()),
        dtype(t.dtype()),
        data(static_cast<char*>(t.raw())) {}
  std::int64_t size() const { return height * width; }
  char* row(std::int64_t plane, std::int64_t y) const {
    const std::int64_t at = plane / channels * strides[0] + plane % channels * strides[1] + y * strides[2];
    return data + at * static_cast<std::int64_t>(size_of(dtype));
  }
  bool dense() const { return strides[3] == 1 && strides[2] == width; }
  template <class T> const T* read(std::int64_t plane, T* buffer) const {
    if (dense() && dtype == dtype_of<T>) return reinterpret_cast<const T*>(row(plane, 0));
    if (dense()) load(dtype, row(plane, 0), 1, buffer, size());
    else
      for (std::int64_t y = 0; y < height; ++y) load(dtype, row(plane, y), strides[3], buffer + y * width, width);
    return buffer;
  }
  template <class T> void write(std::int64_t plane, const T* values, CastCounts* counts) const {
    if (dense()) return store(dtype, values, row(plane, 0), 1, size(), counts);
    for (std::int64_t y = 0; y < height; ++y)
      store(dtype, values + y * width, row(plane, y), strides[3], width, counts);
  }
};

// f(plane, buffer, counts) for every plane of `out`; buffer holds `elements`.
template <class T, class F> void for_planes(const Planes& out, std::int64_t elements, const F& f) {
  CastCounts* const total = counts_for(dtype_of<T>, out.dtype);
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, elements));
  parallel_for(out.count, grain, [&](std::int64_t begin, std::int64_t end) {
    const Scratch scratch(static_cast<std::size_t>(elements) * sizeof(T) + 1);
    CastCounts mine;
    for (std::int64_t p = begin; p < end; ++p) f(p, scratch.as<T>(), total ? &mine : nullptr);
    if (total) merge_counts(total, mine);
  });
}

// The inputs that outputs see along one axis: [begin, end), and what their mean divides by.
struct Span {
  std::int64_t begin, end, divisor;
};
std::vector<Span> window_spans(const PoolAttrs& a, int axis, std::int64_t inputs, std::int64_t outputs) {
  std::vector<Span> spans;
  for (std::int64_t o = 0; o < outputs; ++o) {
    const std::int64_t begin = o * a.stride[axis] - a.padding[axis];
    spans.push_back({std::max<std::int64_t>(0, begin), std::min(inputs, begin + a.kernel[axis]), a.kernel[axis]});
  }
  return spans;
}
// Output o of n covers [floor(o * inputs / n), ceil((o + 1) * inputs / n)).
std::vector<Span> adaptive_spans(std::int64_t inputs, std::int64_t outputs) {
  std::vector<Span> spans;
  for (std::int64_t o = 0; o < outputs; ++o) {
    const std::int64_t begin = o * inputs / outputs;
    const std::int64_t end = ((o + 1) * inputs + outputs - 1) / outputs;
    spans.push_back({begin, end, end - begin});
  }
  return spans;
}
struct Spans {
  std::vector<Span> rows, cols;
};
Spans spans_of(const OpCall& call, std::int64_t height, std::int64_t width, std::int64_t out_height,
               std::int64_t out_width) {
  if (call.op == OpId::adaptive_avg_pool2d || call.op == OpId::adaptive_avg_pool2d_backward)
    return {adaptive_spans(height, out_height), adaptive_spans(width, out_width)};
  const auto& a = call.get<PoolAttrs>();
  return {window_spans(a, 0, height, out_height), window_spans(a, 1, width, out_width)};
}

// Rows are worked on in whole vectors: up to this many elements past the end of a row are written.
inline constexpr std::int64_t kVector = 16;
inline std::int64_t whole_vectors(std::int64_t n) { return (n + kVector - 1) / kVector * kVector; }

// best = the larger of it and of x, in n / kVector vectors; a NaN is larger than any number, the first of equals
// stays. `taken` notes where it came from. Without branches.
template <class T> void take_larger(const T* x, std::int64_t n, std::int32_t where, T* best, std::int32_t* taken) {
  for (std::int64_t o = 0; o < n; o += kVector)
#pragma omp simd
    for (std::int64_t i = o; i < o + kVector; ++i) {
      const T v = x[i];
      const bool larger = !(v <= best[i]) & (best[i] == best[i]);
      best[i] = larger ? v : best[i];
      taken[i] = larger ? where : taken[i];
    }
}

// One row of inputs, padded with -Inf, and split by column modulo the stride: part p, element t is padded column
// t * stride + p. So every tap reads neighbours, whatever the stride.
template <class T> class PhasedRow {
 public:
  PhasedRow(std::int64_t stride, std::int64_t length, T* memory)
      : stride_(stride), length_(length), copy_(memory), split_(memory + stride * length), parts_(split_) {}
  static std::int64_t elements(std::int64_t stride, std::int64_t length) { return 2 * stride * length; }
  const T* part(std::int64_t p) const { return parts_ + p * length_; }
  // n elements at x; up to `room` elements may be read there, and stand past the last window.
  void load(const T* x, std::int64_t n, std::int64_t room, std::int64_t pad) {
    const std::int64_t all = stride_ * length_;
    const T* row = x;
    if (pad > 0 || room < all) {
      const std::int64_t used = std::clamp<std::int64_t>(all - pad, 0, n);
      std::fill(copy_, copy_ + pad, -std::numeric_limits<T>::infinity());
      std::copy(x, x + used, copy_ + pad);
      std::fill(copy_ + pad + used, copy_ + all, -std::numeric_limits<T>::infinity());
      row = copy_;
    }
    if (stride_ == 1) {
      parts_ = row;
    } else if (stride_ == 2) {
      T* even = split_;
      T* odd = split_ + length_;
#pragma omp simd
      for (std::int64_t t = 0; t < length_; ++t) even[t] = row[2 * t], odd[t] = row[2 * t + 1];
    } else {
      for (std::int64_t p = 0; p < stride_; ++p)
        for (std::int64_t t = 0; t < length_; ++t) split_[p * length_ + t] = row[t * stride_ + p];
    }
  }

 private:
  std::int64_t stride_, length_;
  T* copy_;
  T* split_;
  const T* parts_;
};

// A plane's maxima and where in the plane they lie. run() wants memory() elements of scratch.
struct MaxPlane {
  const Planes& in;
  const Planes& out;
  const PoolAttrs& a;
  std::int64_t n = whole_vectors(out.width);
  std::int64_t length = whole_vectors(n + (a.kernel[1] - 1) / a.stride[1]);

  std::int64_t memory() const { return n + PhasedRow<float>::elements(a.stride[1], length); }

  template <class T> void run(const T* x, T* y, std::int64_t* index, T* memory) const {
    const std::int64_t stride = a.stride[1];
    const std::int64_t pad = a.padding[1];
    auto* taken = reinterpret_cast<std::int32_t*>(memory);  // offsets from the window's corner
    PhasedRow<T> phases(stride, length, memory + n);
    for (std::int64_t row = 0; row < out.height; ++row, y += out.width, index += out.width) {
      const std::int64_t top = row * a.stride[0] - a.padding[0];
      const std::int64_t first = std::max<std::int64_t>(0, -top);
      std::fill(y, y + n, -std::numeric_limits<T>::infinity());
      std::fill(taken, taken + n, static_cast<std::int32_t>(first * in.width));
      for (std::int64_t o = 0; o < out.width && o * stride < pad; ++o)
        taken[o] += static_cast<std::int32_t>(pad - o * stride);
      for (std::int64_t i = first; i < std::min(a.kernel[0], in.height - top); ++i) {
        const std::int64_t from = (top + i) * in.width;
        phases.load(x + from, in.width, in.size() - from, pad);
        for (std::int64_t j = 0; j < a.kernel[1]; ++j)
          take_larger(phases.part(j % stride) + j / stride, n, static_cast<std::int32_t>(i * in.width + j), y, taken);
      }
      const std::int64_t corner = top * in.width - pad;
      for (std::int64_t o = 0; o < out.width; ++o) index[o] = corner + o * stride + taken[o];
    }
  }
};

void max_pool2d(const OpCall& call, Outputs& out) {
  const Planes in(call[0]);
  const Planes values(out[0]);
  const Planes indices(out[1]);
  const MaxPlane plane{in, values, call.get<PoolAttrs>()};
  visit_floating(in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t y_size = values.size() + kVector;
    for_planes<T>(values, in.size() + y_size + plane.memory(), [&](std::int64_t p, T* buffer, CastCounts* counts) {
      T* y = buffer + in.size();
      std::vector<std::int64_t> copy(static_cast<std::size_t>(indices.dense() ? 0 : values.size()));
      auto* index = indices.dense() ? reinterpret_cast<std::int64_t*>(indices.row(p, 0)) : copy.data();
      plane.run(in.read(p, buffer), y, index, y + y_size);
      values.write(p, y, counts);
      if (!indices.dense()) indices.write(p, index, nullptr);
    });
  });
}

void check_indices(const OpCall& call, const std::int64_t* index, std::int64_t n, std::int64_t plane) {
  for (std::int64_t i = 0; i < n; ++i)
    if (static_cast<std::uint64_t>(index[i]) >= static_cast<std::uint64_t>(plane))
      fail(describe(call) + ": index " + std::to_string(index[i]) + " lies outside a plane of " +
           std::to_string(plane) + " elements; pass the indices of max_pool2d and the sizes of its input");
}

// dx[index] += dy: windows that overlap add up, in the order of the outputs.
void max_pool2d_backward(const OpCall& call, Outputs& out) {
  const Planes dy(call[0]);
  const Planes indices(call[1]);
  const Planes dx(out[0]);
  visit_floating(dx.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_planes<T>(dx, dy.size() + dx.size(), [&](std::int64_t p, T* buffer, CastCounts* counts) {
      T* sum = buffer + dy.size();
      std::vector<std::int64_t> copy(static_cast<std::size_t>(dy.size()));
      const T* g = dy.read(p, buffer);
      const std::int64_t* index = indices.read(p, copy.data());
      std::fill(sum, sum + dx.size(), T{0});
      check_indices(call, index, dy.size(), dx.size());
      for (std::int64_t i = 0; i < dy.size(); ++i) sum[index[i]] += g[i];
      dx.write(p, sum, counts);
    });
  });
}

void max_pool2d_gather(const OpCall& call, Outputs& out) {
  const Planes x(call[0]);
  const Planes indices(call[1]);
  const Planes y(out[0]);
  visit_floating(y.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_planes<T>(y, x.size() + y.size(), [&](std::int64_t p, T* buffer, CastCounts* counts) {
      T* picked = buffer + x.size();
      std::vector<std::int64_t> copy(static_cast<std::size_t>(y.size()));
      const T* from = x.read(p, buffer);
      const std::int64_t* index = indices.read(p, copy.data());
      check_indices(call, index, y.size(), x.size());
      for (std::int64_t i = 0; i < y.size(); ++i) picked[i] = from[index[i]];
      y.write(p, picked, counts);
    });
  });
}

// The mean over each window; padding counts as zeros.
void avg_pool2d(const OpCall& call, Outputs& out) {
  const Planes in(call[0]);
  const Planes values(out[0]);
  const Spans spans = spans_of(call, in.height, in.width, values.height, values.width);
  visit_floating(in.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_planes<T>(values, in.size() + values.size(), [&](std::int64_t p, T* buffer, CastCounts* counts) {
      const T* x = in.read(p, buffer);
      T* y = buffer + in.size();
      for (const Span& r : spans.rows)
        for (const Span& c : spans.cols) {
          T sum = 0;
          for (std::int64_t i = r.begin; i < r.end; ++i)
            for (std::int64_t j = c.begin; j < c.end; ++j) sum += x[i * in.width + j];
          *y++ = sum / static_cast<T>(r.divisor * c.divisor);
        }
      values.write(p, buffer + in.size(), counts);
    });
  });
}

void avg_pool2d_backward(const OpCall& call, Outputs& out) {
  const Planes dy(call[0]);
  const Planes dx(out[0]);
  const Spans spans = spans_of(call, dx.height, dx.width, dy.height, dy.width);
  visit_floating(dx.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_planes<T>(dx, dy.size() + dx.size(), [&](std::int64_t p, T* buffer, CastCounts* counts) {
      const T* g = dy.read(p, buffer);
      T* sum = buffer + dy.size();
      std::fill(sum, sum + dx.size(), T{0});
      for (const Span& r : spans.rows)
        for (const Span& c : spans.cols) {
          const T share = *g++ / static_cast<T>(r.divisor * c.divisor);
          for (std::int64_t i = r.begin; i < r.end; ++i)
            for (std::int64_t j = c.begin; j < c.end; ++j) sum[i * dx.width + j] += share;
        }
      dx.write(p, sum, counts);
    });
  });
}

}  // namespace

void register_pooling() {
  KernelFn* cpu = columns().cpu;
  cpu[static_cast<int>(OpId::max_pool2d)] = max_pool2d;
  cpu[static_cast<int>(OpId::max_pool2d_backward)] = max_pool2d_backward;
  cpu[static_cast<int>(OpId::max_pool2d_gather)] = max_pool2d_gather;
  cpu[static_cast<int>(OpId::avg_pool2d)] = avg_pool2d;
  cpu[static_cast<int>(OpId::avg_pool2d_backward)] = avg_pool2d_backward;
  cpu[static_cast<int>(OpId::adaptive_avg_pool2d)] = avg_pool2d;
  cpu[static_cast<int>(OpId::adaptive_avg_pool2d_backward)] = avg_pool2d_backward;
}

}  // namespace gradual::cpu
