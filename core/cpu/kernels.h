// The CPU kernels, by the file that fills the slots. Called once by register_columns().
#pragma once

#include "../ops/dispatch.h"

namespace gradual::cpu {

inline void set_kernel(OpId op, KernelFn fn) { columns().cpu[static_cast<int>(op)] = fn; }

// Runs the kernel of an op of one input x and one output y, as a part of another kernel.
void run_kernel(OpId op, const Attrs& attrs, const Tensor& x, const Tensor& y);
// relu at the end of a fused kernel. It rounds and counts nothing.
void relu_in_place(const Tensor& t);
// A kernel or an offer of matmul, and the gradients of weight and bias by it: dy^T x, and the sums of dy's columns.
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
