// There is no cuBLASLt on the CPU: products are those of our own kernel.
#include "../gemm.h"

namespace gradual::cuda {

void gemm(const Gemm& g) { plain_gemm(g); }
bool multiplies_f8(const Gemm&) { return true; }

}  // namespace gradual::cuda
