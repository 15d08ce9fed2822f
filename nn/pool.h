// Pooling layers. Each is the op of the same name.
#pragma once

#include "../core/ops/derived_ops.h"
#include "op_layer.h"

namespace gradual::nn {

// Pooling over [N, C, H, W]. Pool2dOptions: kernel, stride (0: the kernel's size), padding.
template <Tensor (*op)(const Tensor&, Pool2dOptions, Loc)> struct Pool2d : OpLayer<op, Pool2dOptions> {
  explicit Pool2d(Pool2dOptions options) : OpLayer<op, Pool2dOptions>(options) {}
  explicit Pool2d(std::int64_t kernel) : Pool2d(Pool2dOptions{.kernel = kernel}) {}
};
struct MaxPool2d : Pool2d<max_pool2d> {
  using Pool2d::Pool2d;
};
struct AvgPool2d : Pool2d<avg_pool2d> {  // padding counts as zeros
  using Pool2d::Pool2d;
};
struct AdaptiveAvgPool2d : OpLayer<adaptive_avg_pool2d, std::int64_t, std::int64_t> {  // to [N, C, height, width]
  using OpLayer::OpLayer;
  explicit AdaptiveAvgPool2d(std::int64_t size) : OpLayer(size, size) {}
};

struct AdaptiveMaxPool2d : OpLayer<adaptive_max_pool2d, std::int64_t, std::int64_t> {
  using OpLayer::OpLayer;
  explicit AdaptiveMaxPool2d(std::int64_t size) : OpLayer(size, size) {}
};

}  // namespace gradual::nn
