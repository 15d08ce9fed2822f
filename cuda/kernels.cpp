#include "kernels.h"

namespace gradual::device {

void register_kernels() {
  using namespace cuda;
  register_elementwise();
  register_elementwise_binary();
  register_movement();
}

}  // namespace gradual::device
