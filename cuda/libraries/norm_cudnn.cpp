// Batch norm of row-major tensors by cuDNN with the batch's statistics, and its backward. With given statistics it is ours,
// whose y has the CPU's bits, and so are batch norm with relu, which the library has in few layouts, and of images with the
// channels last, for which its fast mode is the persistent one, of a smaller range.
#include "../kernels/library_choice.h"
#include "cudnn_images.h"

namespace gradual::cuda {
namespace {

// Of one element an image and channel both modes are the same; the first is made for those.
cudnnBatchNormMode_t mode_of(const Tensor& x) {
  return x.numel() == x.size(0) * x.size(1) ? CUDNN_BATCHNORM_PER_ACTIVATION : CUDNN_BATCHNORM_SPATIAL;
}

struct ChannelNumbers : CudnnTensor {
  ChannelNumbers(const CudnnTensor& images, cudnnBatchNormMode_t mode) {
    check(cudnnDeriveBNTensorDescriptor(get(), images.get(), mode), "cudnnDeriveBNTensorDescriptor");
  }
};
bool is_parameter(const Tensor& t) { return t.defined() && t.dtype() == DType::f32 && t.is_contiguous(); }
// The statistics of x, one a channel, are f32: so must be what the library is given beside them.
bool taken(const NormAttrs& a, const Tensor& x) {
  return a.training && !a.relu && a.eps >= CUDNN_BN_MIN_EPSILON && is_image_data(x) && is_dense_image(x) &&
         x.is_contiguous();
}

}  // namespace

bool library_batch_norm(const OpCall& call, Outputs& out) {
  const auto& a = call.get<NormAttrs>();
  const Tensor& x = call[0];
  if (!taken(a, x) || out[0].strides() != x.strides() || !is_parameter(call[1]) || !is_parameter(call[2])) return false;
  const CudnnTensor images;
  describe(images, x);
  const cudnnBatchNormMode_t mode = mode_of(x);
  const ChannelNumbers channels(images, mode);
  const Factor one(1, DType::f32), zero(0, DType::f32);
  return done(cudnnBatchNormalizationForwardTraining(
                  cudnn_handle(), mode, one.get(), zero.get(), images.get(), x.raw(), images.get(), out[0].raw(),
                  channels.get(), call[1].raw(), call[2].raw(), 0, nullptr, nullptr, a.eps, out[1].raw(), out[2].raw()),
              "cudnnBatchNormalizationForwardTraining");
}

bool library_batch_norm_backward(const OpCall& call, Outputs& out) {
  const auto& a = call.get<NormAttrs>();
  const Tensor &dy = call[0], &x = call[1];
  if (!taken(a, x) || !is_image_data(dy) || dy.dtype() != x.dtype()) return false;
  if (dy.strides() != x.strides() || out[0].strides() != x.strides()) return false;
  for (int i = 2; i < 5; ++i)
    if (!is_parameter(call[i])) return false;
  if (!is_parameter(out[1]) || !is_parameter(out[2])) return false;
  const CudnnTensor images;
  describe(images, x);
  const cudnnBatchNormMode_t mode = mode_of(x);
  const ChannelNumbers channels(images, mode);
  const Factor one(1, DType::f32), zero(0, DType::f32);
  return done(
      cudnnBatchNormalizationBackward(cudnn_handle(), mode, one.get(), zero.get(), one.get(), zero.get(), images.get(),
                                      x.raw(), images.get(), dy.raw(), images.get(), out[0].raw(), channels.get(),
                                      call[2].raw(), out[1].raw(), out[2].raw(), a.eps, call[3].raw(), call[4].raw()),
      "cudnnBatchNormalizationBackward");
}

}  // namespace gradual::cuda
