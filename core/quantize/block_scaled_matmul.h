// Products of block-scaled numbers as Blackwell's tensor cores form them: MXFP8, MXFP6, MXFP4 and NVFP4.
#pragma once

#include "../formats/format.h"
#include "../tensor/tensor.h"
#include "quantized_tensor.h"

namespace gradual {

// Rows of numbers, each block of which has a scale.
struct BlockScaledRows {
  Tensor values;        // f32 [rows, K]: without scales
  Tensor scales;        // f32 [rows, K / block]
  Format format;        // of values
  Format scale_format;  // of scales: e8m0fnu or e4m3fn
};
// Of a tensor whose axis is its last. Its global scale is left out.
BlockScaledRows block_scaled_rows(const QuantizedTensor& q);

// a b^T, f32 [a's rows, b's rows], by MMA-Sim's models of Blackwell's and RTX Blackwell's instructions (arXiv
// 2511.10909). Sums start at zero and are f32, truncated after each group.
//   mxf8f6f4: groups of 32 products with e8m0fnu scales. A product's exponent is the sum of those of its operands and
//     of their scales; products and the sum are cut 25 bits below the largest one.
//   mxf4, mxf4nvf4 (both formats e2m1fn): groups of 64. 16 products are added exactly without scales; the result times
//     the scales' significands has the exponent of the scales alone. Four such terms and the sum are cut 35 bits below
//     the largest exponent.
// Subnormal operands and scales count with the exponent of their smallest normal number. Error for K that is no
// multiple of 32 (64), for blocks other than 32 (32 or 16), for other scales, and for numbers on a GPU.
Tensor block_scaled_matmul(const BlockScaledRows& a, const BlockScaledRows& b);

}  // namespace gradual
