#include "compute_mode.h"

namespace gradual {

MatmulPrecision& matmul_precision() {
  thread_local MatmulPrecision current = MatmulPrecision::f32;
  return current;
}

bool& fast_f8() {
  thread_local bool on = false;
  return on;
}

}  // namespace gradual
