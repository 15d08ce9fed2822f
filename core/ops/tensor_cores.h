// Whether a contraction can run on NVIDIA's tensor cores, and if not, why: told by the call alone, so that it can be asked
// on any machine.
#pragma once

#include <string>

#include "op.h"

namespace gradual {

struct TensorCores {
  enum class Use { none, partly, full };
  Use use = Use::none;
  std::string why;  // of none and partly
};

// f16, bf16 and f8 operands, f32 ones where TF32 is allowed (compute_mode.h), and f64 (A100, H100 and later). `full` wants
// the dims that lie next to each other in memory (m, n, k of a product, channels of a convolution) in multiples of 16 bytes
// and operands that begin at such: 8 elements of 16 bits, 4 of TF32, 16 of f8, 2 of f64. cuBLAS since 11.0 and cuDNN since
// 7.6.3 take others too (`partly`), slower; f8 needs them. Source: NVIDIA, "Deep Learning Performance: Matrix
// Multiplication", sections 2 and 3. A call of no contraction has `none`.
TensorCores tensor_cores(const OpCall& call);

}  // namespace gradual
