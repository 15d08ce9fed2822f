// Convolutions of the emulated cuDNN: which of them its documentation supports ("Supported configurations" of
// cudnnConvolutionForward and its kin, 2-D), and plain loops.
#include <algorithm>
#include <vector>

#include "../../core/compute_mode.h"
#include "../elements.h"
#include "cudnn_parts.h"
#include "stream.h"

namespace gradual::cuda::emulator {
namespace {

enum class Made { y, dx, dw };

// x, w and y of a call, in their order of strides.
struct Problem {
  cudnnTensorStruct x, y;
  cudnnFilterStruct w;
  std::int64_t w_stride[4];
  cudnnConvolutionStruct how;
};

Problem problem_of(const char* call, cudnnHandle_t handle, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                   cudnnTensorDescriptor_t y, cudnnConvolutionDescriptor_t how) {
  need(handle, call, "no handle");
  need(x && x->set && y && y->set && w && w->set && how && how->set, call, "a descriptor is not set");
  need(x->type == w->type && x->type == y->type, call, "x, w and y must have one type");
  need(x->size[0] == y->size[0], call, "x and y must have as many images");
  need(x->size[1] == w->size[1] * how->groups, call, "w must have x's channels, divided by groups");
  need(y->size[1] == w->size[0] && w->size[0] % how->groups == 0, call, "y must have w's output channels");
  for (int i = 0; i < 2; ++i) {
    const std::int64_t span = how->dilation[i] * (w->size[2 + i] - 1) + 1;
    const std::int64_t windows = (x->size[2 + i] + 2 * how->padding[i] - span) / how->stride[i] + 1;
    need(y->size[2 + i] == windows, call, "y must have as many windows as x");
  }
  const auto& s = w->size;
  Problem p{*x, *y, *w, {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}, *how};
  if (w->format == CUDNN_TENSOR_NHWC) {
    const std::int64_t last[] = {s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]};
    std::copy(last, last + 4, p.w_stride);
  }
  return p;
}

cudnnStatus_t support(const Problem& p, Made made, int algorithm) {
  const cudnnDataType_t type = p.x.type;
  const bool last = p.w.format == CUDNN_TENSOR_NHWC;
  if (refuses("convolution") || (last && refuses("channels_last")) || (is_narrow(type) && refuses("narrow")))
    return CUDNN_STATUS_NOT_SUPPORTED;
  // PSEUDO_HALF_CONFIG, PSEUDO_BFLOAT16_CONFIG, FLOAT_CONFIG, DOUBLE_CONFIG: sums are never narrower than f32.
  const bool typed = type == CUDNN_DATA_DOUBLE
                         ? p.how.compute == CUDNN_DATA_DOUBLE
                         : (is_narrow(type) || type == CUDNN_DATA_FLOAT) && p.how.compute == CUDNN_DATA_FLOAT;
  if (!typed) return CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE;
  if (algorithm > 1 || (made == Made::y ? algorithm < 0 : algorithm < 1)) return CUDNN_STATUS_NOT_SUPPORTED;
  const bool dilated = p.how.dilation[0] > 1 || p.how.dilation[1] > 1;
  if (last) {
    if (type == CUDNN_DATA_DOUBLE) return CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE;
    if (!is_channels_last(p.x) || !is_channels_last(p.y)) return CUDNN_STATUS_NOT_SUPPORTED_LAYOUT;
    return dilated && made == Made::y ? CUDNN_STATUS_NOT_SUPPORTED_SHAPE : CUDNN_STATUS_SUCCESS;
  }
  if (made == Made::y)
    return dilated && algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM ? CUDNN_STATUS_NOT_SUPPORTED_SHAPE
                                                                                    : CUDNN_STATUS_SUCCESS;
  return is_planar(p.y) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED_LAYOUT;  // dy must be packed
}

// Some, so that a caller that forgets it is found.
std::size_t workspace_of(const Problem& p, Made made) {
  return made == Made::y ? 64 : 128 + 4 * static_cast<std::size_t>(p.w.size[0]);
}

struct Data {
  const void *x, *w, *y;
};

std::int64_t offset(const std::int64_t (&stride)[4], std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  return a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3];
}

// f(element of x, of w, of y) for every product of the convolution.
template <class F> void each_product(const Problem& p, const F& f) {
  const std::int64_t outputs = p.w.size[0] / p.how.groups;
  for (std::int64_t n = 0; n < p.y.size[0]; ++n)
    for (std::int64_t o = 0; o < p.y.size[1]; ++o)
      for (std::int64_t row = 0; row < p.y.size[2]; ++row)
        for (std::int64_t col = 0; col < p.y.size[3]; ++col) {
          const std::int64_t y = offset(p.y.stride, n, o, row, col);
          for (std::int64_t c = 0; c < p.w.size[1]; ++c)
            for (std::int64_t u = 0; u < p.w.size[2]; ++u)
              for (std::int64_t v = 0; v < p.w.size[3]; ++v) {
                const std::int64_t h = row * p.how.stride[0] - p.how.padding[0] + u * p.how.dilation[0];
                const std::int64_t k = col * p.how.stride[1] - p.how.padding[1] + v * p.how.dilation[1];
                if (h < 0 || h >= p.x.size[2] || k < 0 || k >= p.x.size[3]) continue;
                f(offset(p.x.stride, n, o / outputs * p.w.size[1] + c, h, k), offset(p.w_stride, o, c, u, v), y);
              }
        }
}

template <class C> std::vector<C> loaded(const void* data, DType dtype, std::int64_t n, bool tf32) {
  std::vector<C> values(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    C& value = values[static_cast<std::size_t>(i)];
    value = load_element<C>(dtype, data, i);
    if constexpr (std::is_same_v<C, float>)
      if (tf32) value = round_tf32(value);
  }
  return values;
}
// One more than where the last element lies.
std::int64_t extent(const std::int64_t (&size)[4], const std::int64_t (&stride)[4]) {
  std::int64_t last = 0;
  for (int d = 0; d < 4; ++d) last += (size[d] - 1) * stride[d];
  return last + 1;
}

template <class C>
void compute(const Problem& p, Made made, const Data& data, void* result, double alpha, double beta) {
  const DType dtype = dtype_of_cudnn(p.x.type);
  const bool tf32 = p.x.type == CUDNN_DATA_FLOAT && p.how.math != CUDNN_FMA_MATH;
  const std::int64_t nx = extent(p.x.size, p.x.stride), nw = extent(p.w.size, p.w_stride),
                     ny = extent(p.y.size, p.y.stride);
  using Values = std::vector<C>;
  const Values x = made == Made::dx ? Values() : loaded<C>(data.x, dtype, nx, tf32);
  const Values w = made == Made::dw ? Values() : loaded<C>(data.w, dtype, nw, tf32);
  const Values y = made == Made::y ? Values() : loaded<C>(data.y, dtype, ny, tf32);
  Values sums(static_cast<std::size_t>(made == Made::dx ? nx : made == Made::dw ? nw : ny));
  const auto at = [](auto& values, std::int64_t i) -> auto& { return values[static_cast<std::size_t>(i)]; };
  each_product(p, [&](std::int64_t i, std::int64_t j, std::int64_t k) {
    if (made == Made::y) at(sums, k) += at(x, i) * at(w, j);
    else if (made == Made::dx) at(sums, i) += at(y, k) * at(w, j);
    else at(sums, j) += at(y, k) * at(x, i);
  });
  const auto& size = made == Made::dx ? p.x.size : made == Made::dw ? p.w.size : p.y.size;
  const auto& stride = made == Made::dx ? p.x.stride : made == Made::dw ? p.w_stride : p.y.stride;
  for (std::int64_t a = 0; a < size[0]; ++a)
    for (std::int64_t b = 0; b < size[1]; ++b)
      for (std::int64_t c = 0; c < size[2]; ++c)
        for (std::int64_t d = 0; d < size[3]; ++d) {
          const std::int64_t i = offset(stride, a, b, c, d);
          C value = static_cast<C>(alpha) * at(sums, i);
          if (beta != 0) value += static_cast<C>(beta) * load_element<C>(dtype, result, i);
          store_element(dtype, value, result, i);
        }
}

cudnnStatus_t run(const char* call, cudnnHandle_t handle, const Problem& p, Made made, int algorithm, const Data& data,
                  void* result, void* workspace, std::size_t bytes, const void* alpha, const void* beta) {
  const double a = scaling(alpha, p.x.type, call), b = scaling(beta, p.x.type, call);
  for (const void* each : {data.x, data.w, data.y}) need_data(each, call);
  const cudnnStatus_t status = support(p, made, algorithm);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  need(bytes >= workspace_of(p, made), call, "the workspace is smaller than was said");
  need(workspace != nullptr, call, "the workspace is null");
  enqueue(handle->stream, [=] {
    if (p.x.type == CUDNN_DATA_DOUBLE) compute<double>(p, made, data, result, a, b);
    else compute<float>(p, made, data, result, a, b);
  });
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t workspace_size(const char* call, const Problem& p, Made made, int algorithm, std::size_t* bytes) {
  need(bytes, call, "nowhere to write the size");
  *bytes = workspace_of(p, made);
  return support(p, made, algorithm);
}

}  // namespace
}  // namespace gradual::cuda::emulator

using namespace gradual::cuda::emulator;

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                      cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t how,
                                                      cudnnTensorDescriptor_t y, cudnnConvolutionFwdAlgo_t algorithm,
                                                      std::size_t* bytes) {
  const char* const call = "cudnnGetConvolutionForwardWorkspaceSize";
  return workspace_size(call, problem_of(call, handle, x, w, y, how), Made::y, algorithm, bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                           cudnnTensorDescriptor_t dy, cudnnConvolutionDescriptor_t how,
                                                           cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t algorithm,
                                                           std::size_t* bytes) {
  const char* const call = "cudnnGetConvolutionBackwardDataWorkspaceSize";
  return workspace_size(call, problem_of(call, handle, dx, w, dy, how), Made::dx, algorithm, bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t dy, cudnnConvolutionDescriptor_t how,
    cudnnFilterDescriptor_t dw, cudnnConvolutionBwdFilterAlgo_t algorithm, std::size_t* bytes) {
  const char* const call = "cudnnGetConvolutionBackwardFilterWorkspaceSize";
  return workspace_size(call, problem_of(call, handle, x, dw, dy, how), Made::dw, algorithm, bytes);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x_desc,
                                      const void* x, cudnnFilterDescriptor_t w_desc, const void* w,
                                      cudnnConvolutionDescriptor_t how, cudnnConvolutionFwdAlgo_t algorithm,
                                      void* workspace, std::size_t workspace_bytes, const void* beta,
                                      cudnnTensorDescriptor_t y_desc, void* y) {
  const char* const call = "cudnnConvolutionForward";
  return run(call, handle, problem_of(call, handle, x_desc, w_desc, y_desc, how), Made::y, algorithm, {x, w, y}, y,
             workspace, workspace_bytes, alpha, beta);
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha, cudnnFilterDescriptor_t w_desc,
                                           const void* w, cudnnTensorDescriptor_t dy_desc, const void* dy,
                                           cudnnConvolutionDescriptor_t how, cudnnConvolutionBwdDataAlgo_t algorithm,
                                           void* workspace, std::size_t workspace_bytes, const void* beta,
                                           cudnnTensorDescriptor_t dx_desc, void* dx) {
  const char* const call = "cudnnConvolutionBackwardData";
  return run(call, handle, problem_of(call, handle, dx_desc, w_desc, dy_desc, how), Made::dx, algorithm, {dx, w, dy},
             dx, workspace, workspace_bytes, alpha, beta);
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x_desc,
                                             const void* x, cudnnTensorDescriptor_t dy_desc, const void* dy,
                                             cudnnConvolutionDescriptor_t how,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace,
                                             std::size_t workspace_bytes, const void* beta,
                                             cudnnFilterDescriptor_t dw_desc, void* dw) {
  const char* const call = "cudnnConvolutionBackwardFilter";
  return run(call, handle, problem_of(call, handle, x_desc, dw_desc, dy_desc, how), Made::dw, algorithm, {x, dw, dy},
             dw, workspace, workspace_bytes, alpha, beta);
}
