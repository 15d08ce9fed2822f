// A fully connected layer.
#pragma once

#include "../core/ops/dispatch.h"
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
  std::optional<OpId> ends_in() const override { return only<Linear>(OpId::linear); }
  Tensor forward_fused(const Operand& x, const Fusion& fusion, const Attrs& second, const Tensor&) override {
    return dispatch1(fusion.whole, {x.tensor, &weight, &bias}, fusion.whole_attrs({}, second), Loc::current());
  }

  Tensor& weight;
  Tensor& bias;  // undefined if there is none
};

}  // namespace gradual::nn
