// conv2d and its two gradients as the products of matrices that they are (im2col), made of other ops.
#pragma once

#include <cstdint>
#include <functional>

#include "../tensor/tensor.h"
#include "attrs.h"
#include "op.h"

namespace gradual {

// The output of conv2d(x, w), without a bias, of conv2d_backward_input(dy, w) or conv2d_backward_weight(dy, x), of
// sizes `out`: product(a [m, k], b [k, n], group) for each group, a made of the first operand and b of the second. k is
// C*kh*kw in forward, O*kh*kw in the input's gradient (dy is spread over the strides), N*oh*ow in the weight's.
using ConvProduct = std::function<Tensor(const Tensor& a, const Tensor& b, std::int64_t group)>;
Tensor conv_by_products(OpId op, const Tensor& first, const Tensor& second, const ConvAttrs& attrs, const Shape& out,
                        const ConvProduct& product);

// conv2d, or one of its gradients, under an accumulator: matmul and linear, whose chains are not cut. False, with nothing
// done, where no accumulator is set or the output is f64.
bool convolution_accumulated(const OpCall& call, Tensor& out);

}  // namespace gradual
