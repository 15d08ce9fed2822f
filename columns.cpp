// Calls every column's registration explicitly: linkers drop static registrars from static libraries.
#include "autograd/rule.h"
#include "core/cpu/kernels.h"
#include "core/ops/dispatch.h"
#include "core/tensor/device.h"
#ifdef GRADUAL_HAVE_FAST
#include "core/cpu/fast/kernels.h"
#endif
#ifdef GRADUAL_HAVE_ONEDNN
#include "core/onednn/kernels.h"
#endif

// Every program has it, because every program has this file; only debuggers call it (cmake/debugger/dump.cpp).
extern "C" void gradual_dump(const gradual::Tensor& x);
[[gnu::used]] void (*const gradual_kept_dump)(const gradual::Tensor& x) = gradual_dump;

namespace gradual {

void register_columns() {
  register_inference();
  register_composites();

  cpu::register_elementwise();
  cpu::register_reductions();
  cpu::register_movement();
  cpu::register_contractions();
  cpu::register_convolutions();
  cpu::register_pooling();
  cpu::register_normalization();
  cpu::register_batch_norm();
  cpu::register_softmax();
  cpu::register_attention();
  cpu::register_optimizer();
#ifdef GRADUAL_HAVE_FAST
  fast::register_contractions();
  fast::register_convolutions();
#endif
#ifdef GRADUAL_HAVE_ONEDNN
  onednn::register_contractions();
  onednn::register_convolutions();
#endif

  device::register_kernels();

  register_rules();
}

}  // namespace gradual
