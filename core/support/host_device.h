// Marks functions that CUDA kernels share: nvcc compiles them for the device too; for other compilers the mark is
// empty. The only macro besides the op table, because a keyword cannot be written in another way.
#pragma once

#ifdef __CUDACC__
#define GRADUAL_HD __host__ __device__
#else
#define GRADUAL_HD
#endif
