#include "conv.h"

#include "../core/support/throwf.h"
#include "init.h"

namespace gradual::nn {

static Shape weight_sizes(const char* layer, std::int64_t in, std::int64_t out, const Shape& kernel,
                          std::int64_t groups, bool transposed) {
  if (groups < 1 || in % groups != 0 || out % groups != 0)
    throwf("{}: {} groups do not divide {} input and {} output channels", layer, groups, in, out);
  Shape sizes = transposed ? Shape{in, out / groups} : Shape{out, in / groups};
  for (const std::int64_t size : kernel) {
    const char* const what = kernel.size() == 1 ? "kernel" : sizes.size() == 2 ? "kernel height" : "kernel width";
    sizes.push_back(count(layer, what, size));
  }
  return sizes;
}

Convolution::Convolution(const char* layer, std::int64_t in, std::int64_t out, const Shape& kernel, std::int64_t groups,
                         bool biased, bool transposed)
    : weight(register_parameter("weight", empty(weight_sizes(layer, count(layer, "in", in), count(layer, "out", out),
                                                             kernel, groups, transposed)))),
      bias(register_parameter("bias", biased ? empty({out}) : Tensor())) {
  init::default_weight_and_bias_(weight, bias);
}

}  // namespace gradual::nn
