// Conv2d.
#pragma once

#include "module.h"

namespace gradual::nn {

// One number stands for height and width.
struct Conv2dLayerOptions {
  Size2 stride = 1, padding = 0, dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
};

// x [N, in, H, W] -> [N, out, H', W'] with H' = (H + 2 padding - dilation (kernel - 1) - 1) / stride + 1, rounded down.
// weight [out, in/groups, kernel height, kernel width], bias [out]. Starts from U(-b, b), b = 1/sqrt(fan in).
class Conv2d : public Layer {
 public:
  Conv2d(std::int64_t in, std::int64_t out, Size2 kernel, Conv2dLayerOptions options = {});
  Tensor forward(const Tensor& x) override;

  Tensor& weight;
  Tensor& bias;  // undefined without one

 private:
  ConvAttrs attrs_;
};

}  // namespace gradual::nn
