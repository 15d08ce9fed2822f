#include "cudnn_images.h"

#include <cstdint>

namespace gradual::cuda {
namespace {

int narrow(std::int64_t n) { return static_cast<int>(n); }

}  // namespace

bool is_image_data(const Tensor& t) {
  const bool typed = t.dtype() == DType::f32 || t.dtype() == DType::f16 || t.dtype() == DType::bf16;
  return typed && t.numel() > 0 && t.numel() <= INT32_MAX && reinterpret_cast<std::uintptr_t>(t.raw()) % 16 == 0;
}

bool is_dense_image(const Tensor& t) {
  if (t.dim() < 2 || t.dim() > 4) return false;
  if (t.is_contiguous()) return true;
  if (t.dim() != 4) return false;
  const Shape& s = t.sizes();
  const Shape last{s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]};
  for (int d = 0; d < 4; ++d)
    if (s[d] != 1 && t.strides()[d] != last[d]) return false;
  return true;
}

void describe(const CudnnTensor& descriptor, const Tensor& t) {
  std::int64_t size[4] = {1, 1, 1, 1}, stride[4];
  for (int d = 0; d < t.dim(); ++d) size[d] = t.sizes()[d];
  const bool last = !t.is_contiguous();
  stride[3] = last ? size[1] : 1;
  stride[2] = stride[3] * size[3];
  stride[1] = last ? 1 : size[2] * size[3];
  stride[0] = size[1] * size[2] * size[3];
  check(cudnnSetTensor4dDescriptorEx(descriptor.get(), cudnn_type(t.dtype()), narrow(size[0]), narrow(size[1]),
                                     narrow(size[2]), narrow(size[3]), narrow(stride[0]), narrow(stride[1]),
                                     narrow(stride[2]), narrow(stride[3])),
        "cudnnSetTensor4dDescriptorEx");
}

void describe(const CudnnTensor& descriptor, DType dtype, std::int64_t n, std::int64_t c, std::int64_t h) {
  check(cudnnSetTensor4dDescriptorEx(descriptor.get(), cudnn_type(dtype), narrow(n), narrow(c), narrow(h), 1,
                                     narrow(c * h), narrow(h), 1, 1),
        "cudnnSetTensor4dDescriptorEx");
}

}  // namespace gradual::cuda
