// Layers with weights: Linear, Conv2d, Embedding.
#pragma once

#include "../core/ops/ops.h"
#include "init.h"
#include "module.h"

namespace gradual::nn {

struct LinearOptions {
  bool bias = true;
};

// x [.., in] -> [.., out]; weight [out, in], bias [out]. Starts from U(-1/sqrt(in), 1/sqrt(in)).
struct Linear : Layer {
  Linear(std::int64_t in, std::int64_t out, LinearOptions options = {})
      : weight(register_parameter("weight", empty({count("Linear", "out", out), count("Linear", "in", in)}))),
        bias(register_parameter("bias", options.bias ? empty({out}) : Tensor())) {
    init::default_weight_and_bias_(weight, bias);
  }
  Tensor forward(const Tensor& x) override { return linear(x, weight, bias); }
  // relu(forward(x)) and gelu(forward(x)) in one op.
  Tensor forward_relu(const Tensor& x) { return linear_relu(x, weight, bias); }
  Tensor forward_gelu(const Tensor& x, Gelu form) { return linear_gelu(x, weight, bias, form); }

  Tensor& weight;
  Tensor& bias;  // undefined without one
};

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
        attrs_{.stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups} {
    init::default_weight_and_bias_(weight, bias);
  }
  Tensor forward(const Tensor& x) override { return conv2d(x, weight, bias, attrs_); }

  Tensor& weight;
  Tensor& bias;  // undefined without one

 private:
  static std::int64_t of_group(std::int64_t in, std::int64_t out, std::int64_t groups) {
    count("Conv2d", "in", in);
    count("Conv2d", "out", out);
    if (groups >= 1 && in % groups == 0 && out % groups == 0) return in / groups;
    fail("Conv2d: " + std::to_string(groups) + " groups do not divide " + std::to_string(in) + " input and " +
         std::to_string(out) + " output channels");
  }
  ConvAttrs attrs_;
};

// i64 indices [..] -> [.., size]; weight [entries, size] starts from N(0, 1).
struct Embedding : Layer {
  Embedding(std::int64_t entries, std::int64_t size)
      : weight(register_parameter("weight",
                                  empty({count("Embedding", "entries", entries), count("Embedding", "size", size)}))) {
    init::normal_(weight);
  }
  Tensor forward(const Tensor& indices) override { return embedding(weight, indices); }

  Tensor& weight;
};

}  // namespace gradual::nn
