// Batch norm, average pooling and softmax of the emulated cuDNN, in f32. What the library has in two modes, of which one is
// slow there, is refused in that one, so that a test sees it.
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "../../cuda/emulator/stream.h"
#include "../../cuda/kernels/elements.h"
#include "cudnn_parts.h"

namespace gradual::cuda::emulator {
namespace {

using Tensor4 = cudnnTensorStruct;

bool same_sizes(const Tensor4& a, const Tensor4& b) {
  for (int d = 0; d < 4; ++d)
    if (a.size[d] != b.size[d]) return false;
  return true;
}
bool is_one_element(const Tensor4& t) { return t.size[2] * t.size[3] == 1; }  // an image's channel
bool is_packed(const Tensor4& t) { return is_planar(t) || is_channels_last(t); }
std::int64_t at(const Tensor4& t, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  return n * t.stride[0] + c * t.stride[1] + h * t.stride[2] + w * t.stride[3];
}
float load(const Tensor4& t, const void* data, std::int64_t i) {
  return load_element<float>(dtype_of_cudnn(t.type), data, i);
}
void store(const Tensor4& t, void* data, std::int64_t i, double value) {
  store_element(dtype_of_cudnn(t.type), static_cast<float>(value), data, i);
}
// A factor that must be 1, or 0: no caller of ours blends.
void need_plain(const void* alpha, const void* beta, const char* call) {
  need(scaling(alpha, CUDNN_DATA_FLOAT, call) == 1 && scaling(beta, CUDNN_DATA_FLOAT, call) == 0, call,
       "the emulator has alpha 1 and beta 0 alone");
}

// --- batch norm ----------------------------------------------------------------------------------------------------------

void need_channels(const Tensor4& numbers, const Tensor4& x, const char* call) {
  need(numbers.set && numbers.type == CUDNN_DATA_FLOAT, call, "scales and statistics must be f32");
  need(numbers.size[1] == x.size[1] && numel(numbers) == x.size[1], call, "one number a channel");
}
cudnnStatus_t norm_support(cudnnBatchNormMode_t mode, std::initializer_list<const Tensor4*> images, double epsilon,
                           const char* call) {
  const cudnnStatus_t status = same_float_type(images, call);
  const Tensor4& x = **images.begin();
  for (const Tensor4* t : images) {
    need(same_sizes(*t, x), call, "images must have one size");
    if (!is_planar(*t)) return CUDNN_STATUS_NOT_SUPPORTED_LAYOUT;
  }
  need(epsilon >= CUDNN_BN_MIN_EPSILON, call, "epsilon is below CUDNN_BN_MIN_EPSILON");
  const auto made_for = is_one_element(x) ? CUDNN_BATCHNORM_PER_ACTIVATION : CUDNN_BATCHNORM_SPATIAL;
  return mode != made_for || refuses("batch_norm") ? CUDNN_STATUS_NOT_SUPPORTED : status;
}
// f(n, h, w) for the elements of a channel.
template <class F> void each_image(const Tensor4& x, const F& f) {
  for (std::int64_t n = 0; n < x.size[0]; ++n)
    for (std::int64_t h = 0; h < x.size[2]; ++h)
      for (std::int64_t w = 0; w < x.size[3]; ++w) f(n, h, w);
}

// --- pooling -------------------------------------------------------------------------------------------------------------

cudnnStatus_t pool_support(const cudnnPoolingStruct* p, const Tensor4* x, const Tensor4* y, const char* call) {
  need(p && p->set, call, "a descriptor is not set");
  const cudnnStatus_t status = same_float_type({x, y}, call);
  need(x->size[0] == y->size[0] && x->size[1] == y->size[1], call, "images and channels must be as many");
  for (int i = 0; i < 2; ++i)
    need(y->size[2 + i] == (x->size[2 + i] + 2 * p->padding[i] - p->window[i]) / p->stride[i] + 1, call,
         "y must have as many windows as x");
  if (!is_packed(*x) || !is_packed(*y)) return CUDNN_STATUS_NOT_SUPPORTED_LAYOUT;
  return p->mode != CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING || refuses("pooling") ? CUDNN_STATUS_NOT_SUPPORTED
                                                                                      : status;
}
// Of an element in its window's mean. The library promises no bits, so these are not those of a division.
float share_of(const cudnnPoolingStruct& p) { return 1 / static_cast<float>(p.window[0] * p.window[1]); }
// f(offset in x, offset in y) for each element of each window.
template <class F> void each_tap(const cudnnPoolingStruct& p, const Tensor4& x, const Tensor4& y, const F& f) {
  for (std::int64_t n = 0; n < y.size[0]; ++n)
    for (std::int64_t c = 0; c < y.size[1]; ++c)
      for (std::int64_t row = 0; row < y.size[2]; ++row)
        for (std::int64_t col = 0; col < y.size[3]; ++col)
          for (std::int64_t u = 0; u < p.window[0]; ++u)
            for (std::int64_t v = 0; v < p.window[1]; ++v) {
              const std::int64_t h = row * p.stride[0] - p.padding[0] + u, w = col * p.stride[1] - p.padding[1] + v;
              if (h >= 0 && h < x.size[2] && w >= 0 && w < x.size[3]) f(at(x, n, c, h, w), at(y, n, c, row, col));
            }
}

// --- softmax -------------------------------------------------------------------------------------------------------------

cudnnStatus_t softmax_support(cudnnSoftmaxAlgorithm_t algorithm, cudnnSoftmaxMode_t mode,
                              std::initializer_list<const Tensor4*> tensors, const char* call) {
  const cudnnStatus_t status = same_float_type(tensors, call);
  for (const Tensor4* t : tensors) {
    need(same_sizes(*t, **tensors.begin()), call, "tensors must have one size");
    if (!is_planar(*t)) return CUDNN_STATUS_NOT_SUPPORTED_LAYOUT;
  }
  const auto made_for = is_one_element(**tensors.begin()) ? CUDNN_SOFTMAX_MODE_INSTANCE : CUDNN_SOFTMAX_MODE_CHANNEL;
  const bool known = algorithm != CUDNN_SOFTMAX_FAST && mode == made_for;
  return !known || refuses("softmax") ? CUDNN_STATUS_NOT_SUPPORTED : status;
}
// f(offset of a line's first element): its others are the channels.
template <class F> void each_line(const Tensor4& t, const F& f) {
  for (std::int64_t n = 0; n < t.size[0]; ++n)
    for (std::int64_t h = 0; h < t.size[2]; ++h)
      for (std::int64_t w = 0; w < t.size[3]; ++w) f(at(t, n, 0, h, w));
}
void softmax_line(const Tensor4& t, bool log, const void* x, void* y, std::int64_t first) {
  const std::int64_t n = t.size[1];
  float top = -std::numeric_limits<float>::infinity();
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = load(t, x, first + i * t.stride[1]);
    top = value > top ? value : top;
  }
  for (std::int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(load(t, x, first + i * t.stride[1]) - top));
  for (std::int64_t i = 0; i < n; ++i) {
    const double shifted = static_cast<double>(load(t, x, first + i * t.stride[1]) - top);
    store(t, y, first + i * t.stride[1], log ? shifted - std::log(sum) : std::exp(shifted) / sum);
  }
}
void softmax_gradient_line(const Tensor4& t, bool log, const void* y, const void* dy, void* dx, std::int64_t first) {
  const std::int64_t n = t.size[1];
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t k = first + i * t.stride[1];
    sum += static_cast<double>(load(t, dy, k)) * (log ? 1.0 : static_cast<double>(load(t, y, k)));
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t k = first + i * t.stride[1];
    const double out = load(t, y, k), grad = load(t, dy, k);
    store(t, dx, k, log ? grad - std::exp(out) * sum : out * (grad - sum));
  }
}

}  // namespace
}  // namespace gradual::cuda::emulator

using namespace gradual::cuda::emulator;

cudnnStatus_t cudnnDeriveBNTensorDescriptor(cudnnTensorDescriptor_t derived, cudnnTensorDescriptor_t x,
                                            cudnnBatchNormMode_t mode) {
  const char* const call = "cudnnDeriveBNTensorDescriptor";
  need(derived && x && x->set, call, "a descriptor is not set");
  need(mode == CUDNN_BATCHNORM_SPATIAL || is_one_element(*x), call, "the emulator has one number a channel alone");
  *derived = {true, CUDNN_DATA_FLOAT, {1, x->size[1], 1, 1}, {x->size[1], 1, 1, 1}};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBatchNormalizationForwardTraining(cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void* alpha,
                                                     const void* beta, cudnnTensorDescriptor_t x_desc, const void* x,
                                                     cudnnTensorDescriptor_t y_desc, void* y,
                                                     cudnnTensorDescriptor_t numbers, const void* scale,
                                                     const void* bias, double, void* running_mean,
                                                     void* running_variance, double epsilon, void* mean, void* invstd) {
  const char* const call = "cudnnBatchNormalizationForwardTraining";
  need(handle && numbers, call, "no handle or descriptor");
  const cudnnStatus_t status = norm_support(mode, {x_desc, y_desc}, epsilon, call);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  need_plain(alpha, beta, call);
  need_channels(*numbers, *x_desc, call);
  need_data(x, call), need_data(y, call);
  need(scale && bias, call, "scale or bias is null");
  need(!running_mean && !running_variance, call, "the emulator keeps no running statistics");
  need((mean == nullptr) == (invstd == nullptr) && mean, call, "mean and invstd are wanted");
  enqueue(handle->stream, [=, in = *x_desc, out = *y_desc] {
    const auto count = static_cast<double>(numel(in) / in.size[1]);
    for (std::int64_t c = 0; c < in.size[1]; ++c) {
      double sum = 0, square = 0;
      const auto value = [&](auto n, auto h, auto w) { return static_cast<double>(load(in, x, at(in, n, c, h, w))); };
      each_image(in, [&](auto... i) { sum += value(i...); });
      const double average = sum / count;
      each_image(in, [&](auto... i) { square += (value(i...) - average) * (value(i...) - average); });
      const double factor = 1 / std::sqrt(square / count + epsilon);
      static_cast<float*>(mean)[c] = static_cast<float>(average);
      static_cast<float*>(invstd)[c] = static_cast<float>(factor);
      const auto* const scales = static_cast<const float*>(scale);
      const auto* const shifts = static_cast<const float*>(bias);
      each_image(in, [&](auto n, auto h, auto w) {
        store(out, y, at(out, n, c, h, w),
              (value(n, h, w) - average) * factor * static_cast<double>(scales[c]) + static_cast<double>(shifts[c]));
      });
    }
  });
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBatchNormalizationBackward(cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void* alpha_data,
                                              const void* beta_data, const void* alpha_parameters,
                                              const void* beta_parameters, cudnnTensorDescriptor_t x_desc,
                                              const void* x, cudnnTensorDescriptor_t dy_desc, const void* dy,
                                              cudnnTensorDescriptor_t dx_desc, void* dx,
                                              cudnnTensorDescriptor_t numbers, const void* scale, void* dscale,
                                              void* dbias, double epsilon, const void* mean, const void* invstd) {
  const char* const call = "cudnnBatchNormalizationBackward";
  need(handle && numbers, call, "no handle or descriptor");
  const cudnnStatus_t status = norm_support(mode, {x_desc, dy_desc, dx_desc}, epsilon, call);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  need_plain(alpha_data, beta_data, call);
  need_plain(alpha_parameters, beta_parameters, call);
  need_channels(*numbers, *x_desc, call);
  for (const void* data : {x, dy, static_cast<const void*>(dx)}) need_data(data, call);
  need(scale && dscale && dbias && mean && invstd, call, "a channel's numbers are null");
  enqueue(handle->stream, [=, in = *x_desc, grad = *dy_desc, out = *dx_desc] {
    const auto count = static_cast<double>(numel(in) / in.size[1]);
    const auto of = [](const void* all, std::int64_t c) {
      return static_cast<double>(static_cast<const float*>(all)[c]);
    };
    for (std::int64_t c = 0; c < in.size[1]; ++c) {
      double sum = 0, along = 0;
      const auto hat = [&](auto n, auto h, auto w) {
        return (static_cast<double>(load(in, x, at(in, n, c, h, w))) - of(mean, c)) * of(invstd, c);
      };
      const auto g = [&](auto n, auto h, auto w) { return static_cast<double>(load(grad, dy, at(grad, n, c, h, w))); };
      each_image(in, [&](auto... i) { sum += g(i...), along += g(i...) * hat(i...); });
      const double factor = of(scale, c) * of(invstd, c);
      each_image(in, [&](auto n, auto h, auto w) {
        store(out, dx, at(out, n, c, h, w), factor * (g(n, h, w) - sum / count - hat(n, h, w) * along / count));
      });
      static_cast<float*>(dscale)[c] = static_cast<float>(along);
      static_cast<float*>(dbias)[c] = static_cast<float>(sum);
    }
  });
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreatePoolingDescriptor(cudnnPoolingDescriptor_t* pooling) {
  *pooling = new cudnnPoolingStruct;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyPoolingDescriptor(cudnnPoolingDescriptor_t pooling) {
  delete pooling;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetPooling2dDescriptor(cudnnPoolingDescriptor_t pooling, cudnnPoolingMode_t mode,
                                          cudnnNanPropagation_t, int height, int width, int padding_h, int padding_w,
                                          int stride_h, int stride_w) {
  const char* const call = "cudnnSetPooling2dDescriptor";
  need(pooling, call, "no descriptor");
  need(height > 0 && width > 0 && stride_h > 0 && stride_w > 0, call, "windows and strides must be above 0");
  need(padding_h >= 0 && padding_w >= 0 && padding_h < height && padding_w < width, call,
       "padding must be smaller than the window");
  *pooling = {true, mode, {height, width}, {padding_h, padding_w}, {stride_h, stride_w}};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnPoolingForward(cudnnHandle_t handle, cudnnPoolingDescriptor_t pooling, const void* alpha,
                                  cudnnTensorDescriptor_t x_desc, const void* x, const void* beta,
                                  cudnnTensorDescriptor_t y_desc, void* y) {
  const char* const call = "cudnnPoolingForward";
  need(handle, call, "no handle");
  const cudnnStatus_t status = pool_support(pooling, x_desc, y_desc, call);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  need_plain(alpha, beta, call);
  need_data(x, call), need_data(y, call);
  enqueue(handle->stream, [=, p = *pooling, in = *x_desc, out = *y_desc] {
    std::vector<float> sums(static_cast<std::size_t>(numel(out)));
    each_tap(p, in, out, [&](std::int64_t i, std::int64_t k) { sums[static_cast<std::size_t>(k)] += load(in, x, i); });
    const float share = share_of(p);
    for (std::size_t k = 0; k < sums.size(); ++k)
      store(out, y, static_cast<std::int64_t>(k), static_cast<double>(sums[k] * share));
  });
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnPoolingBackward(cudnnHandle_t handle, cudnnPoolingDescriptor_t pooling, const void* alpha,
                                   cudnnTensorDescriptor_t y_desc, const void* y, cudnnTensorDescriptor_t dy_desc,
                                   const void* dy, cudnnTensorDescriptor_t x_desc, const void* x, const void* beta,
                                   cudnnTensorDescriptor_t dx_desc, void* dx) {
  const char* const call = "cudnnPoolingBackward";
  need(handle, call, "no handle");
  for (const auto& [a, b] : {std::pair(x_desc, y_desc), std::pair(dx_desc, dy_desc)}) {
    const cudnnStatus_t status = pool_support(pooling, a, b, call);
    if (status != CUDNN_STATUS_SUCCESS) return status;
  }
  need_plain(alpha, beta, call);
  for (const void* data : {x, y, dy, static_cast<const void*>(dx)}) need_data(data, call);
  enqueue(handle->stream, [=, p = *pooling, grad = *dy_desc, out = *dx_desc] {
    std::vector<float> sums(static_cast<std::size_t>(numel(out)));
    const float share = share_of(p);
    each_tap(p, out, grad,
             [&](std::int64_t i, std::int64_t k) { sums[static_cast<std::size_t>(i)] += load(grad, dy, k) * share; });
    for (std::size_t i = 0; i < sums.size(); ++i)
      store(out, dx, static_cast<std::int64_t>(i), static_cast<double>(sums[i]));
  });
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSoftmaxForward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algorithm, cudnnSoftmaxMode_t mode,
                                  const void* alpha, cudnnTensorDescriptor_t x_desc, const void* x, const void* beta,
                                  cudnnTensorDescriptor_t y_desc, void* y) {
  const char* const call = "cudnnSoftmaxForward";
  need(handle, call, "no handle");
  const cudnnStatus_t status = softmax_support(algorithm, mode, {x_desc, y_desc}, call);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  need_plain(alpha, beta, call);
  need_data(x, call), need_data(y, call);
  enqueue(handle->stream, [=, t = *x_desc] {
    each_line(t, [&](std::int64_t first) { softmax_line(t, algorithm == CUDNN_SOFTMAX_LOG, x, y, first); });
  });
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSoftmaxBackward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algorithm, cudnnSoftmaxMode_t mode,
                                   const void* alpha, cudnnTensorDescriptor_t y_desc, const void* y,
                                   cudnnTensorDescriptor_t dy_desc, const void* dy, const void* beta,
                                   cudnnTensorDescriptor_t dx_desc, void* dx) {
  const char* const call = "cudnnSoftmaxBackward";
  need(handle, call, "no handle");
  const cudnnStatus_t status = softmax_support(algorithm, mode, {y_desc, dy_desc, dx_desc}, call);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  need_plain(alpha, beta, call);
  for (const void* data : {y, dy, static_cast<const void*>(dx)}) need_data(data, call);
  enqueue(handle->stream, [=, t = *y_desc] {
    each_line(t,
              [&](std::int64_t first) { softmax_gradient_line(t, algorithm == CUDNN_SOFTMAX_LOG, y, dy, dx, first); });
  });
  return CUDNN_STATUS_SUCCESS;
}
