// Registration of the CPU kernels, one function per source file. register_columns() calls each once.
#pragma once

#include "../ops/dispatch.h"

namespace gradual::cpu {

inline void set_kernel(OpId op, KernelFn fn) { columns().cpu[static_cast<int>(op)] = fn; }

// Runs the kernel of an op with one input x and one output y, as part of another kernel.
void run_kernel(OpId op, const Attrs& attrs, const Tensor& x, const Tensor& y);
// In-place relu at the end of a fused kernel. It rounds and counts nothing.
void relu_in_place(const Tensor& t);
// The gradients of weight and bias: dy^T x by `matmul`, a kernel or an offer, and the sums of dy's columns. False, with
// nothing written, if matmul returns false.
bool linear_gradients(const OpCall& call, Outputs& out, bool (*matmul)(const OpCall& call, Outputs& out));

void register_attention();
void register_elementwise();
void register_reductions();
void register_movement();
void register_contractions();
void register_convolutions();
void register_pooling();
void register_normalization();
void register_batch_norm();
void register_softmax();
void register_optimizer();

}  // namespace gradual::cpu
