// Convolutions by cuDNN's functions for single ops (cuDNN documentation, cudnn_cnn). Of its algorithms only those that
// multiply and add: the transforms of Winograd and of Fourier are less exact than the bound that sums have here. These give
// the same bits every time (NVIDIA, "Reproducibility"): of the gradients' the ones of number 1.
#include <algorithm>
#include <array>
#include <map>

#include "conv.h"
#include "cudnn_handle.h"
#include "memory.h"
#include "runtime.h"

namespace gradual::cuda {
namespace {

constexpr std::size_t kMostPlans = 1024;  // that a thread remembers

using Weights = Owned<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using Geometry =
    Owned<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor>;

int narrow(std::int64_t n) { return static_cast<int>(n); }  // checked by fits_int()
bool fits_int(const Convolution& c) { return std::max({numel(c.x), numel(c.w), numel(c.y)}) <= INT32_MAX; }

// Forward algorithms in the order in which they are asked: only the former has tensor cores, and it has no dilation.
constexpr cudnnConvolutionFwdAlgo_t kForward[] = {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                                                  CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM};
constexpr auto kInputGradient = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
constexpr auto kWeightGradient = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;

// The descriptors of a convolution, and how it is done.
class Plan : Pinned {
 public:
  explicit Plan(const Convolution& c) {
    describe(x_, c, c.x);
    describe(y_, c, c.y);
    const auto format = c.channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
    check(cudnnSetFilter4dDescriptor(w_.get(), cudnn_type(c.dtype), format, narrow(c.w[0]), narrow(c.w[1]),
                                     narrow(c.w[2]), narrow(c.w[3])),
          "cudnnSetFilter4dDescriptor");
    const ConvAttrs& a = c.attrs;
    check(cudnnSetConvolution2dDescriptor(how_.get(), narrow(a.padding[0]), narrow(a.padding[1]), narrow(a.stride[0]),
                                          narrow(a.stride[1]), narrow(a.dilation[0]), narrow(a.dilation[1]),
                                          CUDNN_CROSS_CORRELATION,
                                          c.dtype == DType::f64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT),
          "cudnnSetConvolution2dDescriptor");
    check(cudnnSetConvolutionGroupCount(how_.get(), narrow(a.groups)), "cudnnSetConvolutionGroupCount");
    // The default lets f32 operands become TF32; FMA_MATH does not.
    const bool narrow_operands = size_of(c.dtype) == 2;
    check(cudnnSetConvolutionMathType(how_.get(), narrow_operands ? CUDNN_TENSOR_OP_MATH
                                                  : c.tf32        ? CUDNN_DEFAULT_MATH
                                                                  : CUDNN_FMA_MATH),
          "cudnnSetConvolutionMathType");
    choose(c);
  }

  // By the first algorithm that takes it; false where none does.
  bool run(const Convolution& c, const ConvolutionData& data) {
    for (; algorithm_ < algorithms_; choose(c))
      if (start(c, data)) return true;
      else ++algorithm_;
    return false;
  }

 private:
  static void describe(const CudnnTensor& images, const Convolution& c, const Shape& sizes) {
    const Shape strides = c.strides(sizes);
    check(cudnnSetTensor4dDescriptorEx(images.get(), cudnn_type(c.dtype), narrow(sizes[0]), narrow(sizes[1]),
                                       narrow(sizes[2]), narrow(sizes[3]), narrow(strides[0]), narrow(strides[1]),
                                       narrow(strides[2]), narrow(strides[3])),
          "cudnnSetTensor4dDescriptorEx");
  }
  // The next algorithm, from algorithm_ on, that cuDNN says it has, and its scratch memory.
  void choose(const Convolution& c) {
    algorithms_ = c.makes(OpId::conv2d) ? std::size(kForward) : 1;
    while (algorithm_ < algorithms_ && !scratch_known(c)) ++algorithm_;
  }
  bool scratch_known(const Convolution& c) {
    if (c.makes(OpId::conv2d))
      return supported(cudnnGetConvolutionForwardWorkspaceSize(cudnn_handle(), x_.get(), w_.get(), how_.get(), y_.get(),
                                                               kForward[algorithm_], &workspace_),
                       "cudnnGetConvolutionForwardWorkspaceSize");
    if (c.makes(OpId::conv2d_backward_input))
      return supported(cudnnGetConvolutionBackwardDataWorkspaceSize(cudnn_handle(), w_.get(), y_.get(), how_.get(),
                                                                    x_.get(), kInputGradient, &workspace_),
                       "cudnnGetConvolutionBackwardDataWorkspaceSize");
    return supported(cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnn_handle(), x_.get(), y_.get(), how_.get(),
                                                                    w_.get(), kWeightGradient, &workspace_),
                     "cudnnGetConvolutionBackwardFilterWorkspaceSize");
  }
  bool start(const Convolution& c, const ConvolutionData& data) {
    const Workspace scratch(workspace_);
    void* const made = data.made(c.op);
    const Factor alpha(1, c.dtype), beta(data.adds ? 1 : 0, c.dtype);
    if (c.makes(OpId::conv2d))
      return done(
          cudnnConvolutionForward(cudnn_handle(), alpha.get(), x_.get(), data.x, w_.get(), data.w, how_.get(),
                                  kForward[algorithm_], scratch.as<void>(), workspace_, beta.get(), y_.get(), made),
          "cudnnConvolutionForward");
    if (c.makes(OpId::conv2d_backward_input))
      return done(
          cudnnConvolutionBackwardData(cudnn_handle(), alpha.get(), w_.get(), data.w, y_.get(), data.y, how_.get(),
                                       kInputGradient, scratch.as<void>(), workspace_, beta.get(), x_.get(), made),
          "cudnnConvolutionBackwardData");
    return done(
        cudnnConvolutionBackwardFilter(cudnn_handle(), alpha.get(), x_.get(), data.x, y_.get(), data.y, how_.get(),
                                       kWeightGradient, scratch.as<void>(), workspace_, beta.get(), w_.get(), made),
        "cudnnConvolutionBackwardFilter");
  }

  CudnnTensor x_, y_;
  Weights w_;
  Geometry how_;
  std::size_t algorithm_ = 0, algorithms_ = 0;  // of kForward
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
