// Registration of the CUDA kernels, one function per file; each is the counterpart of the file of that name in
// core/cpu. Called once by device::register_kernels().
#pragma once

#include "../../core/ops/dispatch.h"

namespace gradual::cuda {

inline void set_kernel(OpId op, KernelFn fn) { columns().cuda[static_cast<int>(op)] = fn; }
inline Capability& capability(OpId op) { return columns().cuda_capability[static_cast<int>(op)]; }

void register_attention();
void register_elementwise();
void register_elementwise_binary();
void register_indexing();
void register_movement();
void register_optimizer();
void register_pooling();
void register_contractions();
void register_normalization();
void register_reductions();
void register_convolutions();
void register_softmax();

}  // namespace gradual::cuda
