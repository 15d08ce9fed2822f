// What the files of the emulated cuDNN share: the handle's contents and the checks.
#pragma once

#include <cstdint>
#include <string_view>

#include "../../core/formats/dtype.h"
#include "cudnn.h"

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace gradual::cuda::emulator {

// Error if the caller broke a rule of `call`.
void need(bool right, std::string_view call, std::string_view rule);
// Error if a pointer to device memory is null or not a multiple of 16 bytes.
void need_data(const void* data, std::string_view call);
// Whether the environment variable tells the library to refuse this.
bool refuses(std::string_view what);

DType dtype_of_cudnn(cudnnDataType_t type);
inline bool is_narrow(cudnnDataType_t type) { return type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16; }

}  // namespace gradual::cuda::emulator
