#define Eigen gradual_eigen_avx512
#include "gemm_eigen.h"

namespace gradual::cpu {

template void product<CpuIsa::avx512>(const Gemm<float>&);
template void product<CpuIsa::avx512>(const Gemm<double>&);

}  // namespace gradual::cpu
