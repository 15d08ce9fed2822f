#include "cudnn_graph.h"

#include <dlfcn.h>

#include <algorithm>

#include "../runtime/memory.h"
#include "../runtime/profiling.h"
#include "cudnn_convolutions.h"

namespace gradual::cuda {

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  check(cudnnBackendCreateDescriptor(type, &value_), "cudnnBackendCreateDescriptor");
}
CudnnDescriptor::~CudnnDescriptor() { cudnnBackendDestroyDescriptor(value_); }
void CudnnDescriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
                          const void* values) {
  check(cudnnBackendSetAttribute(value_, name, type, count, values), "cudnnBackendSetAttribute");
}
void CudnnDescriptor::finish() { check(cudnnBackendFinalize(value_), "cudnnBackendFinalize"); }
bool CudnnDescriptor::try_finish() { return supported(cudnnBackendFinalize(value_), "cudnnBackendFinalize"); }

Dims4 packed_strides(const Dims4& s) { return {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}; }

// --- a graph ---------------------------------------------------------------------------------------------------------

OperationGraph::Tensor& OperationGraph::add(cudnnDataType_t type, const Dims4& sizes, const Dims4& strides) {
  Tensor& t = tensors_.emplace_back();
  t.sizes = sizes;
  t.descriptor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, static_cast<std::int64_t>(tensors_.size()));
  t.descriptor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  t.descriptor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, sizes.data());
  t.descriptor.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data());
  t.descriptor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, std::int64_t{16});
  return t;
}
OperationGraph::Id OperationGraph::finished(Tensor& t) {
  t.descriptor.finish();
  return static_cast<Id>(tensors_.size());
}
OperationGraph::Id OperationGraph::memory(cudnnDataType_t type, const Dims4& sizes, const Dims4& strides) {
  return finished(add(type, sizes, strides));
}
OperationGraph::Id OperationGraph::between(const Dims4& sizes, const Dims4& strides, cudnnDataType_t type) {
  Tensor& t = add(type, sizes, strides);
  t.descriptor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
  return finished(t);
}
OperationGraph::Id OperationGraph::between(const Dims4& sizes, cudnnDataType_t type) {
  return between(sizes, packed_strides(sizes), type);
}
OperationGraph::Id OperationGraph::number() {
  Tensor& t = add(CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1});
  t.descriptor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, true);
  return finished(t);
}

void OperationGraph::matmul(Id a, Id b, Id c) {
  CudnnDescriptor& how = details_.emplace_back(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  how.finish();
  CudnnDescriptor& operation = operations_.emplace_back(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, at(a).descriptor);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, at(b).descriptor);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, at(c).descriptor);
  operation.finish();
}

Dims4 OperationGraph::joined(Id x, Id b) const {
  Dims4 sizes = at(x).sizes;
  for (std::size_t d = 0; b && d < 4; ++d) sizes[d] = std::max(sizes[d], at(b).sizes[d]);
  return sizes;
}
void OperationGraph::point(Id y, cudnnPointwiseMode_t mode, cudnnDataType_t math, Id x, Id b, Id t, std::int64_t dim) {
  CudnnDescriptor& how = details_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, math);
  if (dim >= 0) how.set(CUDNN_ATTR_POINTWISE_AXIS, dim);
  how.finish();
  CudnnDescriptor& operation = operations_.emplace_back(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, at(x).descriptor);
  if (b) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, at(b).descriptor);
  if (t) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, at(t).descriptor);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, at(y).descriptor);
  operation.finish();
}
void OperationGraph::pointwise_into(Id y, cudnnPointwiseMode_t mode, Id x, Id b) {
  point(y, mode, CUDNN_DATA_FLOAT, x, b, 0, -1);
}
OperationGraph::Id OperationGraph::pointwise(cudnnPointwiseMode_t mode, Id x, Id b) {
  const Id y = between(joined(x, b));
  pointwise_into(y, mode, x, b);
  return y;
}
OperationGraph::Id OperationGraph::select(Id x, Id b, Id t) {
  const Id y = between(joined(x, b));
  point(y, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, x, b, t, -1);
  return y;
}
OperationGraph::Id OperationGraph::index(Id like, int dim) {
  const Id y = between(at(like).sizes, CUDNN_DATA_INT32);
  point(y, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, like, 0, 0, dim);
  return y;
}
OperationGraph::Id OperationGraph::compare(cudnnPointwiseMode_t mode, Id x, Id b) {
  const Id y = between(joined(x, b), CUDNN_DATA_BOOLEAN);
  point(y, mode, CUDNN_DATA_BOOLEAN, x, b, 0, -1);
  return y;
}

OperationGraph::Id OperationGraph::reduce(cudnnReduceTensorOp_t with, Id x, const Dims4& sizes) {
  CudnnDescriptor& how = details_.emplace_back(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &with);
  how.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  how.finish();
  const Id y = between(sizes);
  CudnnDescriptor& operation = operations_.emplace_back(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, at(x).descriptor);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, at(y).descriptor);
  operation.finish();
  return y;
}

OperationGraph::Id OperationGraph::reshape(Id x, const Dims4& sizes, const Dims4& strides, cudnnDataType_t type) {
  const Id y = between(sizes, strides, type);
  CudnnDescriptor& operation = operations_.emplace_back(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, at(x).descriptor);
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, at(y).descriptor);
  operation.finish();
  return y;
}

void OperationGraph::convolution(cudnnBackendDescriptorType_t kind, Id x, Id w, Id y, const ConvAttrs& how,
                                 cudnnDataType_t sums, bool adds) {
  CudnnDescriptor& windows = details_.emplace_back(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  constexpr auto kMode = CUDNN_CROSS_CORRELATION;
  windows.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, sums);
  windows.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &kMode);
  windows.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, std::int64_t{2});
  windows.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, how.stride.of);
  windows.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, how.padding.of);
  windows.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, how.padding.of);
  windows.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, how.dilation.of);
  windows.finish();

  const auto names = std::find_if(std::begin(kConvolutions), std::end(kConvolutions),
                                  [&](const ConvolutionNames& each) { return each.kind == kind; });
  CudnnDescriptor& operation = operations_.emplace_back(kind);
  const double one = 1;
  const double kept = adds ? 1 : 0;
  const auto one_f32 = static_cast<float>(one);
  const auto kept_f32 = static_cast<float>(kept);
  const bool f64 = sums == CUDNN_DATA_DOUBLE;
  const auto type = f64 ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
  operation.set(names->alpha, type, 1, f64 ? static_cast<const void*>(&one) : &one_f32);
  operation.set(names->beta, type, 1, f64 ? static_cast<const void*>(&kept) : &kept_f32);
  operation.set(names->how, windows);
  operation.set(names->x, at(x).descriptor);
  operation.set(names->w, at(w).descriptor);
  operation.set(names->y, at(y).descriptor);
  operation.finish();
}

// --- its plan --------------------------------------------------------------------------------------------------------

namespace {

constexpr std::int64_t kMostConfigurations = 64;  // configurations that are tried

// Declared by cuDNN's header from 9.8 on.
constexpr int kGpuDescriptor = 38;
constexpr int kJsonOfGpu = 2702;
constexpr int kGpuOfHeuristic = 204;
constexpr int kGpuOfPlan = 407;
constexpr int kChar = 24;
cudnnBackendAttributeName_t attribute(int number) { return static_cast<cudnnBackendAttributeName_t>(number); }

// cuDNN searches for NVIDIA's compiler by its file name only, so the library loads it from where the build found it. If
// it is no longer there, cuDNN's own search decides.
void load_compiler() {
#ifdef GRADUAL_NVRTC
  [[maybe_unused]] static void* const loaded = dlopen(GRADUAL_NVRTC, RTLD_LAZY);
#endif
}

void set_handle(CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name) {
  cudnnHandle_t handle = cudnn_handle();
  descriptor.set(name, CUDNN_TYPE_HANDLE, 1, &handle);
}

bool is_taken(cudnnBackendNumericalNote_t note, bool tensor_cores) {
  switch (note) {
    case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
    case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
    case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
    case CUDNN_NUMERICAL_NOTE_FFT:
    case CUDNN_NUMERICAL_NOTE_WINOGRAD:
    case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
    case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
    case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13: return false;
    case CUDNN_NUMERICAL_NOTE_TENSOR_CORE: return tensor_cores;
    default: return true;
  }
}

// True if the notes of the configuration's engine allow it.
bool is_taken(const CudnnDescriptor& configuration, bool tensor_cores) {
  const CudnnDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t into = engine.get();
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(configuration.get(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                 &count, &into),
        "cudnnBackendGetAttribute: the engine");
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  check(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                 CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes),
        "cudnnBackendGetAttribute: numerical notes");
  return std::all_of(notes, notes + count,
                     [&](cudnnBackendNumericalNote_t note) { return is_taken(note, tensor_cores); });
}

}  // namespace

DescribedGpu::DescribedGpu(const std::string& properties)
    : CudnnDescriptor(static_cast<cudnnBackendDescriptorType_t>(kGpuDescriptor)) {
  set(attribute(kJsonOfGpu), static_cast<cudnnBackendAttributeType_t>(kChar),
      static_cast<std::int64_t>(properties.size() + 1), properties.c_str());
  finish();
}

OperationPlan::OperationPlan(const OperationGraph& graph, bool tensor_cores, const DescribedGpu* gpu) {
  load_compiler();
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const CudnnDescriptor& operation : graph.operations()) operations.push_back(operation.get());
  graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<std::int64_t>(operations.size()),
             operations.data());
  if (!gpu) set_handle(graph_, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
  if (!graph_.try_finish()) return;
  if (!choose(CUDNN_HEUR_MODE_A, tensor_cores, gpu)) choose(CUDNN_HEUR_MODE_FALLBACK, tensor_cores, gpu);
}

// Uses the first proposed configuration that gives a plan.
bool OperationPlan::choose(cudnnBackendHeurMode_t mode, bool tensor_cores, const DescribedGpu* gpu) {
  CudnnDescriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (gpu) heuristic.set(attribute(kGpuOfHeuristic), *gpu);
  if (!heuristic.try_finish()) return false;
  std::int64_t count = 0;
  if (!supported(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                          0, &count, nullptr),
                 "cudnnBackendGetAttribute: how many engines"))
    return false;
  count = std::min(count, kMostConfigurations);
  std::list<CudnnDescriptor> proposed;
  std::vector<cudnnBackendDescriptor_t> into;
  for (std::int64_t i = 0; i < count; ++i)
    into.push_back(proposed.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
  if (count == 0 || !supported(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                        CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, into.data()),
                               "cudnnBackendGetAttribute: engines"))
    return false;
  while (proposed.size() > static_cast<std::size_t>(count)) proposed.pop_back();
  for (auto each = proposed.begin(); each != proposed.end(); ++each) {
    if (!is_taken(*each, tensor_cores)) continue;
    plan_.emplace(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (gpu) plan_->set(attribute(kGpuOfPlan), *gpu);
    else set_handle(*plan_, CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
    plan_->set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, *each);
    if (!plan_->try_finish()) continue;
    check(cudnnBackendGetAttribute(plan_->get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
                                   &workspace_),
          "cudnnBackendGetAttribute: workspace");
    configuration_.splice(configuration_.begin(), proposed, each);
    return true;
  }
  plan_.reset();
  return false;
}

bool OperationPlan::run(std::span<const OperationGraph::Id> ids, std::span<const void* const> data, const char* name) {
  const Workspace scratch(static_cast<std::size_t>(workspace_));
  void* const workspace = scratch.as<void>();
  CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  const auto count = static_cast<std::int64_t>(ids.size());
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, data.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  pack.finish();
  return done(cudnnBackendExecute(cudnn_handle(), plan_->get(), pack.get()), name);
}

}  // namespace gradual::cuda
