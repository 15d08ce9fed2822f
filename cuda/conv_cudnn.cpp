// Convolutions by cuDNN's functions for single ops (cuDNN documentation, cudnn_cnn). Of its algorithms only those that
// multiply and add: the transforms of Winograd and of Fourier are less exact than the bound that sums have here. These give
// the same bits every time (NVIDIA, "Reproducibility"): of the gradients' the ones of number 1.
#include <cudnn.h>

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <memory>
#include <type_traits>

#include "../core/failf.h"
#include "conv.h"
#include "memory.h"
#include "runtime.h"
#include "watch.h"

namespace gradual::cuda {
namespace {

constexpr std::size_t kMostPlans = 1024;  // that a thread remembers

void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) failf("{}: {}", call, cudnnGetErrorString(status));
}
// False where cuDNN says that it does not do that. An algorithm that does not know a layout may call it a bad parameter.
bool supported(cudnnStatus_t status, const char* call) {
  const int category = CUDNN_STATUS_CATEGORY(status);
  if (category == CUDNN_STATUS_NOT_SUPPORTED || category == CUDNN_STATUS_BAD_PARAM) return false;
  check(status, call);
  return true;
}

// What cuDNN makes and destroys.
template <class T, cudnnStatus_t (*create)(T*), cudnnStatus_t (*destroy)(T)> class Owned : Pinned {
 public:
  Owned() { check(create(&value_), "cuDNN: creating a handle or descriptor"); }
  ~Owned() { destroy(value_); }
  T get() const { return value_; }

 private:
  T value_ = nullptr;
};
using Handle = Owned<cudnnHandle_t, cudnnCreate, cudnnDestroy>;
using Images = Owned<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using Weights = Owned<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using Geometry =
    Owned<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor>;

// One for each thread and device, on the thread's stream.
cudnnHandle_t handle() {
  thread_local std::array<std::unique_ptr<Handle>, device::kMost> handles;
  auto& mine = handles[static_cast<std::size_t>(current_device())];
  if (!mine) mine = std::make_unique<Handle>();
  check(cudnnSetStream(mine->get(), current_stream()), "cudnnSetStream");
  return mine->get();
}

cudnnDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return CUDNN_DATA_DOUBLE;
    case DType::f32: return CUDNN_DATA_FLOAT;
    case DType::f16: return CUDNN_DATA_HALF;
    case DType::bf16: return CUDNN_DATA_BFLOAT16;
    default: failf("internal: cuDNN convolves no {}", name(dtype));
  }
}

int narrow(std::int64_t n) { return static_cast<int>(n); }  // checked by fits_int()
bool fits_int(const Convolution& c) { return std::max({numel(c.x), numel(c.w), numel(c.y)}) <= INT32_MAX; }

// Forward algorithms, the first that is taken: only the former has tensor cores.
constexpr cudnnConvolutionFwdAlgo_t kForward[] = {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                                                  CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM};
constexpr auto kInputGradient = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
constexpr auto kWeightGradient = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;

// The descriptors of a convolution, and how it is done.
class Plan : Pinned {
 public:
  explicit Plan(const Convolution& c) : f64_(c.dtype == DType::f64) {
    describe(x_, c, c.x);
    describe(y_, c, c.y);
    check(
        cudnnSetFilter4dDescriptor(w_.get(), type_of(c.dtype), c.channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW,
                                   narrow(c.w[0]), narrow(c.w[1]), narrow(c.w[2]), narrow(c.w[3])),
        "cudnnSetFilter4dDescriptor");
    const ConvAttrs& a = c.attrs;
    check(cudnnSetConvolution2dDescriptor(how_.get(), narrow(a.padding[0]), narrow(a.padding[1]), narrow(a.stride[0]),
                                          narrow(a.stride[1]), narrow(a.dilation[0]), narrow(a.dilation[1]),
                                          CUDNN_CROSS_CORRELATION, f64_ ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT),
          "cudnnSetConvolution2dDescriptor");
    check(cudnnSetConvolutionGroupCount(how_.get(), narrow(a.groups)), "cudnnSetConvolutionGroupCount");
    // The default lets f32 operands become TF32; FMA_MATH does not.
    const bool narrow_operands = size_of(c.dtype) == 2;
    check(cudnnSetConvolutionMathType(how_.get(), narrow_operands ? CUDNN_TENSOR_OP_MATH
                                                  : c.tf32        ? CUDNN_DEFAULT_MATH
                                                                  : CUDNN_FMA_MATH),
          "cudnnSetConvolutionMathType");
    taken_ = choose(c);
  }

  bool run(const Convolution& c, const ConvolutionData& data) {
    if (!taken_) return false;
    const Workspace scratch(workspace_);
    void* const made = data.made(c.op);
    const double one = 1, sum = data.adds ? 1 : 0;
    const float one_f32 = 1, sum_f32 = data.adds ? 1 : 0;
    const void* const alpha = f64_ ? static_cast<const void*>(&one) : &one_f32;
    const void* const beta = f64_ ? static_cast<const void*>(&sum) : &sum_f32;
    const char* call = "cudnnConvolutionForward";
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    if (c.makes(OpId::conv2d)) {
      status = cudnnConvolutionForward(handle(), alpha, x_.get(), data.x, w_.get(), data.w, how_.get(), forward_,
                                       scratch.as<void>(), workspace_, beta, y_.get(), made);
    } else if (c.makes(OpId::conv2d_backward_input)) {
      call = "cudnnConvolutionBackwardData";
      status = cudnnConvolutionBackwardData(handle(), alpha, w_.get(), data.w, y_.get(), data.y, how_.get(),
                                            kInputGradient, scratch.as<void>(), workspace_, beta, x_.get(), made);
    } else {
      call = "cudnnConvolutionBackwardFilter";
      status = cudnnConvolutionBackwardFilter(handle(), alpha, x_.get(), data.x, y_.get(), data.y, how_.get(),
                                              kWeightGradient, scratch.as<void>(), workspace_, beta, w_.get(), made);
    }
    taken_ = supported(status, call);
    if (taken_) note_call(call);
    return taken_;
  }

 private:
  static void describe(const Images& images, const Convolution& c, const Shape& sizes) {
    const Shape strides = c.strides(sizes);
    check(cudnnSetTensor4dDescriptorEx(images.get(), type_of(c.dtype), narrow(sizes[0]), narrow(sizes[1]),
                                       narrow(sizes[2]), narrow(sizes[3]), narrow(strides[0]), narrow(strides[1]),
                                       narrow(strides[2]), narrow(strides[3])),
          "cudnnSetTensor4dDescriptorEx");
  }
  // Sets the algorithm and its scratch memory; false where there is none.
  bool choose(const Convolution& c) {
    if (c.makes(OpId::conv2d_backward_input))
      return supported(cudnnGetConvolutionBackwardDataWorkspaceSize(handle(), w_.get(), y_.get(), how_.get(), x_.get(),
                                                                    kInputGradient, &workspace_),
                       "cudnnGetConvolutionBackwardDataWorkspaceSize");
    if (c.makes(OpId::conv2d_backward_weight))
      return supported(cudnnGetConvolutionBackwardFilterWorkspaceSize(handle(), x_.get(), y_.get(), how_.get(),
                                                                      w_.get(), kWeightGradient, &workspace_),
                       "cudnnGetConvolutionBackwardFilterWorkspaceSize");
    for (const auto algorithm : kForward) {
      forward_ = algorithm;
      if (supported(cudnnGetConvolutionForwardWorkspaceSize(handle(), x_.get(), w_.get(), how_.get(), y_.get(),
                                                            forward_, &workspace_),
                    "cudnnGetConvolutionForwardWorkspaceSize"))
        return true;
    }
    return false;
  }

  Images x_, y_;
  Weights w_;
  Geometry how_;
  bool f64_, taken_ = false;
  cudnnConvolutionFwdAlgo_t forward_ = kForward[0];
  std::size_t workspace_ = 0;
};

// All that a plan depends on; of the gradients' sizes nothing is left out, for strides make them ambiguous.
using Key = std::array<std::int64_t, 24>;
Key key_of(const Convolution& c) {
  Key key{current_device(), static_cast<int>(c.op), static_cast<int>(c.dtype), c.tf32, c.channels_last, c.attrs.groups};
  auto to = key.begin() + 6;
  for (const Shape& s : {c.x, c.w, c.y}) to = std::copy(s.begin(), s.end(), to);
  for (int i = 0; i < 2; ++i)
    for (const Size2& n : {c.attrs.stride, c.attrs.padding, c.attrs.dilation}) *to++ = n[i];
  return key;
}

}  // namespace

bool convolve(const Convolution& c, const ConvolutionData& data) {
  if (!fits_int(c)) return false;
  thread_local std::map<Key, Plan> plans;
  if (plans.size() >= kMostPlans) plans.clear();
  return plans.try_emplace(key_of(c), c).first->second.run(c, data);
}

}  // namespace gradual::cuda
