// Products of matrices in device memory, which matmul and linear come down to: by cuBLASLt (gemm_cublaslt.cpp), and by a
// kernel of ours (gemm_plain.cu) what it has no algorithm for, and everything in the emulator.
#pragma once

#include <cstdint>

#include "../core/dtype.h"

namespace gradual::cuda {

// A matrix, or one for each product of a batch. Element (i, j) is data[i * ld + j], transposed data[j * ld + i].
struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::f32;
  bool transposed = false;
  std::int64_t ld = 0;            // elements; at least the size that lies side by side
  std::int64_t batch_stride = 0;  // elements; 0: all products share it
  const float* scale = nullptr;   // of f8: one number in device memory that all elements count times; null: 1
};

// What becomes of a finished sum before it is rounded, once. The bias has one element a column.
enum class Epilogue : std::uint8_t { none, bias, bias_relu, relu };

// c [m, n] = epilogue(a [m, k] b [k, n]), `batch` times. Both operands have one dtype or are of f8; c has theirs or is f32.
// Sums are f64 of f64, f32 of all else.
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  Matrix a, b;
  void* c = nullptr;
  DType c_dtype = DType::f32;
  std::int64_t ldc = 0, c_batch_stride = 0;
  bool tf32 = false;  // f32 operands are rounded to TF32 (core/compute_mode.h)
  Epilogue epilogue = Epilogue::none;
  const void* bias = nullptr;  // of bias_dtype(); the same for the whole batch

  constexpr bool has_bias() const { return epilogue == Epilogue::bias || epilogue == Epilogue::bias_relu; }
  constexpr DType bias_dtype() const { return is_f8(a.dtype) ? DType::bf16 : c_dtype; }
};

// Enqueues the product. Sizes are above 0. The same bits every time.
void gemm(const Gemm& g);
// By our kernel: any sizes, k = 0 too; one chain of additions an element, in the order of k.
void plain_gemm(const Gemm& g);
// Whether gemm() multiplies f8 operands as they are here.
bool multiplies_f8(const Gemm& g);

}  // namespace gradual::cuda
