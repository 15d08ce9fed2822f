#include "gemm_eigen.h"

namespace gradual::cpu {

template void product<CpuIsa::baseline>(const Gemm<float>&);
template void product<CpuIsa::baseline>(const Gemm<double>&);

}  // namespace gradual::cpu
