#include "kernels.h"

namespace gradual::device {

void register_kernels() {
  using namespace cuda;
  register_attention();
  register_elementwise();
  register_elementwise_binary();
  register_indexing();
  register_movement();
  register_optimizer();
  register_pooling();
  register_contractions();
  register_normalization();
  register_reductions();
  register_convolutions();
  register_softmax();
}

}  // namespace gradual::device
