// Convolutions by cuDNN, each a graph of one operation. Only engines with direct products and reproducible sums are
// used: Winograd and Fourier transforms exceed the error bound of sums here.
#include <algorithm>
#include <array>
#include <optional>

#include "../kernels/conv.h"
#include "../runtime/runtime.h"
#include "cudnn_graph.h"
#include "cudnn_plans.h"

namespace gradual::cuda {
namespace {

constexpr std::size_t kMostPlans = 1024;  // per thread

bool fits_int(const Convolution& c) { return std::max({numel(c.x), numel(c.w), numel(c.y)}) <= INT32_MAX; }

Dims4 dims(const Shape& s) { return {s[0], s[1], s[2], s[3]}; }

struct Kind {
  cudnnBackendDescriptorType_t operation;
  const char* name;
};
Kind kind_of(OpId op) {
  if (op == OpId::conv2d) return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, "cuDNN convolution"};
  if (op == OpId::conv2d_backward_input)
    return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, "cuDNN convolution, gradient of the input"};
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, "cuDNN convolution, gradient of the weight"};
}

class Plan : Pinned {
 public:
  explicit Plan(const Convolution& c, const DescribedGpu* gpu = nullptr) : kind_(kind_of(c.op)) {
    const auto tensor = [&](const Shape& sizes) {
      return graph_.memory(cudnn_type(c.dtype), dims(sizes), dims(c.strides(sizes)));
    };
    ids_ = {tensor(c.x), tensor(c.w), tensor(c.y)};
    graph_.convolution(kind_.operation, ids_[0], ids_[1], ids_[2], c.attrs,
                       c.dtype == DType::f64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT, c.adds);
    plan_.emplace(graph_, c.dtype != DType::f32 || c.tf32, gpu);
  }

  explicit operator bool() const { return static_cast<bool>(*plan_); }
  bool run(const ConvolutionData& data) {
    const void* const all[] = {data.x, data.w, data.y};
    return *plan_ && plan_->run(ids_, all, kind_.name);
  }

 private:
  Kind kind_;
  OperationGraph graph_;
  std::array<OperationGraph::Id, 3> ids_{};
  std::optional<OperationPlan> plan_;
};

// All that a plan depends on. It includes the sizes of gradients, because strides make them ambiguous.
using Key = std::array<std::int64_t, 25>;
Key key_of(const Convolution& c) {
  Key key{current_device(),
          static_cast<int>(c.op),
          static_cast<int>(c.dtype),
          c.tf32,
          c.channels_last,
          c.attrs.groups,
          c.adds};
  auto to = key.begin() + 7;
  for (const Shape& s : {c.x, c.w, c.y}) to = std::copy(s.begin(), s.end(), to);
  for (int i = 0; i < 2; ++i)
    for (const Size2& n : {c.attrs.stride, c.attrs.padding, c.attrs.dilation}) *to++ = n[i];
  return key;
}

}  // namespace

bool has_plan(const Convolution& c, const DescribedGpu& gpu) { return fits_int(c) && Plan(c, &gpu); }

bool convolve(const Convolution& c, const ConvolutionData& data) {
  if (!fits_int(c)) return false;
  return plan_of<Plan>(key_of(c), c, kMostPlans).run(data);
}

}  // namespace gradual::cuda
