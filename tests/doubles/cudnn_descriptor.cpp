// The graph interface of the emulated cuDNN: which attributes each descriptor has, its engines, and runs.
#include "cudnn_descriptor.h"

#include <algorithm>
#include <cstring>

#include "../../cuda/emulator/stream.h"
#include "../../cuda/libraries/cudnn_convolutions.h"
#include "cudnn_parts.h"

using namespace gradual::cuda::emulator;
using gradual::cuda::ConvolutionNames;
using gradual::cuda::kConvolutions;

namespace {

constexpr const char* kSet = "cudnnBackendSetAttribute";
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
  int descriptor = -1;  // the kind of its values, if they are descriptors
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

// The engines of every graph, by their notes. Only the last two may run.
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
  value.type = type;
  value.count = count;
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
      d.kernels = std::shared_ptr<const int>(new int(1));  // freed with the plan
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
      into[i]->graph = descriptor->graph;
      into[i]->engine = static_cast<std::size_t>(i);
      into[i]->finalized = true;
    }
  } else if (name == CUDNN_ATTR_ENGINECFG_ENGINE) {
    need(asked == 1 && into[0] && into[0]->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR, kGet, "it is an engine");
    into[0]->engine = descriptor->engine;
    into[0]->finalized = true;
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
  enqueue(handle->stream, [graph = plan->graph, data, numbers, tensor_cores, kernels = std::weak_ptr(plan->kernels),
                           loaded = plan->kernels.get()] {
    // This read lets ThreadSanitizer report a plan that is destroyed before its work is done.
    need(!kernels.expired() && *loaded == 1, kExecute, "the plan is gone, and its kernels with it");
    if (is_convolution(graph->operations[0])) run_convolution(*graph, data, tensor_cores);
    else run_graph(*graph, data, numbers);
  });
  return CUDNN_STATUS_SUCCESS;
}
