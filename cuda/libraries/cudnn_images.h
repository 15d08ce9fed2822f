// Tensors of up to four dims as cuDNN's functions for single ops take them.
#pragma once

#include "../../core/tensor/tensor.h"
#include "cudnn_handle.h"

namespace gradual::cuda {

// f32, f16 or bf16 at an aligned address, with elements to count in an int.
bool is_image_data(const Tensor& t);
// [N, C], [N, C, L] or [N, C, H, W] side by side, row-major or with the channels last.
bool is_dense_image(const Tensor& t);

// Sizes and strides of such a tensor; missing dims are 1.
void describe(const CudnnTensor& descriptor, const Tensor& t);
// A row-major tensor as [n, c, h, 1].
void describe(const CudnnTensor& descriptor, DType dtype, std::int64_t n, std::int64_t c, std::int64_t h);

}  // namespace gradual::cuda
