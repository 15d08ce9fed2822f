// Linear: y = x weight^T + bias.
#pragma once

#include "../core/ops.h"
#include "init.h"
#include "module.h"

namespace gradual::nn {

struct LinearOptions {
  bool bias = true;
};

// x [.., in] -> [.., out]; weight [out, in], bias [out]. Starts from U(-1/sqrt(in), 1/sqrt(in)).
class Linear : public Layer {
 public:
  Linear(std::int64_t in, std::int64_t out, LinearOptions options = {})
      : weight(register_parameter("weight", empty({out, in}))),
        bias(register_parameter("bias", options.bias ? empty({out}) : Tensor())) {
    init::default_weight_and_bias_(weight, bias);
  }
  Tensor forward(const Tensor& x) override { return linear(x, weight, bias); }

  Tensor& weight;
  Tensor& bias;  // undefined without one
};

}  // namespace gradual::nn
