#include "cudnn_graph.h"

#include <algorithm>
#include <set>

#include "../../cuda/libraries/cudnn_convolutions.h"
#include "cudnn_descriptor.h"
#include "cudnn_parts.h"

namespace gradual::cuda::emulator {
namespace {

using Sizes = std::array<std::int64_t, 4>;

GraphTensor tensor_of(const cudnnBackendDescriptor& d) {
  GraphTensor t;
  t.id = d.get<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
  t.type = d.get<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
  std::copy_n(d.all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS).begin(), 4, t.sizes.begin());
  std::copy_n(d.all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES).begin(), 4, t.strides.begin());
  t.is_virtual = d.get_or(CUDNN_ATTR_TENSOR_IS_VIRTUAL, false);
  t.by_value = d.get_or(CUDNN_ATTR_TENSOR_IS_BY_VALUE, false);
  return t;
}
GraphTensor tensor_at(const cudnnBackendDescriptor& d, cudnnBackendAttributeName_t name) {
  return tensor_of(*d.get<Descriptor>(name));
}

Sizes joined(const GraphTensor& a, const GraphTensor& b) {
  Sizes sizes = a.sizes;
  for (std::size_t d = 0; d < 4; ++d) {
    need(a.sizes[d] == b.sizes[d] || a.sizes[d] == 1 || b.sizes[d] == 1, kFinalize, "sizes do not broadcast");
    sizes[d] = std::max(a.sizes[d], b.sizes[d]);
  }
  return sizes;
}

int operands_of(cudnnPointwiseMode_t mode) {
  switch (mode) {
    case CUDNN_POINTWISE_EXP:
    case CUDNN_POINTWISE_LOG:
    case CUDNN_POINTWISE_GEN_INDEX: return 1;
    case CUDNN_POINTWISE_BINARY_SELECT: return 3;
    default: return 2;
  }
}

GraphOperation check_pointwise(const cudnnBackendDescriptor& d) {
  const auto& how = *d.get<Descriptor>(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  GraphOperation op{d.type, how.get<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE)};
  op.axis = how.get_or<std::int64_t>(CUDNN_ATTR_POINTWISE_AXIS, -1);
  const bool index = op.mode == CUDNN_POINTWISE_GEN_INDEX;
  const bool compare = op.mode == CUDNN_POINTWISE_CMP_GE;
  need(index ? op.axis >= 0 && op.axis < 4 : op.axis < 0, kFinalize, "an axis belongs to GEN_INDEX alone");
  const auto math = how.get<cudnnDataType_t>(CUDNN_ATTR_POINTWISE_MATH_PREC);
  need(math == (index     ? CUDNN_DATA_INT32
                : compare ? CUDNN_DATA_BOOLEAN
                          : CUDNN_DATA_FLOAT),
       kFinalize, "the arithmetic's type does not go with the mode");
  const int operands = operands_of(op.mode);
  need(d.has(CUDNN_ATTR_OPERATION_POINTWISE_BDESC) == (operands > 1) &&
           d.has(CUDNN_ATTR_OPERATION_POINTWISE_TDESC) == (operands > 2),
       kFinalize, "the mode has another number of operands");
  const GraphTensor x = tensor_at(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
  const GraphTensor y = tensor_at(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
  op.x = x.id;
  op.y = y.id;
  Sizes sizes = x.sizes;
  if (operands > 1) {
    const GraphTensor b = tensor_at(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    op.b = b.id;
    sizes = joined(x, b);
  }
  if (operands > 2) {
    const GraphTensor t = tensor_at(d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    need(t.type == CUDNN_DATA_BOOLEAN && t.sizes == sizes, kFinalize,
         "what selects must be booleans of the same sizes");
    op.t = t.id;
  }
  need(y.sizes == sizes, kFinalize, "the result has other sizes");
  need((y.type == CUDNN_DATA_BOOLEAN) == compare && (y.type == CUDNN_DATA_INT32) == index, kFinalize,
       "the result's type does not go with the mode");
  return op;
}

GraphOperation check_matmul(const cudnnBackendDescriptor& d) {
  const GraphTensor a = tensor_at(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
  const GraphTensor b = tensor_at(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
  const GraphTensor c = tensor_at(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
  need(d.get<Descriptor>(CUDNN_ATTR_OPERATION_MATMUL_DESC)->get<cudnnDataType_t>(CUDNN_ATTR_MATMUL_COMP_TYPE) ==
           CUDNN_DATA_FLOAT,
       kFinalize, "sums must be f32");
  for (std::size_t i = 0; i < 2; ++i)
    need(a.sizes[i] == b.sizes[i] && a.sizes[i] == c.sizes[i], kFinalize, "batches differ");
  need(a.sizes[3] == b.sizes[2] && c.sizes[2] == a.sizes[2] && c.sizes[3] == b.sizes[3], kFinalize,
       "matrices do not fit");
  need(a.type == b.type, kFinalize, "both operands must have one type");
  GraphOperation op{d.type};
  op.x = a.id;
  op.b = b.id;
  op.y = c.id;
  return op;
}

GraphOperation check_reduction(const cudnnBackendDescriptor& d) {
  const auto& how = *d.get<Descriptor>(CUDNN_ATTR_OPERATION_REDUCTION_DESC);
  const GraphTensor x = tensor_at(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
  const GraphTensor y = tensor_at(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
  need(how.get<cudnnDataType_t>(CUDNN_ATTR_REDUCTION_COMP_TYPE) == CUDNN_DATA_FLOAT, kFinalize, "sums must be f32");
  for (std::size_t i = 0; i < 4; ++i)
    need(y.sizes[i] == x.sizes[i] || y.sizes[i] == 1, kFinalize, "a reduced dim must become 1");
  GraphOperation op{d.type};
  op.reduction = how.get<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR);
  op.x = x.id;
  op.y = y.id;
  return op;
}

GraphOperation check_reshape(const cudnnBackendDescriptor& d) {
  const GraphTensor x = tensor_at(d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
  const GraphTensor y = tensor_at(d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
  need(x.numel() == y.numel(), kFinalize, "a reshape keeps the number of elements");
  GraphOperation op{d.type};
  op.x = x.id;
  op.y = y.id;
  return op;
}

// alpha or beta, in the type of the sums.
double factor(const cudnnBackendDescriptor& d, cudnnBackendAttributeName_t name, cudnnDataType_t sums) {
  const bool f64 = sums == CUDNN_DATA_DOUBLE;
  need(d.values.at(name).type == (f64 ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT), kFinalize,
       "alpha and beta have the type of the sums");
  return f64 ? d.get<double>(name) : d.get<float>(name);
}

GraphOperation check_convolution(const cudnnBackendDescriptor& d) {
  const auto names = std::find_if(std::begin(kConvolutions), std::end(kConvolutions),
                                  [&](const ConvolutionNames& each) { return each.kind == d.type; });
  const GraphTensor x = tensor_at(d, names->x);
  const GraphTensor w = tensor_at(d, names->w);
  const GraphTensor y = tensor_at(d, names->y);
  const auto& how = *d.get<Descriptor>(names->how);
  GraphOperation op{d.type};
  const bool makes_x = d.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
  const bool makes_w = d.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
  op.x = makes_x || makes_w ? y.id : x.id;
  op.b = makes_w ? x.id : w.id;
  op.y = makes_x ? x.id : makes_w ? w.id : y.id;
  const auto pair = [&](cudnnBackendAttributeName_t name) {
    const auto values = how.all<std::int64_t>(name);
    return std::array<std::int64_t, 2>{values[0], values[1]};
  };
  op.stride = pair(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
  op.dilation = pair(CUDNN_ATTR_CONVOLUTION_DILATIONS);
  op.padding = pair(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
  need(op.padding == pair(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS), kFinalize, "paddings must be as wide on both sides");
  need(how.get<std::int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) == 2, kFinalize, "windows have two dims here");
  need(how.get<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE) == CUDNN_CROSS_CORRELATION, kFinalize,
       "the emulator has no true convolution");
  const auto sums = how.get<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE);
  need(sums == (x.type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT), kFinalize,
       "sums must be f32, and f64 of f64");
  const double beta = factor(d, names->beta, sums);
  need(factor(d, names->alpha, sums) == 1 && (beta == 0 || beta == 1), kFinalize, "alpha must be 1, beta 0 or 1");
  op.adds = beta == 1;
  check_sizes(x, w, y, op);
  return op;
}

}  // namespace

void check_tensor(const cudnnBackendDescriptor& d) {
  const GraphTensor t = tensor_of(d);
  dtype_of_cudnn(t.type);
  need(t.id != 0, kFinalize, "a tensor's id must not be 0 here");
  need(!(t.is_virtual && t.by_value), kFinalize, "a tensor is virtual or given by value, not both");
  const auto alignment = d.get<std::int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  need(alignment == 16, kFinalize, "a tensor must promise to lie at a multiple of 16 bytes");
  for (std::size_t i = 0; i < 4; ++i)
    need(t.sizes[i] > 0 && t.strides[i] > 0, kFinalize, "sizes and strides must be above 0");
  if (t.by_value) need(t.numel() == 1 && t.type == CUDNN_DATA_FLOAT, kFinalize, "what is given by value is one f32");
}

GraphOperation operation_of(const cudnnBackendDescriptor& d) {
  switch (d.type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: return check_pointwise(d);
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: return check_matmul(d);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: return check_reduction(d);
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: return check_reshape(d);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR: return check_convolution(d);
    default: need(false, kFinalize, "a graph is made of operations"); return {};
  }
}

std::shared_ptr<Graph> graph_of(const cudnnBackendDescriptor& d) {
  auto graph = std::make_shared<Graph>();
  std::vector<GraphOperation> waiting;
  std::set<std::int64_t> to_make;
  for (const Descriptor each : d.all<Descriptor>(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    need(each && each->finalized, kFinalize, "an operation is not finalized");
    waiting.push_back(operation_of(*each));
    for (const auto& [name, value] : each->values) {
      if (value.type != CUDNN_TYPE_BACKEND_DESCRIPTOR) continue;
      for (const Descriptor part : each->all<Descriptor>(static_cast<cudnnBackendAttributeName_t>(name)))
        if (part->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) graph->tensors[tensor_of(*part).id] = tensor_of(*part);
    }
    need(to_make.insert(waiting.back().y).second, kFinalize, "two operations make one tensor");
  }
  for (const auto& [id, t] : graph->tensors)
    need(!t.is_virtual || to_make.count(id), kFinalize, "nothing makes a virtual tensor");
  while (!waiting.empty()) {
    const auto ready = [&](const GraphOperation& op) {
      return !to_make.count(op.x) && !to_make.count(op.b) && !to_make.count(op.t);
    };
    const auto next = std::find_if(waiting.begin(), waiting.end(), ready);
    need(next != waiting.end(), kFinalize, "operations go round in a circle");
    to_make.erase(next->y);
    graph->operations.push_back(*next);
    waiting.erase(next);
  }
  return graph;
}

bool has_engine(const Graph& graph) {
  if (is_convolution(graph.operations[0])) return has_convolution_engine(graph);
  if (refuses("graph")) return false;
  const auto products = std::count_if(graph.operations.begin(), graph.operations.end(), [](const GraphOperation& op) {
    return op.kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR;
  });
  if (products != 2 && products != 5) return false;
  for (const auto& [id, t] : graph.tensors) {
    if (!t.in_memory() || t.type == CUDNN_DATA_FLOAT) continue;
    const std::size_t head = t.strides[3] == 1 ? 3 : 2;  // transposed matrices have their heads in rows
    if (!is_narrow(t.type) || t.strides[head] != 1 || t.sizes[head] % 8 != 0 || t.sizes[head] > 128) return false;
    for (std::size_t d = 0; d < 4; ++d)
      if (d != head && t.strides[d] % 8 != 0) return false;
  }
  return true;
}

}  // namespace gradual::cuda::emulator
