// Convolutions.
#pragma once

#include "../core/ops/ops.h"
#include "init.h"
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
  Conv2d(std::int64_t in, std::int64_t out, Size2 kernel, Conv2dLayerOptions o = {})
      : weight(register_parameter("weight",
                                  empty({out, of_group(in, out, o.groups), count("Conv2d", "kernel height", kernel[0]),
                                         count("Conv2d", "kernel width", kernel[1])}))),
        bias(register_parameter("bias", o.bias ? empty({out}) : Tensor())),
        options_{.stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups} {
    init::default_weight_and_bias_(weight, bias);
  }
  Tensor forward(const Tensor& x) override { return conv2d(x, weight, bias, options_); }

  Tensor& weight;
  Tensor& bias;  // undefined if there is none

 private:
  static std::int64_t of_group(std::int64_t in, std::int64_t out, std::int64_t groups) {
    count("Conv2d", "in", in);
    count("Conv2d", "out", out);
    if (groups >= 1 && in % groups == 0 && out % groups == 0) return in / groups;
    throw_error("Conv2d: " + std::to_string(groups) + " groups do not divide " + std::to_string(in) + " input and " +
                std::to_string(out) + " output channels");
  }
  Conv2dOptions options_;
};

}  // namespace gradual::nn
