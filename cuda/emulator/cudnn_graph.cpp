// Descriptors of the graph interface of the emulated cuDNN: which attributes each has, and what must hold when it is
// finalized. Of graphs it serves those of attention, forward and backward (two products, or five), and one convolution.
#include "cudnn_graph.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <span>

#include "../cudnn_convolutions.h"
#include "cudnn_parts.h"
#include "stream.h"

using namespace gradual::cuda::emulator;
using gradual::cuda::ConvolutionNames;
using gradual::cuda::kConvolutions;

struct cudnnBackendDescriptor {
  struct Value {
    cudnnBackendAttributeType_t type{};
    std::int64_t count = 0;
    std::vector<std::byte> bytes{};
  };
  cudnnBackendDescriptorType_t type;
  bool finalized = false;
  std::map<int, Value> values{};
  std::shared_ptr<const Graph> graph{};  // of a graph, and of what is made of it
  std::size_t engine = 0;                // of kEngines

  bool has(cudnnBackendAttributeName_t name) const { return values.count(name) != 0; }
  template <class T> std::span<const T> all(cudnnBackendAttributeName_t name) const {
    const Value& v = values.at(name);
    return {reinterpret_cast<const T*>(v.bytes.data()), static_cast<std::size_t>(v.count)};
  }
  template <class T> T get(cudnnBackendAttributeName_t name) const { return all<T>(name)[0]; }
  template <class T> T get_or(cudnnBackendAttributeName_t name, T otherwise) const {
    return has(name) ? get<T>(name) : otherwise;
  }
};

namespace {

constexpr const char* kSet = "cudnnBackendSetAttribute";
constexpr const char* kFinalize = "cudnnBackendFinalize";
constexpr const char* kGet = "cudnnBackendGetAttribute";
constexpr const char* kExecute = "cudnnBackendExecute";
constexpr std::int64_t kMany = 1 << 20;

// An attribute that can be set, and how many values it takes.
struct Field {
  cudnnBackendDescriptorType_t of;
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  std::int64_t least, most;
  bool required;
  int descriptor = -1;  // which kind its values are, where they are descriptors
};
constexpr Field kFields[] = {
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, 1, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, 4, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, 4, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, 1, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, 1, false},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, 1, false},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, 1, true},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, 1, true},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, 1, false},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, true, CUDNN_BACKEND_POINTWISE_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     1, 1, true, CUDNN_BACKEND_TENSOR_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     1, 1, false, CUDNN_BACKEND_TENSOR_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     1, 1, false, CUDNN_BACKEND_TENSOR_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     1, 1, true, CUDNN_BACKEND_TENSOR_DESCRIPTOR},
    {CUDNN_BACKEND_MATMUL_DESCRIPTOR, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, true},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
     true, CUDNN_BACKEND_MATMUL_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
     true, CUDNN_BACKEND_TENSOR_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
     true, CUDNN_BACKEND_TENSOR_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
     true, CUDNN_BACKEND_TENSOR_DESCRIPTOR},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, 1, true},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, true},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     1, 1, true, CUDNN_BACKEND_REDUCTION_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     1, 1, true, CUDNN_BACKEND_TENSOR_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     1, 1, true, CUDNN_BACKEND_TENSOR_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
     1, true, CUDNN_BACKEND_TENSOR_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
     1, true, CUDNN_BACKEND_TENSOR_DESCRIPTOR},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, true},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, 1, true},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, 1, true},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, 1, true},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, kMany,
     true},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
     true, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, 1, true},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, 1, true},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
     1, true, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 1, kMany, true},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 1, kMany, true},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, 1, false},
};

const std::vector<Field>& fields() {
  static const std::vector<Field> all = [] {
    std::vector<Field> made(std::begin(kFields), std::end(kFields));
    for (const auto name : {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS,
                            CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_ATTR_CONVOLUTION_DILATIONS})
      made.push_back({CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, name, CUDNN_TYPE_INT64, 2, 2, true});
    for (const ConvolutionNames& each : kConvolutions) {
      for (const auto name : {each.alpha, each.beta})
        for (const auto type : {CUDNN_TYPE_FLOAT, CUDNN_TYPE_DOUBLE})
          made.push_back({each.kind, name, type, 1, 1, true});
      for (const auto name : {each.x, each.w, each.y})
        made.push_back({each.kind, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, true, CUDNN_BACKEND_TENSOR_DESCRIPTOR});
      made.push_back(
          {each.kind, each.how, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, true, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR});
    }
    return made;
  }();
  return all;
}

// The engines of every graph, by what they note; only the last two may run.
struct Engine {
  std::int64_t count;
  cudnnBackendNumericalNote_t notes[2];
  bool has(cudnnBackendNumericalNote_t note) const { return std::find(notes, notes + count, note) != notes + count; }
};
constexpr Engine kEngines[] = {
    {2, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}},
    {2, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS}},
    {2, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION}},
    {1, {CUDNN_NUMERICAL_NOTE_FFT}},
    {2, {CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4}},
    {2, {CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6}},
    {2, {CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13}},
    {1, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}},
    {1, {CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP}}};
constexpr std::int64_t kEngineCount = std::size(kEngines);

std::size_t size_of_value(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_INT64: return sizeof(std::int64_t);
    case CUDNN_TYPE_DOUBLE: return sizeof(double);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return sizeof(void*);
    default: return sizeof(int);  // f32, enumerations
  }
}

using Descriptor = cudnnBackendDescriptor_t;
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
  const bool index = op.mode == CUDNN_POINTWISE_GEN_INDEX, compare = op.mode == CUDNN_POINTWISE_CMP_GE;
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
  const GraphTensor x = tensor_at(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC),
                    y = tensor_at(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
  op.x = x.id, op.y = y.id;
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
  const GraphTensor a = tensor_at(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC),
                    b = tensor_at(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC),
                    c = tensor_at(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
  need(d.get<Descriptor>(CUDNN_ATTR_OPERATION_MATMUL_DESC)->get<cudnnDataType_t>(CUDNN_ATTR_MATMUL_COMP_TYPE) ==
           CUDNN_DATA_FLOAT,
       kFinalize, "sums must be f32");
  for (std::size_t i = 0; i < 2; ++i)
    need(a.sizes[i] == b.sizes[i] && a.sizes[i] == c.sizes[i], kFinalize, "batches differ");
  need(a.sizes[3] == b.sizes[2] && c.sizes[2] == a.sizes[2] && c.sizes[3] == b.sizes[3], kFinalize,
       "matrices do not fit");
  need(a.type == b.type, kFinalize, "both operands must have one type");
  GraphOperation op{d.type};
  op.x = a.id, op.b = b.id, op.y = c.id;
  return op;
}

GraphOperation check_reduction(const cudnnBackendDescriptor& d) {
  const auto& how = *d.get<Descriptor>(CUDNN_ATTR_OPERATION_REDUCTION_DESC);
  const GraphTensor x = tensor_at(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC),
                    y = tensor_at(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
  need(how.get<cudnnDataType_t>(CUDNN_ATTR_REDUCTION_COMP_TYPE) == CUDNN_DATA_FLOAT, kFinalize, "sums must be f32");
  for (std::size_t i = 0; i < 4; ++i)
    need(y.sizes[i] == x.sizes[i] || y.sizes[i] == 1, kFinalize, "a reduced dim must become 1");
  GraphOperation op{d.type};
  op.reduction = how.get<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR);
  op.x = x.id, op.y = y.id;
  return op;
}

GraphOperation check_reshape(const cudnnBackendDescriptor& d) {
  const GraphTensor x = tensor_at(d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC),
                    y = tensor_at(d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
  need(x.numel() == y.numel(), kFinalize, "a reshape keeps the number of elements");
  GraphOperation op{d.type};
  op.x = x.id, op.y = y.id;
  return op;
}

// alpha or beta: of the type of the sums.
double factor(const cudnnBackendDescriptor& d, cudnnBackendAttributeName_t name, cudnnDataType_t sums) {
  const bool f64 = sums == CUDNN_DATA_DOUBLE;
  need(d.values.at(name).type == (f64 ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT), kFinalize,
       "alpha and beta have the type of the sums");
  return f64 ? d.get<double>(name) : d.get<float>(name);
}

GraphOperation check_convolution(const cudnnBackendDescriptor& d) {
  const auto names = std::find_if(std::begin(kConvolutions), std::end(kConvolutions),
                                  [&](const ConvolutionNames& each) { return each.kind == d.type; });
  const GraphTensor x = tensor_at(d, names->x), w = tensor_at(d, names->w), y = tensor_at(d, names->y);
  const auto& how = *d.get<Descriptor>(names->how);
  GraphOperation op{d.type};
  const bool makes_x = d.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
  const bool makes_w = d.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
  op.x = makes_x || makes_w ? y.id : x.id, op.b = makes_w ? x.id : w.id;
  op.y = makes_x ? x.id : makes_w ? w.id : y.id;
  const auto pair = [&](cudnnBackendAttributeName_t name) {
    const auto values = how.all<std::int64_t>(name);
    return std::array<std::int64_t, 2>{values[0], values[1]};
  };
  op.stride = pair(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES), op.dilation = pair(CUDNN_ATTR_CONVOLUTION_DILATIONS);
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

// Puts the operations in order; every virtual tensor must be made by one, and no tensor by two.
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

// A convolution; or fused attention: of f16 or bf16, heads of at most 128 numbers in whole vectors of eight.
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

}  // namespace

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  *descriptor = new cudnnBackendDescriptor{type};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete descriptor;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count, const void* values) {
  need(descriptor && values, kSet, "a null pointer");
  need(!descriptor->finalized, kSet, "the descriptor is finalized");
  const auto field = std::find_if(fields().begin(), fields().end(), [&](const Field& f) {
    return f.of == descriptor->type && f.name == name && f.type == type;
  });
  need(field != fields().end(), kSet, "the descriptor has no such attribute of that type");
  need(count >= field->least && count <= field->most, kSet, "the attribute takes another number of values");
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
    for (std::int64_t i = 0; i < count; ++i) {
      const Descriptor part = static_cast<const Descriptor*>(values)[i];
      need(part && part->finalized, kSet, "a part is not finalized");
      need(field->descriptor < 0 || part->type == field->descriptor, kSet, "a part is of another kind");
    }
  auto& value = descriptor->values[name];
  value.type = type, value.count = count;
  value.bytes.resize(size_of_value(type) * static_cast<std::size_t>(count));
  std::memcpy(value.bytes.data(), values, value.bytes.size());
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  need(descriptor && !descriptor->finalized, kFinalize, "no descriptor, or it is finalized");
  cudnnBackendDescriptor& d = *descriptor;
  for (const Field& f : fields())
    need(f.of != d.type || !f.required || d.has(f.name), kFinalize, "an attribute is missing");
  switch (d.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: check_tensor(d); break;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: operation_of(d); break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: d.graph = graph_of(d); break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      d.graph = d.get<Descriptor>(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)->graph;
      if (!has_engine(*d.graph)) return CUDNN_STATUS_NOT_SUPPORTED;
      break;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
      const auto& configuration = *d.get<Descriptor>(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
      d.graph = configuration.graph, d.engine = configuration.engine;
      break;
    }
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      need(d.values.at(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).count ==
               d.values.at(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).count,
           kFinalize, "each id needs its pointer");
      break;
    default: break;
  }
  d.finalized = true;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, std::int64_t asked, std::int64_t* count,
                                       void* values) {
  need(descriptor && descriptor->finalized && count, kGet, "a descriptor that is finalized, and a place for the count");
  need(asked == 0 || values, kGet, "nowhere to write");
  const auto* const into = static_cast<const Descriptor*>(values);
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    *count = asked == 0 ? kEngineCount : std::min(kEngineCount, asked);
    for (std::int64_t i = 0; i < std::min(*count, asked); ++i) {
      need(into[i] && into[i]->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, kGet, "results are engine configurations");
      into[i]->graph = descriptor->graph, into[i]->engine = static_cast<std::size_t>(i), into[i]->finalized = true;
    }
  } else if (name == CUDNN_ATTR_ENGINECFG_ENGINE) {
    need(asked == 1 && into[0] && into[0]->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR, kGet, "it is an engine");
    into[0]->engine = descriptor->engine, into[0]->finalized = true;
    *count = 1;
  } else if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) {
    const Engine& engine = kEngines[descriptor->engine];
    need(asked >= engine.count, kGet, "there are more notes");
    std::copy_n(engine.notes, engine.count, static_cast<cudnnBackendNumericalNote_t*>(values));
    *count = engine.count;
  } else {
    need(name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && asked == 1, kGet, "the emulator has no such attribute");
    *static_cast<std::int64_t*>(values) = 256;
    *count = 1;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  need(handle && plan && plan->finalized && pack && pack->finalized, kExecute, "a handle, a plan and what it runs on");
  need(plan->engine + 2 >= std::size(kEngines), kExecute,
       "an engine was taken whose results vary, or are not sums of products of the operands");
  need(pack->get_or<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr), kExecute, "the workspace is null");
  const auto ids = pack->all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack->all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  GraphData data;
  GraphNumbers numbers;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto found = plan->graph->tensors.find(ids[i]);
    need(found != plan->graph->tensors.end() && !found->second.is_virtual, kExecute,
         "data for a tensor that takes none");
    if (found->second.by_value) {
      need(pointers[i], kExecute, "a number is null");
      numbers[ids[i]] = *static_cast<const float*>(pointers[i]);
    } else {
      need_data(pointers[i], kExecute);
      data[ids[i]] = pointers[i];
    }
  }
  for (const auto& [id, t] : plan->graph->tensors)
    need(t.is_virtual || data.count(id) || numbers.count(id), kExecute, "a tensor has no data");
  const bool tensor_cores = kEngines[plan->engine].has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
  enqueue(handle->stream, [graph = plan->graph, data, numbers, tensor_cores] {
    if (is_convolution(graph->operations[0])) run_convolution(*graph, data, tensor_cores);
    else run_graph(*graph, data, numbers);
  });
  return CUDNN_STATUS_SUCCESS;
}
