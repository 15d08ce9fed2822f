// What the files of the emulated cuDNN share: the descriptors' contents and the checks.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "../../core/formats/dtype.h"
#include "cudnn.h"

struct cudnnContext {
  cudaStream_t stream = nullptr;
};
struct cudnnTensorStruct {
  bool set = false;
  cudnnDataType_t type{};
  std::int64_t size[4]{}, stride[4]{};
};
struct cudnnPoolingStruct {
  bool set = false;
  cudnnPoolingMode_t mode{};
  std::int64_t window[2]{}, padding[2]{}, stride[2]{};
};

namespace gradual::cuda::emulator {

// Error where a caller broke a rule of `call`.
void need(bool right, std::string_view call, std::string_view rule);
// A pointer to device memory: not null, and at a multiple of 16 bytes where `whole` is asked for.
void need_data(const void* data, std::string_view call);
// Whether the environment variable asks for this to be refused.
bool refuses(std::string_view what);

DType dtype_of_cudnn(cudnnDataType_t type);
inline bool is_narrow(cudnnDataType_t type) { return type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16; }
std::int64_t numel(const cudnnTensorStruct& t);
// [N, C, H, W] side by side in the order N, C, H, W or N, H, W, C. A dim of size 1 may have any stride.
bool is_planar(const cudnnTensorStruct& t);
bool is_channels_last(const cudnnTensorStruct& t);
// What the functions for single ops take beside convolutions: f32, f16 and bf16, of one type.
cudnnStatus_t same_float_type(std::initializer_list<const cudnnTensorStruct*> tensors, std::string_view call);
// alpha and beta are float, and double for double.
double scaling(const void* factor, cudnnDataType_t type, std::string_view call);

}  // namespace gradual::cuda::emulator
