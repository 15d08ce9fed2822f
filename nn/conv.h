// Convolutions.
#pragma once

#include "../core/ops/derived_ops.h"
#include "module.h"

namespace gradual::nn {

// weight and bias, which start from U(-b, b), b = 1/sqrt(fan in). Error for sizes below 1, and for groups that do not
// divide both channels.
class Convolution : public Layer {
 public:
  Tensor& weight;
  Tensor& bias;  // undefined if there is none

 protected:
  // weight [rows, columns/groups, kernel..]
  Convolution(const char* layer, std::int64_t in, std::int64_t out, const Shape& kernel, std::int64_t groups, bool bias,
              bool transposed = false);
};

// One number stands for height and width.
struct Conv2dLayerOptions {
  Size2 stride = 1, padding = 0, dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
};

// x [N, in, H, W] -> [N, out, H', W'] with H' = (H + 2 padding - dilation (kernel - 1) - 1) / stride + 1, rounded down.
// weight [out, in/groups, kernel height, kernel width], bias [out].
class Conv2d : public Convolution {
 public:
  Conv2d(std::int64_t in, std::int64_t out, Size2 kernel, Conv2dLayerOptions o = {})
      : Convolution("Conv2d", in, out, {kernel[0], kernel[1]}, o.groups, o.bias),
        options_{.stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups} {}
  Tensor forward(const Tensor& x) override { return conv2d(x, weight, bias, options_); }

 private:
  Conv2dOptions options_;
};

struct Conv1dLayerOptions : Conv1dOptions {
  bool bias = true;
};

// x [N, in, L] -> [N, out, L'], as Conv2d along one dim. weight [out, in/groups, kernel], bias [out].
class Conv1d : public Convolution {
 public:
  Conv1d(std::int64_t in, std::int64_t out, std::int64_t kernel, Conv1dLayerOptions o = {})
      : Convolution("Conv1d", in, out, kernel, o.groups, o.bias), options_(o) {}
  Tensor forward(const Tensor& x) override { return conv1d(x, weight, bias, options_); }

 private:
  Conv1dOptions options_;
};

struct ConvTranspose2dLayerOptions : ConvTranspose2dOptions {
  bool bias = true;
};

// x [N, in, H, W] -> [N, out, H', W'], see conv_transpose2d. weight [in, out/groups, kernel height, kernel width],
// bias [out].
class ConvTranspose2d : public Convolution {
 public:
  ConvTranspose2d(std::int64_t in, std::int64_t out, Size2 kernel, ConvTranspose2dLayerOptions o = {})
      : Convolution("ConvTranspose2d", in, out, {kernel[0], kernel[1]}, o.groups, o.bias, true), options_(o) {}
  Tensor forward(const Tensor& x) override { return conv_transpose2d(x, weight, bias, options_); }

 private:
  ConvTranspose2dOptions options_;
};

}  // namespace gradual::nn
