// flash_attention and its backward in device memory: by cuDNN (attention_cudnn.cpp), and by products and kernels of ours
// (attention.cu) what it does not take.
#pragma once

#include "../../core/tensor/tensor.h"

namespace gradual::cuda {

// The tensors of a call as [batch, heads, length, head size], the logsumexp as [batch, heads, queries, 1]. Forward makes y and
// logsumexp; backward reads them too, and makes dq, dk and dv of dy.
struct Attention {
  bool causal;
  double scale;
  Tensor q, k, v, y, logsumexp;
  Tensor dy{}, dq{}, dk{}, dv{};
  std::int64_t most_scratch = std::int64_t{1} << 30;  // bytes; what takes more goes in parts where it can be cut
  bool backward() const { return dy.defined(); }
};

// Enqueues it; false where the library does not take it: what was written counts for nothing. The same bits every time.
bool attend(const Attention& a);

// Whether the library has a plan for it on a GPU that need not be there. What the tensors hold does not matter.
class DescribedGpu;
bool has_plan(const Attention& a, const DescribedGpu& gpu);

}  // namespace gradual::cuda
