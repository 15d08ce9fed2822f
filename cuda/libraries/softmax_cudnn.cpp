// softmax, log_softmax and their backward by cuDNN, along any dim of row-major tensors: that dim is its channels, those
// behind it are one image. The causal mask is ours alone.
#include "../../core/ops/attrs.h"
#include "../kernels/library_choice.h"
#include "cudnn_images.h"

namespace gradual::cuda {
namespace {

bool taken(const Tensor& t, DType dtype) { return t.dtype() == dtype && is_image_data(t) && t.is_contiguous(); }

struct Lines : CudnnTensor {
  cudnnSoftmaxMode_t mode;
  Lines(const Tensor& t, int dim) {
    const std::int64_t n = t.dim() == 0 ? 1 : t.sizes()[dim];
    const std::int64_t outer = t.dim() == 0 ? 1 : numel(t.sizes().first(dim));
    const std::int64_t inner = t.numel() / (outer * n);
    describe(*this, t.dtype(), outer, n, inner);
    // Of images of one element both modes are the same, and the first is made for those.
    mode = inner == 1 ? CUDNN_SOFTMAX_MODE_INSTANCE : CUDNN_SOFTMAX_MODE_CHANNEL;
  }
};
cudnnSoftmaxAlgorithm_t algorithm(OpId op) {
  return op == OpId::softmax || op == OpId::softmax_backward ? CUDNN_SOFTMAX_ACCURATE : CUDNN_SOFTMAX_LOG;
}

}  // namespace

bool library_softmax(const OpCall& call, Outputs& out) {
  const auto& a = call.get<DimAttrs>();
  const Tensor &x = call[0], &y = out[0];
  if (a.causal || !taken(x, x.dtype()) || !taken(y, x.dtype())) return false;
  const Lines lines(x, a.dim);
  const Factor one(1, DType::f32), zero(0, DType::f32);
  return done(cudnnSoftmaxForward(cudnn_handle(), algorithm(call.op), lines.mode, one.get(), lines.get(), x.raw(),
                                  zero.get(), lines.get(), y.raw()),
              "cudnnSoftmaxForward");
}

bool library_softmax_backward(const OpCall& call, Outputs& out) {
  const Tensor &dy = call[0], &y = call[1], &dx = out[0];
  if (!taken(y, y.dtype()) || !taken(dy, y.dtype()) || !taken(dx, y.dtype())) return false;
  const Lines lines(y, call.get<DimAttrs>().dim);
  const Factor one(1, DType::f32), zero(0, DType::f32);
  return done(cudnnSoftmaxBackward(cudnn_handle(), algorithm(call.op), lines.mode, one.get(), lines.get(), y.raw(),
                                   lines.get(), dy.raw(), zero.get(), lines.get(), dx.raw()),
              "cudnnSoftmaxBackward");
}

}  // namespace gradual::cuda
