// cuDNN's interface for graphs of operations (cuDNN documentation, "Graph API"): tensors, operations between them, and
// the plan by which an engine runs them all in one kernel or few.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "../../core/ops/attrs.h"
#include "cudnn_handle.h"

namespace gradual::cuda {

// A descriptor of that interface. Errors name the attribute.
class CudnnDescriptor : Pinned {
 public:
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);
  ~CudnnDescriptor();
  cudnnBackendDescriptor_t get() const { return value_; }

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count, const void* values);
  void set(cudnnBackendAttributeName_t name, cudnnDataType_t value) { set(name, CUDNN_TYPE_DATA_TYPE, 1, &value); }
  void set(cudnnBackendAttributeName_t name, std::int64_t value) { set(name, CUDNN_TYPE_INT64, 1, &value); }
  void set(cudnnBackendAttributeName_t name, bool value) { set(name, CUDNN_TYPE_BOOLEAN, 1, &value); }
  void set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.value_);
  }
  void finish();      // Error if it is inconsistent
  bool try_finish();  // false if cuDNN does not support it

 private:
  cudnnBackendDescriptor_t value_ = nullptr;
};

using Dims4 = std::array<std::int64_t, 4>;
Dims4 packed_strides(const Dims4& sizes);

// Operations on tensors of four dims, which broadcast. Intermediate tensors, arithmetic and sums are f32 unless stated
// otherwise.
class OperationGraph : Pinned {
 public:
  using Id = std::int64_t;  // of a tensor; 0 is none

  Id memory(cudnnDataType_t type, const Dims4& sizes, const Dims4& strides);
  Id between(const Dims4& sizes, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  Id between(const Dims4& sizes, const Dims4& strides, cudnnDataType_t type);
  Id number();  // an f32 argument of each run

  void matmul(Id a, Id b, Id c);  // of the last two dims
  // y = mode(x, b), or mode(x). select: x where t is true, else b.
  Id pointwise(cudnnPointwiseMode_t mode, Id x, Id b = 0);
  void pointwise_into(Id y, cudnnPointwiseMode_t mode, Id x, Id b = 0);
  Id select(Id x, Id b, Id t);
  Id index(Id like, int dim);  // each element's position along a dim, i32
  Id compare(cudnnPointwiseMode_t mode, Id x, Id b);
  Id reduce(cudnnReduceTensorOp_t with, Id x, const Dims4& sizes);
  Id reshape(Id x, const Dims4& sizes, const Dims4& strides, cudnnDataType_t type);  // the same elements
  // y = conv2d(x, w), or dx or dw: `kind` is the descriptor of one of the three operations. Sums have type `sums`.
  // adds: the output's old contents are added to them.
  void convolution(cudnnBackendDescriptorType_t kind, Id x, Id w, Id y, const ConvAttrs& how, cudnnDataType_t sums,
                   bool adds);

  const std::deque<CudnnDescriptor>& operations() const { return operations_; }

 private:
  struct Tensor {
    CudnnDescriptor descriptor{CUDNN_BACKEND_TENSOR_DESCRIPTOR};
    Dims4 sizes{};
  };
  Tensor& add(cudnnDataType_t type, const Dims4& sizes, const Dims4& strides);
  Id finished(Tensor& t);
  const Tensor& at(Id id) const { return tensors_[static_cast<std::size_t>(id - 1)]; }
  Dims4 joined(Id x, Id b) const;  // the broadcast sizes
  void point(Id y, cudnnPointwiseMode_t mode, cudnnDataType_t math, Id x, Id b, Id t, std::int64_t dim);

  std::deque<Tensor> tensors_;
  std::deque<CudnnDescriptor> operations_, details_;
};

// A GPU described by its properties, in cuDNN's JSON; it need not be present. From cuDNN 9.11 on.
class DescribedGpu : public CudnnDescriptor {
 public:
  explicit DescribedGpu(const std::string& properties);
};

// The plan by which an engine runs a graph; made once. Engines are rejected if they note nondeterminism, a Winograd or
// Fourier transform, or reduced precision of operands or sums; without `tensor_cores` also if they note tensor cores,
// which round f32 operands to TF32.
class OperationPlan : Pinned {
 public:
  // For the thread's GPU, or for one that is described: such a plan is not run.
  explicit OperationPlan(const OperationGraph& graph, bool tensor_cores, const DescribedGpu* gpu = nullptr);
  // False if cuDNN has no engine for it.
  explicit operator bool() const { return plan_.has_value(); }
  std::int64_t scratch() const { return workspace_; }  // bytes of scratch memory of a run
  // `data`: of each tensor in memory, on the device, and of each number, on the host.
  bool run(std::span<const OperationGraph::Id> ids, std::span<const void* const> data, const char* name);

 private:
  bool choose(cudnnBackendHeurMode_t mode, bool tensor_cores, const DescribedGpu* gpu);

  CudnnDescriptor graph_{CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR};
  std::list<CudnnDescriptor> configuration_;  // of the plan
  std::optional<CudnnDescriptor> plan_;
  std::int64_t workspace_ = 0;
};

}  // namespace gradual::cuda
