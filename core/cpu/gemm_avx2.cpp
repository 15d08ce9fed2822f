#define Eigen gradual_eigen_avx2
#include "gemm_eigen.h"

namespace gradual::cpu {

template void product<CpuIsa::avx2>(const Gemm<float>&);
template void product<CpuIsa::avx2>(const Gemm<double>&);

}  // namespace gradual::cpu
