// Average pooling by cuDNN. Its max pooling gives no indices, and adds atomically in backward: that is ours.
#include "../../core/ops/attrs.h"
#include "../kernels/library_choice.h"
#include "cudnn_images.h"

namespace gradual::cuda {
namespace {

using Pooling = Owned<cudnnPoolingDescriptor_t, cudnnCreatePoolingDescriptor, cudnnDestroyPoolingDescriptor>;

// Both descriptors of images, and the windows; padding counts as zeros.
struct Pool {
  CudnnTensor x, y;
  Pooling windows;
  Pool(const PoolAttrs& a, const Tensor& large, const Tensor& small) {
    const auto of = [](const Size2& s, int i) { return static_cast<int>(s[i]); };
    describe(x, large);
    describe(y, small);
    check(cudnnSetPooling2dDescriptor(windows.get(), CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING, CUDNN_PROPAGATE_NAN,
                                      of(a.kernel, 0), of(a.kernel, 1), of(a.padding, 0), of(a.padding, 1),
                                      of(a.stride, 0), of(a.stride, 1)),
          "cudnnSetPooling2dDescriptor");
  }
};
bool taken(const Tensor& t) { return is_image_data(t) && is_dense_image(t) && t.dim() == 4; }
bool taken(const Tensor& a, const Tensor& b) {
  return taken(a) && taken(b) && a.dtype() == b.dtype() && a.is_contiguous() == b.is_contiguous();
}

}  // namespace

bool library_avg_pool2d(const OpCall& call, Outputs& out) {
  const Tensor &x = call[0], &y = out[0];
  if (!taken(x, y)) return false;
  const Pool pool(call.get<PoolAttrs>(), x, y);
  const Factor one(1, DType::f32), zero(0, DType::f32);
  return done(cudnnPoolingForward(cudnn_handle(), pool.windows.get(), one.get(), pool.x.get(), x.raw(), zero.get(),
                                  pool.y.get(), y.raw()),
              "cudnnPoolingForward");
}

// The gradient of a mean needs neither x nor y, of which the library wants to have addresses.
bool library_avg_pool2d_backward(const OpCall& call, Outputs& out) {
  const Tensor &dy = call[0], &dx = out[0];
  if (!taken(dx, dy)) return false;
  const Pool pool(call.get<PoolAttrs>(), dx, dy);
  const Factor one(1, DType::f32), zero(0, DType::f32);
  return done(cudnnPoolingBackward(cudnn_handle(), pool.windows.get(), one.get(), pool.y.get(), dy.raw(), pool.y.get(),
                                   dy.raw(), pool.x.get(), dx.raw(), zero.get(), pool.x.get(), dx.raw()),
              "cudnnPoolingBackward");
}

}  // namespace gradual::cuda
