// Graphs of one convolution of the emulated cuDNN, in plain loops.
#include <algorithm>
#include <vector>

#include "../../core/ops/compute_mode.h"
#include "../../cuda/kernels/elements.h"
#include "cudnn_graph.h"
#include "cudnn_parts.h"

namespace gradual::cuda::emulator {
namespace {

using Dims = std::array<std::int64_t, 4>;

// x, w and y of a convolution: two operands and the result.
struct ConvTensors {
  const GraphOperation& how;
  const GraphTensor& x;
  const GraphTensor& w;
  const GraphTensor& y;
};
ConvTensors tensors_of(const Graph& graph) {
  const GraphOperation& op = graph.operations[0];
  const GraphTensor& a = graph.tensors.at(op.x);
  const GraphTensor& b = graph.tensors.at(op.b);
  const GraphTensor& made = graph.tensors.at(op.y);
  if (op.kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR) return {op, a, b, made};
  if (op.kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR) return {op, made, b, a};
  return {op, b, made, a};
}

bool is_planar(const GraphTensor& t) {
  const Dims& s = t.sizes;
  return t.strides == Dims{s[1] * s[2] * s[3], s[2] * s[3], s[3], 1};
}
bool is_channels_last(const GraphTensor& t) {
  const Dims& s = t.sizes;
  return t.strides == Dims{s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]};
}

std::int64_t offset(const Dims& stride, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  return a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3];
}

// f(element of x, of w, of y) for every product of the convolution.
template <class F> void each_product(const ConvTensors& p, const F& f) {
  const std::int64_t groups = p.x.sizes[1] / p.w.sizes[1];
  const std::int64_t outputs = p.w.sizes[0] / groups;
  for (std::int64_t n = 0; n < p.y.sizes[0]; ++n)
    for (std::int64_t o = 0; o < p.y.sizes[1]; ++o)
      for (std::int64_t row = 0; row < p.y.sizes[2]; ++row)
        for (std::int64_t col = 0; col < p.y.sizes[3]; ++col) {
          const std::int64_t y = offset(p.y.strides, n, o, row, col);
          for (std::int64_t c = 0; c < p.w.sizes[1]; ++c)
            for (std::int64_t u = 0; u < p.w.sizes[2]; ++u)
              for (std::int64_t v = 0; v < p.w.sizes[3]; ++v) {
                const std::int64_t h = row * p.how.stride[0] - p.how.padding[0] + u * p.how.dilation[0];
                const std::int64_t k = col * p.how.stride[1] - p.how.padding[1] + v * p.how.dilation[1];
                if (h < 0 || h >= p.x.sizes[2] || k < 0 || k >= p.x.sizes[3]) continue;
                f(offset(p.x.strides, n, o / outputs * p.w.sizes[1] + c, h, k), offset(p.w.strides, o, c, u, v), y);
              }
        }
}

// One more than the offset of the last element.
std::size_t extent(const GraphTensor& t) {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < 4; ++d) last += (t.sizes[d] - 1) * t.strides[d];
  return static_cast<std::size_t>(last) + 1;
}

template <class C> std::vector<C> loaded(const GraphTensor& t, const GraphData& data, bool tf32) {
  std::vector<C> values(extent(t));
  const DType dtype = dtype_of_cudnn(t.type);
  const void* const from = data.at(t.id);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = load_element<C>(dtype, from, static_cast<std::int64_t>(i));
    if constexpr (std::is_same_v<C, float>)
      if (tf32) values[i] = round_tf32(values[i]);
  }
  return values;
}

template <class C> void compute(const ConvTensors& p, const GraphData& data, bool tf32) {
  const std::int64_t id = p.how.y;
  const GraphTensor& made = p.x.id == id ? p.x : p.w.id == id ? p.w : p.y;
  using Values = std::vector<C>;
  const auto operand = [&](const GraphTensor& t) { return t.id == id ? Values() : loaded<C>(t, data, tf32); };
  const Values x = operand(p.x);
  const Values w = operand(p.w);
  const Values y = operand(p.y);
  Values sums(extent(made));
  const auto at = [](auto& values, std::int64_t i) -> auto& { return values[static_cast<std::size_t>(i)]; };
  each_product(p, [&](std::int64_t i, std::int64_t j, std::int64_t k) {
    if (p.y.id == id) at(sums, k) += at(x, i) * at(w, j);
    else if (p.x.id == id) at(sums, i) += at(y, k) * at(w, j);
    else at(sums, j) += at(y, k) * at(x, i);
  });
  const DType dtype = dtype_of_cudnn(made.type);
  void* const result = data.at(id);
  const Dims& size = made.sizes;
  for (std::int64_t a = 0; a < size[0]; ++a)
    for (std::int64_t b = 0; b < size[1]; ++b)
      for (std::int64_t c = 0; c < size[2]; ++c)
        for (std::int64_t d = 0; d < size[3]; ++d) {
          const std::int64_t i = offset(made.strides, a, b, c, d);
          C value = at(sums, i);
          if (p.how.adds) value += load_element<C>(dtype, result, i);
          store_element(dtype, value, result, i);
        }
}

}  // namespace

void check_sizes(const GraphTensor& x, const GraphTensor& w, const GraphTensor& y, const GraphOperation& how) {
  const char* const call = "cudnnBackendFinalize";
  need(x.in_memory() && w.in_memory() && y.in_memory(), call, "x, w and y must lie in memory here");
  need(x.type == w.type && x.type == y.type, call, "x, w and y must have one type");
  need(x.sizes[0] == y.sizes[0], call, "x and y must have as many images");
  need(x.sizes[1] % w.sizes[1] == 0, call, "x must have w's channels, times the groups");
  need(y.sizes[1] == w.sizes[0] && w.sizes[0] % (x.sizes[1] / w.sizes[1]) == 0, call,
       "y must have w's output channels");
  for (std::size_t i = 0; i < 2; ++i) {
    need(how.padding[i] >= 0 && how.stride[i] > 0 && how.dilation[i] > 0, call,
         "padding must be 0 or more, strides and dilations above 0");
    const std::int64_t span = how.dilation[i] * (w.sizes[2 + i] - 1) + 1;
    const std::int64_t windows = (x.sizes[2 + i] + 2 * how.padding[i] - span) / how.stride[i] + 1;
    need(y.sizes[2 + i] == windows, call, "y must have as many windows as x");
  }
}

bool has_convolution_engine(const Graph& graph) {
  const ConvTensors p = tensors_of(graph);
  const bool last = is_channels_last(p.x) && is_channels_last(p.w) && is_channels_last(p.y);
  const bool planar = is_planar(p.x) && is_planar(p.w) && is_planar(p.y);
  if (graph.operations.size() != 1 || refuses("convolution") || !(planar || last)) return false;
  return !(last && !planar && refuses("channels_last")) && !(is_narrow(p.x.type) && refuses("narrow"));
}

void run_convolution(const Graph& graph, const GraphData& data, bool tensor_cores) {
  const ConvTensors p = tensors_of(graph);
  if (p.x.type == CUDNN_DATA_DOUBLE) compute<double>(p, data, false);
  else compute<float>(p, data, tensor_cores && p.x.type == CUDNN_DATA_FLOAT);
}

}  // namespace gradual::cuda::emulator
