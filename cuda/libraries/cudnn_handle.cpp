#include "cudnn_handle.h"

#include <array>

#include "../../core/support/throwf.h"
#include "../runtime/profiling.h"
#include "../runtime/runtime.h"
#include "../runtime/thread_resources.h"

namespace gradual::cuda {

void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) throwf("{}: {}", call, cudnnGetErrorString(status));
}

bool supported(cudnnStatus_t status, const char* call) {
  const int category = CUDNN_STATUS_CATEGORY(status);
  if (category == CUDNN_STATUS_NOT_SUPPORTED || category == CUDNN_STATUS_BAD_PARAM) return false;
  check(status, call);
  return true;
}

bool done(cudnnStatus_t status, const char* call) {
  if (!supported(status, call)) return false;
  note_call(call);
  return true;
}

cudnnHandle_t cudnn_handle() {
  using Handles = std::array<cudnnHandle_t, device::kMost>;
  cudnnHandle_t& mine = inherited<Handles>()[static_cast<std::size_t>(current_device())];
  if (!mine) check(cudnnCreate(&mine), "cudnnCreate");
  check(cudnnSetStream(mine, current_stream()), "cudnnSetStream");
  return mine;
}

cudnnDataType_t cudnn_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return CUDNN_DATA_DOUBLE;
    case DType::f32: return CUDNN_DATA_FLOAT;
    case DType::f16: return CUDNN_DATA_HALF;
    case DType::bf16: return CUDNN_DATA_BFLOAT16;
    default: throwf("internal: cuDNN has no {}", to_string(dtype));
  }
}

}  // namespace gradual::cuda
