// Rows of a tensor that does not lie in memory as a whole, such as the windows of a convolution.
#pragma once

#include <cstdint>

#include "quantizer.h"

namespace gradual {

// How rounded values lie in memory. GPUs and f64 values have axis_last.
enum class ValuesLayout {
  axis_last,  // in rows along the axis
  as_given,   // as x does, if its elements fill a range
  row_major,
};

struct PartOf {
  std::int64_t first_element = 0;  // the number of the part's first element, for random words; on a GPU 0
  // More than 1, on the CPU: so many last dims of x are the contracted axis k, the others the rows. The result is
  // [rows, k], or [k, rows] if the axis is 0 in place of 1 or -1. Observers are told of x in that form.
  int row_dims = 1;
  ValuesLayout layout = ValuesLayout::axis_last;
  // absmax_tensor() of all, for scales of the tensor: current, delayed (it is staged) and over blocks. Undefined: the
  // part's.
  Tensor amax = {};
};
// quantize_operand() of a part. Scales per row and per block are those of the part's own rows: tiles are whole.
QuantizedOperand quantize_part(const Tensor& x, const Quantizer& quantizer, const QuantizeOptions& options,
                               const PartOf& part);
// quantizer_slopes() of a part.
Tensor slopes_of_part(const Tensor& x, const Quantizer& quantizer, const QuantizeOptions& options, const PartOf& part);

}  // namespace gradual
