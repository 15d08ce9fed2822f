// Pooling over [N, C, H, W]. Pool2dOptions: kernel, stride (0: the kernel's size), padding.
#pragma once

#include "../core/ops.h"
#include "module.h"

namespace gradual::nn {

class MaxPool2d : public Layer {
 public:
  explicit MaxPool2d(Pool2dOptions options) : options_(options) {}
  explicit MaxPool2d(std::int64_t kernel) : options_{.kernel = kernel} {}
  Tensor forward(const Tensor& x) override { return max_pool2d(x, options_); }

 private:
  Pool2dOptions options_;
};

class AvgPool2d : public Layer {  // padding counts as zeros
 public:
  explicit AvgPool2d(Pool2dOptions options) : options_(options) {}
  explicit AvgPool2d(std::int64_t kernel) : options_{.kernel = kernel} {}
  Tensor forward(const Tensor& x) override { return avg_pool2d(x, options_); }

 private:
  Pool2dOptions options_;
};

class AdaptiveAvgPool2d : public Layer {  // to [N, C, height, width]
 public:
  explicit AdaptiveAvgPool2d(std::int64_t size) : AdaptiveAvgPool2d(size, size) {}
  AdaptiveAvgPool2d(std::int64_t height, std::int64_t width) : height_(height), width_(width) {}
  Tensor forward(const Tensor& x) override { return adaptive_avg_pool2d(x, height_, width_); }

 private:
  std::int64_t height_, width_;
};

}  // namespace gradual::nn
