// Convolutions on device memory: by cuDNN (conv_cudnn.cpp), or by a kernel of Gradual (conv_plain.cu) if cuDNN does not
// take the call.
#pragma once

#include "../../core/ops/op.h"

namespace gradual::cuda {

class DescribedGpu;  // cudnn_graph.h

// y = conv2d(x, w), or its gradient by x or w: `op` says which of the three is computed from the other two.
struct Convolution {
  OpId op;
  ConvAttrs attrs;
  DType dtype;         // of all three: f64, f32, f16 or bf16
  bool tf32;           // f32 operands are rounded to TF32 (core/ops/compute_mode.h)
  bool channels_last;  // memory order [N, H, W, C] for x and y, [O, kh, kw, C/groups] for w; else row-major
  Shape x, w, y;       // [N, C, H, W], [O, C/groups, kh, kw], [N, O, oh, ow]
  bool adds = false;   // adds the output's old contents to the sums, before rounding

  bool makes(OpId wanted) const { return op == wanted; }
  // Memory strides of one of the three.
  Shape strides(const Shape& s) const {
    if (channels_last) return {s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]};
    return contiguous_strides(s);
  }
};

// One of the three is written.
struct ConvolutionData {
  const void* x;
  const void* w;
  const void* y;
  void* made(OpId op) const {
    return const_cast<void*>(op == OpId::conv2d ? y : op == OpId::conv2d_backward_input ? x : w);
  }
};

// Enqueues it. Returns false and does nothing if the library does not take it. Sizes are above 0. The same bits every
// time.
bool convolve(const Convolution& c, const ConvolutionData& data);
// True if the library takes it on the described GPU.
bool has_plan(const Convolution& c, const DescribedGpu& gpu);
// By a kernel of Gradual: any sizes; each element is one sum.
void plain_convolve(const Convolution& c, const ConvolutionData& data);

}  // namespace gradual::cuda
