// flash_attention and its backward on device memory: by cuDNN (attention_cudnn.cpp), or as products and kernels of
// Gradual (attention.cu) if cuDNN does not take the call.
#pragma once

#include "../../core/tensor/tensor.h"

namespace gradual::cuda {

// The tensors of a call as [batch, heads, length, head size], the logsumexp as [batch, heads, queries, 1]. Forward
// makes y and logsumexp; backward reads them too, and makes dq, dk and dv of dy.
struct Attention {
  bool causal;
  double scale;
  Tensor q, k, v, y, logsumexp;
  Tensor dy{};
  Tensor dq{};
  Tensor dk{};
  Tensor dv{};
  std::int64_t most_scratch = std::int64_t{1} << 30;  // bytes; a call that needs more is split if possible
  bool backward() const { return dy.defined(); }
};

// Enqueues it. False if the library does not take it; outputs are then undefined. The same bits every time.
bool attend(const Attention& a);

// True if the library has a plan for it on the described GPU, which need not be present. Tensors' contents are not
// used.
class DescribedGpu;
bool has_plan(const Attention& a, const DescribedGpu& gpu);

}  // namespace gradual::cuda
