#include "linear.h"

#include "../core/ops.h"
#include "init.h"

namespace gradual::nn {

Linear::Linear(std::int64_t in, std::int64_t out, LinearOptions options)
    : weight(register_parameter("weight", empty({out, in}, {.dtype = options.dtype}))),
      bias(register_parameter("bias", options.bias ? empty({out}, {.dtype = options.dtype}) : Tensor())) {
  init::default_weight_and_bias_(weight, bias);
}

Tensor Linear::forward(const Tensor& x) { return linear(x, weight, bias); }

}  // namespace gradual::nn
