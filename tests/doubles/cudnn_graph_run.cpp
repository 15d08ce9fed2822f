// Runs the operations of a graph one after the other. Intermediate tensors are kept whole: row-major, in f32, rounded
// to their declared type.
#include <algorithm>
#include <cmath>
#include <limits>

#include "../../cuda/kernels/elements.h"
#include "cudnn_graph.h"
#include "cudnn_parts.h"

namespace gradual::cuda::emulator {
namespace {

using Values = std::vector<float>;
using Index = std::array<std::int64_t, 4>;

// f(index, position in row-major order).
template <class F> void each_index(const Index& sizes, const F& f) {
  Index i{};
  std::int64_t position = 0;
  for (i[0] = 0; i[0] < sizes[0]; ++i[0])
    for (i[1] = 0; i[1] < sizes[1]; ++i[1])
      for (i[2] = 0; i[2] < sizes[2]; ++i[2])
        for (i[3] = 0; i[3] < sizes[3]; ++i[3]) f(i, position++);
}
std::int64_t offset_of(const Index& i, const Index& strides) {
  return i[0] * strides[0] + i[1] * strides[1] + i[2] * strides[2] + i[3] * strides[3];
}
Index packed(const Index& s) { return {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}; }

struct Machine {
  const Graph& graph;
  const GraphData& data;
  const GraphNumbers& numbers;
  std::unordered_map<std::int64_t, Values> made{};  // virtual tensors

  const GraphTensor& tensor(std::int64_t id) const { return graph.tensors.at(id); }

  Values read(std::int64_t id) const {
    const GraphTensor& t = tensor(id);
    if (t.by_value) return {numbers.at(id)};
    if (t.is_virtual) return made.at(id);
    Values values(static_cast<std::size_t>(t.numel()));
    const DType dtype = dtype_of_cudnn(t.type);
    const void* from = data.at(id);
    each_index(t.sizes, [&](const Index& i, std::int64_t at) {
      values[static_cast<std::size_t>(at)] = load_element<float>(dtype, from, offset_of(i, t.strides));
    });
    return values;
  }
  void write(std::int64_t id, Values values) {
    const GraphTensor& t = tensor(id);
    const DType dtype = dtype_of_cudnn(t.type);
    if (t.is_virtual) {
      if (is_narrow(t.type))
        for (float& v : values) {
          std::uint64_t stored = 0;
          store_element(dtype, v, &stored, 0);
          v = load_element<float>(dtype, &stored, 0);
        }
      made[id] = std::move(values);
      return;
    }
    void* const to = data.at(id);
    each_index(t.sizes, [&](const Index& i, std::int64_t at) {
      store_element(dtype, values[static_cast<std::size_t>(at)], to, offset_of(i, t.strides));
    });
  }
  // The offset of the element that broadcasts to position `i`.
  std::size_t broadcast(const GraphTensor& t, Index i) const {
    for (std::size_t d = 0; d < 4; ++d)
      if (t.sizes[d] == 1) i[d] = 0;
    return static_cast<std::size_t>(offset_of(i, packed(t.sizes)));
  }

  void product(const GraphOperation& op) {
    const Values a = read(op.x);
    const Values b = read(op.b);
    const GraphTensor& y = tensor(op.y);
    const std::int64_t k = tensor(op.x).sizes[3];
    const std::int64_t n = y.sizes[3];
    const std::int64_t m = y.sizes[2];
    Values c(static_cast<std::size_t>(y.numel()));
    each_index(y.sizes, [&](const Index& i, std::int64_t at) {
      const std::int64_t batch = i[0] * y.sizes[1] + i[1];
      float sum = 0;
      for (std::int64_t e = 0; e < k; ++e)
        sum += a[static_cast<std::size_t>((batch * m + i[2]) * k + e)] *
               b[static_cast<std::size_t>((batch * k + e) * n + i[3])];
      c[static_cast<std::size_t>(at)] = sum;
    });
    write(op.y, std::move(c));
  }

  static float apply(cudnnPointwiseMode_t mode, float x, float b, float t, std::int64_t position) {
    switch (mode) {
      case CUDNN_POINTWISE_ADD: return x + b;
      case CUDNN_POINTWISE_MUL: return x * b;
      case CUDNN_POINTWISE_DIV: return x / b;
      case CUDNN_POINTWISE_SUB: return x - b;
      case CUDNN_POINTWISE_EXP: return std::exp(x);
      case CUDNN_POINTWISE_LOG: return std::log(x);
      case CUDNN_POINTWISE_CMP_GE: return x >= b ? 1.0f : 0.0f;
      case CUDNN_POINTWISE_GEN_INDEX: return static_cast<float>(position);
      case CUDNN_POINTWISE_BINARY_SELECT: return t != 0 ? x : b;
    }
    return 0;
  }
  void pointwise(const GraphOperation& op) {
    const Values x = read(op.x);
    const Values b = op.b ? read(op.b) : Values{};
    const Values t = op.t ? read(op.t) : Values{};
    const GraphTensor& out = tensor(op.y);
    Values y(static_cast<std::size_t>(out.numel()));
    each_index(out.sizes, [&](const Index& i, std::int64_t at) {
      const auto of = [&](const Values& values, std::int64_t id) {
        return id ? values[broadcast(tensor(id), i)] : 0.0f;
      };
      const std::int64_t position = op.axis >= 0 ? i[static_cast<std::size_t>(op.axis)] : 0;
      y[static_cast<std::size_t>(at)] = apply(op.mode, of(x, op.x), of(b, op.b), of(t, op.t), position);
    });
    write(op.y, std::move(y));
  }

  void reduction(const GraphOperation& op) {
    const Values x = read(op.x);
    const GraphTensor& out = tensor(op.y);
    const bool largest = op.reduction == CUDNN_REDUCE_TENSOR_MAX;
    Values y(static_cast<std::size_t>(out.numel()), largest ? -std::numeric_limits<float>::infinity() : 0.0f);
    each_index(tensor(op.x).sizes, [&](const Index& i, std::int64_t at) {
      float& to = y[broadcast(out, i)];
      const float value = x[static_cast<std::size_t>(at)];
      to = largest ? std::max(to, value) : to + value;
    });
    write(op.y, std::move(y));
  }

  // Element i of the result, by offset, is element i of the operand.
  void reshape(const GraphOperation& op) {
    const Values x = read(op.x);
    const GraphTensor& in = tensor(op.x);
    const GraphTensor& out = tensor(op.y);
    std::unordered_map<std::int64_t, float> at_offset;
    each_index(in.sizes, [&](const Index& i, std::int64_t at) {
      at_offset[offset_of(i, in.strides)] = x[static_cast<std::size_t>(at)];
    });
    Values y(static_cast<std::size_t>(out.numel()));
    each_index(out.sizes, [&](const Index& i, std::int64_t at) {
      const auto found = at_offset.find(offset_of(i, out.strides));
      need(found != at_offset.end(), "reshape", "the result has an element where the operand has none");
      y[static_cast<std::size_t>(at)] = found->second;
    });
    write(op.y, std::move(y));
  }
};

}  // namespace

void run_graph(const Graph& graph, const GraphData& data, const GraphNumbers& numbers) {
  Machine machine{graph, data, numbers};
  for (const GraphOperation& op : graph.operations) {
    if (op.kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) machine.product(op);
    else if (op.kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) machine.pointwise(op);
    else if (op.kind == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) machine.reduction(op);
    else machine.reshape(op);
  }
}

}  // namespace gradual::cuda::emulator
