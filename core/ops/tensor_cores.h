// Whether a contraction can run on NVIDIA's tensor cores, and if not, why. Depends on the call alone, so it works on
// any machine.
#pragma once

#include <string>

#include "op.h"

namespace gradual {

struct TensorCores {
  enum class Use { none, partly, full };
  Use use = Use::none;
  std::string why;  // for none and partly
};

// Tensor cores take f16, bf16 and f8 operands, f32 if TF32 is allowed (compute_mode.h), and f64 (A100, H100 and later).
// `full` needs contiguous dims (m, n, k of a product, channels of a convolution) and operand addresses in multiples of
// 16 bytes: 8 elements of 16 bits, 4 of TF32, 16 of f8, 2 of f64. cuBLAS since 11.0 and cuDNN since 7.6.3 take other
// sizes too (`partly`), more slowly; f8 requires multiples. Source: NVIDIA, "Deep Learning Performance: Matrix
// Multiplication", sections 2 and 3. A call that is no contraction gives `none`.
TensorCores tensor_cores(const OpCall& call);

}  // namespace gradual
