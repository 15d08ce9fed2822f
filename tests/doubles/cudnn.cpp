// Handles and checks of the emulated cuDNN.
#include "cudnn.h"

#include <cstdlib>
#include <string>

#include "../../core/support/throwf.h"
#include "cudnn_parts.h"

namespace gradual::cuda::emulator {

void need(bool right, std::string_view call, std::string_view rule) {
  if (!right) throwf("emulated cuDNN: {}: bad parameter: {}", call, rule);
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
  throwf("emulated cuDNN: bad parameter: {} is no data type", static_cast<int>(type));
}

}  // namespace gradual::cuda::emulator

using namespace gradual::cuda::emulator;

std::size_t cudnnGetVersion() { return CUDNN_VERSION; }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
         : status == CUDNN_STATUS_SUCCESS                            ? "CUDNN_STATUS_SUCCESS"
                                                                     : "CUDNN_STATUS_BAD_PARAM";
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  need(handle, "cudnnSetStream", "no handle");
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
