#include "conv.h"

#include <fmt/format.h>

#include "../core/ops.h"
#include "init.h"

namespace gradual::nn {
namespace {

Shape weight_sizes(std::int64_t in, std::int64_t out, Size2 kernel, std::int64_t groups) {
  if (groups < 1 || in % groups || out % groups)
    fail(fmt::format("Conv2d: {} groups do not divide {} input and {} output channels", groups, in, out));
  return {out, in / groups, kernel[0], kernel[1]};
}

}  // namespace

Conv2d::Conv2d(std::int64_t in, std::int64_t out, Size2 kernel, Conv2dLayerOptions o)
    : weight(register_parameter("weight", empty(weight_sizes(in, out, kernel, o.groups)))),
      bias(register_parameter("bias", o.bias ? empty({out}) : Tensor())),
      attrs_{.stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups} {
  init::default_weight_and_bias_(weight, bias);
}

Tensor Conv2d::forward(const Tensor& x) { return conv2d(x, weight, bias, attrs_); }

}  // namespace gradual::nn
