// Linear: y = x weight^T + bias.
#pragma once

#include "module.h"

namespace gradual::nn {

struct LinearOptions {
  bool bias = true;
  DType dtype = DType::f32;
};

// x [.., in] -> [.., out]; weight [out, in], bias [out]. Starts from U(-1/sqrt(in), 1/sqrt(in)).
class Linear : public Layer {
 public:
  Linear(std::int64_t in, std::int64_t out, LinearOptions options = {});
  Tensor forward(const Tensor& x) override;

  Tensor& weight;
  Tensor& bias;  // undefined without one
};

}  // namespace gradual::nn
