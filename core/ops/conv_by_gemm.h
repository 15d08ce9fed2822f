// conv2d and its two gradients as matrix products (im2col), written with other ops.
#pragma once

#include <cstdint>
#include <functional>

#include "../tensor/tensor.h"
#include "attrs.h"
#include "op.h"

namespace gradual {

// Computes conv2d(x, w) without a bias, conv2d_backward_input(dy, w) or conv2d_backward_weight(dy, x), of sizes `out`,
// by product(a [m, k], b [k, n], group) for each group. a comes from the first operand, b from the second. k is C*kh*kw
// in forward, O*kh*kw in the input's gradient (dy is spread over the strides), N*oh*ow in the weight's.
using ConvProduct = std::function<Tensor(const Tensor& a, const Tensor& b, std::int64_t group)>;
Tensor conv_by_products(OpId op, const Tensor& first, const Tensor& second, const ConvAttrs& attrs, const Shape& out,
                        const ConvProduct& product);

// Computes conv2d or one of its gradients under an accumulator, by matmul and linear, which add the products of each
// output in order. Returns false and does nothing if no accumulator is set or the output is f64.
bool convolution_accumulated(const OpCall& call, Tensor& out);

}  // namespace gradual
