// Pooling over [N, C, H, W] in the compute type; counterpart of core/cpu/pool.cpp. A thread computes one element of the
// result. In backward it adds the gradients of the windows that contain the element, in the order of the outputs.
#include "../runtime/index_check.h"
#include "elements.h"
#include "kernels.h"

namespace gradual::cuda {
namespace {

// A tensor of four dims with any strides.
struct Image {
  char* data;
  DType dtype;
  std::int64_t strides[4];

  explicit Image(const Tensor& t) : data(static_cast<char*>(t.raw())), dtype(t.dtype()) {
    for (int d = 0; d < 4; ++d) strides[d] = t.strides()[d];
  }
  GRADUAL_HD std::int64_t at(std::int64_t plane, std::int64_t row, std::int64_t col) const {
    return plane + row * strides[2] + col * strides[3];
  }
};

// The elements of a result in the order of its memory, so that neighbours are written together.
struct Positions {
  std::int64_t sizes[4];
  bool channels_last, narrow;

  explicit Positions(const Tensor& t)
      : channels_last(t.strides()[1] == 1 && t.sizes()[1] > 1), narrow(t.numel() <= INT32_MAX) {
    for (int d = 0; d < 4; ++d) sizes[d] = t.sizes()[d];
  }
  struct At {
    std::int64_t image, channel, row, col;
    GRADUAL_HD std::int64_t plane(const Image& of) const { return image * of.strides[0] + channel * of.strides[1]; }
  };
  GRADUAL_HD At locate(std::int64_t i) const {
    return narrow ? divide(static_cast<std::uint32_t>(i)) : divide(static_cast<std::uint64_t>(i));
  }

 private:
  template <class U> GRADUAL_HD static std::int64_t take(U& rest, std::int64_t size) {
    const U quotient = rest / static_cast<U>(size);
    const auto index = static_cast<std::int64_t>(rest - quotient * static_cast<U>(size));
    rest = quotient;
    return index;
  }
  template <class U> GRADUAL_HD At divide(U rest) const {
    At at{};
    if (channels_last) at.channel = take(rest, sizes[1]);
    at.col = take(rest, sizes[3]);
    at.row = take(rest, sizes[2]);
    if (!channels_last) at.channel = take(rest, sizes[1]);
    at.image = static_cast<std::int64_t>(rest);
    return at;
  }
};

struct Range {
  std::int64_t begin, end;
};

// Windows along height or width.
struct Axis {
  std::int64_t inputs, outputs, kernel, stride, padding;
  bool adaptive;

  Axis(const OpCall& c, int axis, const Tensor& in, const Tensor& out)
      : inputs(in.size(2 + axis)),
        outputs(out.size(2 + axis)),
        adaptive(c.op == OpId::adaptive_avg_pool2d || c.op == OpId::adaptive_avg_pool2d_backward) {
    const auto& a = c.get<PoolAttrs>();
    kernel = a.kernel[axis];
    stride = a.stride[axis];
    padding = a.padding[axis];
  }
  // The start of an output's window; taps before 0 and after the last input are padding.
  GRADUAL_HD std::int64_t start(std::int64_t output) const { return output * stride - padding; }
  // The inputs of an output's window.
  GRADUAL_HD Range window(std::int64_t output) const {
    if (adaptive) return {output * inputs / outputs, ((output + 1) * inputs + outputs - 1) / outputs};
    const std::int64_t begin = start(output);
    const std::int64_t end = begin + kernel;
    return {begin > 0 ? begin : 0, end < inputs ? end : inputs};
  }
  // The outputs whose windows contain an input.
  GRADUAL_HD Range seen_by(std::int64_t input) const {
    if (adaptive) return {input * outputs / inputs, ((input + 1) * outputs - 1) / inputs + 1};
    // late: too early by one
    const std::int64_t late = input + padding - kernel;
    const std::int64_t last = (input + padding) / stride;
    return {late < 0 ? 0 : late / stride + 1, last < outputs ? last + 1 : outputs};
  }
  GRADUAL_HD std::int64_t divisor(std::int64_t output) const {
    return adaptive ? window(output).end - window(output).begin : kernel;
  }
  GRADUAL_HD std::int64_t inside(std::int64_t input) const {
    return input < 0 ? 0 : input < inputs ? input : inputs - 1;
  }
};

template <class T> __device__ void put(const Image& to, std::int64_t at, T value, const Counter& counter) {
  store_counted(to.dtype, value, to.data, at, counter);
}

// A NaN exceeds every number; the first of equal elements is taken. A tap in the padding reads the nearest input.
template <class T> struct MaxPool {
  Positions positions;
  Image x, y, indices;
  Axis rows, cols;
  Counter counter;

  __device__ void operator()(std::int64_t i) const {
    const auto at = positions.locate(i);
    const std::int64_t plane = at.plane(x);
    const std::int64_t top = rows.start(at.row);
    const std::int64_t left = cols.start(at.col);
    std::int64_t best = rows.inside(top) * cols.inputs + cols.inside(left);
    T most = load_element<T>(x.dtype, x.data, x.at(plane, rows.inside(top), cols.inside(left)));
    for (std::int64_t r = 0; r < rows.kernel; ++r)
      for (std::int64_t c = r == 0 ? 1 : 0; c < cols.kernel; ++c) {
        const std::int64_t row = rows.inside(top + r);
        const std::int64_t col = cols.inside(left + c);
        const T value = load_element<T>(x.dtype, x.data, x.at(plane, row, col));
        if (value <= most || most != most) continue;
        most = value;
        best = row * cols.inputs + col;
      }
    put(y, y.at(at.plane(y), at.row, at.col), most, counter);
    reinterpret_cast<std::int64_t*>(indices.data)[indices.at(at.plane(indices), at.row, at.col)] = best;
  }
};

// dx[index] += dy. An index outside of its window is reported by the window's first input.
template <class T> struct MaxPoolBackward {
  Positions positions;
  Image dy, dx, indices;
  Axis rows, cols;
  IndexCheck check;
  Counter counter;

  __device__ void operator()(std::int64_t i) const {
    const auto at = positions.locate(i);
    const std::int64_t here = at.row * cols.inputs + at.col;
    const std::int64_t plane = at.plane(indices);
    const Range down = rows.seen_by(at.row);
    const Range across = cols.seen_by(at.col);
    T sum = 0;
    for (std::int64_t r = down.begin; r < down.end; ++r)
      for (std::int64_t c = across.begin; c < across.end; ++c) {
        const auto index = reinterpret_cast<const std::int64_t*>(indices.data)[indices.at(plane, r, c)];
        if (index == here) sum += load_element<T>(dy.dtype, dy.data, dy.at(at.plane(dy), r, c));
        const Range high = rows.window(r);
        const Range wide = cols.window(c);
        if (at.row != high.begin || at.col != wide.begin) continue;
        const std::int64_t row = index / cols.inputs;
        const std::int64_t col = index % cols.inputs;
        if (index < 0 || row < high.begin || row >= high.end || col < wide.begin || col >= wide.end)
          check.report(index, ((at.image * positions.sizes[1] + at.channel) * rows.outputs + r) * cols.outputs + c);
      }
    put(dx, dx.at(at.plane(dx), at.row, at.col), sum, counter);
  }
};

// The mean over each window; padding counts as zeros.
template <class T> struct AvgPool {
  Positions positions;
  Image x, y;
  Axis rows, cols;
  Counter counter;

  __device__ void operator()(std::int64_t i) const {
    const auto at = positions.locate(i);
    const std::int64_t plane = at.plane(x);
    const Range high = rows.window(at.row);
    const Range wide = cols.window(at.col);
    T sum = 0;
    for (std::int64_t r = high.begin; r < high.end; ++r)
      for (std::int64_t c = wide.begin; c < wide.end; ++c) sum += load_element<T>(x.dtype, x.data, x.at(plane, r, c));
    put(y, y.at(at.plane(y), at.row, at.col), sum / static_cast<T>(rows.divisor(at.row) * cols.divisor(at.col)),
        counter);
  }
};

template <class T> struct AvgPoolBackward {
  Positions positions;
  Image dy, dx;
  Axis rows, cols;
  Counter counter;

  __device__ void operator()(std::int64_t i) const {
    const auto at = positions.locate(i);
    const std::int64_t plane = at.plane(dy);
    const Range down = rows.seen_by(at.row);
    const Range across = cols.seen_by(at.col);
    T sum = 0;
    for (std::int64_t r = down.begin; r < down.end; ++r)
      for (std::int64_t c = across.begin; c < across.end; ++c)
        sum +=
            load_element<T>(dy.dtype, dy.data, dy.at(plane, r, c)) / static_cast<T>(rows.divisor(r) * cols.divisor(c));
    put(dx, dx.at(at.plane(dx), at.row, at.col), sum, counter);
  }
};

void max_pool2d(const OpCall& c, Outputs& out) {
  cpu::visit_floating(c[0].dtype(), [&]<class T>(T) {
    const CountingStores counting(dtype_of<T>, out[0].dtype());
    for_each(out[0].numel(), MaxPool<T>{Positions(out[0]), Image(c[0]), Image(out[0]), Image(out[1]),
                                        Axis(c, 0, c[0], out[0]), Axis(c, 1, c[0], out[0]), counting.counter()});
  });
}

// The indices must be those of max_pool2d with the same attributes: each within its window.
void max_pool2d_backward(const OpCall& c, Outputs& out) {
  const auto& a = c.get<PoolAttrs>();
  const Tensor& dy = c[0];
  const Tensor& dx = out[0];
  for (int d = 0; d < 2 && dy.numel() > 0; ++d)
    if (a.stride[d] < 1 || (dx.size(2 + d) + 2 * a.padding[d] - a.kernel[d]) / a.stride[d] + 1 != dy.size(2 + d))
      throw_error(c, "kernel, stride, padding and size must be those of the max_pool2d that gave the indices");
  cpu::visit_floating(dy.dtype(), [&]<class T>(T) {
    const CountingStores counting(dtype_of<T>, dx.dtype());
    for_each(dx.numel(),
             MaxPoolBackward<T>{Positions(dx), Image(dy), Image(dx), Image(c[1]), Axis(c, 0, dx, dy),
                                Axis(c, 1, dx, dy), index_check(c, dx.size(2) * dx.size(3)), counting.counter()});
  });
}

void avg_pool2d(const OpCall& c, Outputs& out) {
  cpu::visit_floating(c[0].dtype(), [&]<class T>(T) {
    const CountingStores counting(dtype_of<T>, out[0].dtype());
    for_each(out[0].numel(), AvgPool<T>{Positions(out[0]), Image(c[0]), Image(out[0]), Axis(c, 0, c[0], out[0]),
                                        Axis(c, 1, c[0], out[0]), counting.counter()});
  });
}

void avg_pool2d_backward(const OpCall& c, Outputs& out) {
  const Tensor& dy = c[0];
  const Tensor& dx = out[0];
  cpu::visit_floating(dy.dtype(), [&]<class T>(T) {
    const CountingStores counting(dtype_of<T>, dx.dtype());
    for_each(dx.numel(), AvgPoolBackward<T>{Positions(dx), Image(dy), Image(dx), Axis(c, 0, dx, dy), Axis(c, 1, dx, dy),
                                            counting.counter()});
  });
}

}  // namespace

void register_pooling() {
  set_kernel(OpId::max_pool2d, max_pool2d);
  set_kernel(OpId::max_pool2d_backward, max_pool2d_backward);
  set_kernel(OpId::avg_pool2d, avg_pool2d);
  set_kernel(OpId::adaptive_avg_pool2d, avg_pool2d);
  set_kernel(OpId::avg_pool2d_backward, avg_pool2d_backward);
  set_kernel(OpId::adaptive_avg_pool2d_backward, avg_pool2d_backward);
}

}  // namespace gradual::cuda
