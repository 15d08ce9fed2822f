// The CPU kernels, by the file that fills the slots. Called once by register_columns().
#pragma once

#include "../ops/dispatch.h"

namespace gradual::cpu {

inline void set_kernel(OpId op, KernelFn fn) { columns().cpu[static_cast<int>(op)] = fn; }

// relu over its operand: the end of a kernel that has it. Nothing is rounded, nor counted, again.
void relu_in_place(Tensor& t);
// The same of gelu, which counts: it rounds.
void gelu_of(const Tensor& x, Gelu form, const Tensor& y);
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
