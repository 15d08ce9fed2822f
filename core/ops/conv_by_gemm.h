// conv2d and its two gradients as matrix products (implicit GEMM), written with other ops.
#pragma once

#include <cstdint>
#include <functional>

#include "../tensor/tensor.h"
#include "attrs.h"
#include "op.h"

namespace gradual {

// The contracted axis of a convolution's product runs over the taps of the kernel and, innermost, over the channels:
//   conv2d                  (kh, kw, C)  x in windows with w
//   conv2d_backward_input   (kh, kw, O)  dy, spread over the strides, in windows with the kernel turned by 180 degrees
//   conv2d_backward_weight  (oh, ow, N)  dy with x in windows
// C and O are the channels of a group. Padding, and what lies between the strides, are zeros like others.
struct ConvAxis {
  int windows;  // which of both operands is unfolded into windows
  int dims[2];  // of each operand: its dim that lies innermost
};
ConvAxis conv_axis(OpId op);

// The operand that is not unfolded, as the rows [groups m, k] of the product, and back. `t` is the second operand of
// conv2d and conv2d_backward_input, the first one of conv2d_backward_weight.
Tensor conv_rows(OpId op, const Tensor& t, std::int64_t groups);
Tensor from_conv_rows(OpId op, const Tensor& rows, const Shape& sizes, std::int64_t groups);

// A part of the unfolded operand: its rows of windows.
struct ConvPart {
  std::int64_t group = 0;
  std::int64_t first = 0;  // the first of these rows among those of its group
};
// Computes conv2d(x, w) without a bias, conv2d_backward_input(dy, w) or conv2d_backward_weight(dy, x), of sizes `out`,
// by product(a [m, k], b [k, n], part). a comes from the first operand, b from the second. Windows are unfolded in
// parts of about `elements` numbers (0: a group at once), which the shapes alone determine.
using ConvProduct = std::function<Tensor(const Tensor& a, const Tensor& b, const ConvPart& part)>;
Tensor conv_by_products(OpId op, const Tensor& first, const Tensor& second, const ConvAttrs& attrs, const Shape& out,
                        const ConvProduct& product, std::int64_t elements);
// The same by product(windows, rows, part), which unfolds them itself. windows: a view [.., .., .., taps, taps, K] of
// which the first three dims are the rows and the last three the contracted axis. rows [n, k]: of the other operand.
// The product is [m, n] for the windows' m rows, for conv2d_backward_weight [n, m].
using WindowProduct = std::function<Tensor(const Tensor& windows, const Tensor& rows, const ConvPart& part)>;
Tensor conv_by_windows(OpId op, const Tensor& first, const Tensor& second, const ConvAttrs& attrs, const Shape& out,
                       const WindowProduct& product, std::int64_t elements);
// Windows as rows [m, k].
Tensor unfolded(const Tensor& windows);
// Parts that stay in a core's cache with their products.
inline constexpr std::int64_t kConvPart = 1 << 17;

// Computes conv2d or one of its gradients under an accumulator, by matmul and linear, which add the products of each
// output in order. Returns false and does nothing if no accumulator is set or the output is f64.
bool convolution_accumulated(const OpCall& call, Tensor& out);

}  // namespace gradual
