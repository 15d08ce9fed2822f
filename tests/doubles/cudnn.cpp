// Handles and descriptors of the emulated cuDNN.
#include "cudnn.h"

#include <cstdlib>
#include <string>

#include "../../core/support/failf.h"
#include "cudnn_parts.h"

namespace gradual::cuda::emulator {

void need(bool right, std::string_view call, std::string_view rule) {
  if (!right) failf("emulated cuDNN: {}: bad parameter: {}", call, rule);
}

void need_data(const void* data, std::string_view call) {
  need(data != nullptr, call, "a pointer to data is null");
  need(reinterpret_cast<std::uintptr_t>(data) % 16 == 0, call, "data must lie at a multiple of 16 bytes");
}

bool refuses(std::string_view what) {
  const char* const asked = std::getenv("GRADUAL_EMULATED_CUDNN_REFUSES");
  if (!asked) return false;
  for (std::string_view left = asked; !left.empty();) {
    const std::size_t end = left.find(',');
    if (left.substr(0, end) == what) return true;
    left = end == std::string_view::npos ? std::string_view{} : left.substr(end + 1);
  }
  return false;
}

DType dtype_of_cudnn(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_FLOAT: return DType::f32;
    case CUDNN_DATA_DOUBLE: return DType::f64;
    case CUDNN_DATA_HALF: return DType::f16;
    case CUDNN_DATA_BFLOAT16: return DType::bf16;
    case CUDNN_DATA_INT32: return DType::i32;
    case CUDNN_DATA_INT64: return DType::i64;
    case CUDNN_DATA_BOOLEAN: return DType::bool_;
  }
  failf("emulated cuDNN: bad parameter: {} is no data type", static_cast<int>(type));
}

std::int64_t numel(const cudnnTensorStruct& t) { return t.size[0] * t.size[1] * t.size[2] * t.size[3]; }

namespace {
bool lies_in_order(const cudnnTensorStruct& t, const int (&order)[4]) {
  std::int64_t stride = 1;
  for (int i = 3; i >= 0; --i) {
    const int d = order[i];
    if (t.size[d] != 1 && t.stride[d] != stride) return false;
    stride *= t.size[d];
  }
  return true;
}
template <class T> cudnnStatus_t create(T** made) {
  *made = new T;
  return CUDNN_STATUS_SUCCESS;
}
template <class T> cudnnStatus_t destroy(T* made) {
  delete made;
  return CUDNN_STATUS_SUCCESS;
}
}  // namespace
bool is_planar(const cudnnTensorStruct& t) { return lies_in_order(t, {0, 1, 2, 3}); }
bool is_channels_last(const cudnnTensorStruct& t) { return lies_in_order(t, {0, 2, 3, 1}); }

cudnnStatus_t same_float_type(std::initializer_list<const cudnnTensorStruct*> tensors, std::string_view call) {
  for (const cudnnTensorStruct* t : tensors) {
    need(t && t->set, call, "a descriptor is not set");
    need(t->type == (*tensors.begin())->type, call, "tensors must have one type");
  }
  const cudnnDataType_t type = (*tensors.begin())->type;
  return type == CUDNN_DATA_FLOAT || is_narrow(type) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE;
}

double scaling(const void* factor, cudnnDataType_t type, std::string_view call) {
  need(factor != nullptr, call, "alpha or beta is null");
  if (type == CUDNN_DATA_DOUBLE) return *static_cast<const double*>(factor);
  return static_cast<double>(*static_cast<const float*>(factor));
}

}  // namespace gradual::cuda::emulator

using namespace gradual::cuda::emulator;

std::size_t cudnnGetVersion() { return CUDNN_VERSION; }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
         : status == CUDNN_STATUS_SUCCESS                            ? "CUDNN_STATUS_SUCCESS"
                                                                     : "CUDNN_STATUS_BAD_PARAM";
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { return create(handle); }
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return destroy(handle); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  need(handle, "cudnnSetStream", "no handle");
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* tensor) { return create(tensor); }
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) { return destroy(tensor); }
cudnnStatus_t cudnnSetTensor4dDescriptorEx(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int n, int c, int h,
                                           int w, int n_stride, int c_stride, int h_stride, int w_stride) {
  const char* const call = "cudnnSetTensor4dDescriptorEx";
  need(tensor, call, "no descriptor");
  dtype_of_cudnn(type);
  *tensor = {true, type, {n, c, h, w}, {n_stride, c_stride, h_stride, w_stride}};
  std::int64_t last = 0;
  for (int d = 0; d < 4; ++d) {
    need(tensor->size[d] > 0, call, "sizes must be above 0");
    need(tensor->stride[d] > 0, call, "strides must be above 0");
    last += (tensor->size[d] - 1) * tensor->stride[d];
  }
  return last < INT32_MAX ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}
