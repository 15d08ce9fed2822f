// Code that CUDA kernels share: nvcc compiles what is marked so for the device, too; every other compiler sees nothing. The
// one macro beside the op table, for a keyword cannot be spelled otherwise.
#pragma once

#ifdef __CUDACC__
#define GRADUAL_HD __host__ __device__
#else
#define GRADUAL_HD
#endif
