#include "../dispatch.h"
#include "kernels.h"
#include "softmax.h"

namespace gradual::cpu {

void register_normalization() {
  KernelFn* cpu = columns().cpu;
  cpu[static_cast<int>(OpId::softmax)] = softmax;
  cpu[static_cast<int>(OpId::softmax_backward)] = softmax_backward;
  cpu[static_cast<int>(OpId::log_softmax)] = log_softmax;
  cpu[static_cast<int>(OpId::log_softmax_backward)] = log_softmax_backward;
}

}  // namespace gradual::cpu
