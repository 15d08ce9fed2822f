// Convolutions in device memory: by cuDNN (conv_cudnn.cpp), and by a kernel of ours (conv_plain.cu) what it does not take.
#pragma once

#include "../../core/ops/op.h"

namespace gradual::cuda {

class DescribedGpu;  // cudnn_graph.h

// y = conv2d(x, w), or its gradient by x or w: `op` says which of the three is made of the other two.
struct Convolution {
  OpId op;
  ConvAttrs attrs;
  DType dtype;         // of all three: f64, f32, f16 or bf16
  bool tf32;           // f32 operands are rounded to TF32 (core/ops/compute_mode.h)
  bool channels_last;  // x and y lie as [N, H, W, C], w as [O, kh, kw, C/groups]; else all are row-major
  Shape x, w, y;       // [N, C, H, W], [O, C/groups, kh, kw], [N, O, oh, ow]
  bool adds = false;   // what the made one holds is added to its sums, before they are rounded

  bool makes(OpId wanted) const { return op == wanted; }
  // Where element [a, b, c, d] of one of the three lies.
  Shape strides(const Shape& s) const {
    if (channels_last) return {s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]};
    return contiguous_strides(s);
  }
};

// One of the three is written.
struct ConvolutionData {
  const void *x, *w, *y;
  void* made(OpId op) const {
    return const_cast<void*>(op == OpId::conv2d ? y : op == OpId::conv2d_backward_input ? x : w);
  }
};

// Enqueues it; false, and nothing done, where the library does not take it. Sizes are above 0. The same bits every time.
bool convolve(const Convolution& c, const ConvolutionData& data);
// Whether the library takes it on the GPU that is described.
bool has_plan(const Convolution& c, const DescribedGpu& gpu);
// By our kernel: any sizes; one chain of additions an element.
void plain_convolve(const Convolution& c, const ConvolutionData& data);

}  // namespace gradual::cuda
