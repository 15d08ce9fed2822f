// Products of matrices in device memory, which matmul and linear come down to: by cuBLASLt (gemm_cublaslt.cpp), and by a
// kernel of ours (gemm_plain.cu) what it has no algorithm for.
#pragma once

#include <cstdint>

#include "../../core/formats/dtype.h"

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

// What becomes of a finished sum before it is rounded, once. gelu is its tanh form.
enum class Activation : std::uint8_t { none, relu, gelu };

// c [m, n] = activation(a [m, k] b [k, n] + bias), `batch` times. Both operands have one dtype or are of f8; c has theirs or
// is f32. Sums are f64 of f64, f32 of all else.
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  Matrix a, b;
  void* c = nullptr;
  DType c_dtype = DType::f32;
  std::int64_t ldc = 0, c_batch_stride = 0;
  bool tf32 = false;  // f32 operands are rounded to TF32 (core/ops/compute_mode.h)
  // [n] of bias_dtype(), at a multiple of 16 bytes, the same for the whole batch; null: none
  const void* bias = nullptr;
  Activation activation = Activation::none;
  void* before = nullptr;    // of gelu: what it is taken of, written too, as c lies and in its dtype
  void* row_sums = nullptr;  // not null: the sums of a's rows are written too, [m] in c's dtype

  constexpr DType bias_dtype() const { return is_f8(a.dtype) ? DType::bf16 : c_dtype; }
};

// Enqueues the product, which has no activation and no row sums. Sizes are above 0. The same bits every time.
void gemm(const Gemm& g);
// The same with an activation or row sums, by the library alone. False: it does not do that, or not as it should (relu keeps
// NaN, row sums are f32), or this cannot be looked at while a stream is captured; what was written then counts for nothing.
bool fused_gemm(const Gemm& g);
// By our kernel: relu or no activation, any sizes, k = 0 too; one chain of additions an element, in the order of k.
void plain_gemm(const Gemm& g);
// Whether gemm() multiplies f8 operands as they are here.
bool multiplies_f8(const Gemm& g);

// What the library computed is looked at by these, which wait for the stream (gemm_check.cu).
bool all_nan(const Gemm& g);  // c
enum class Verdict : std::uint8_t { unknown, right, wrong };
// Whether row_sums are those of a, added up in f32 and rounded once. Unknown where all sums are of zeros or overflow: they
// are the same then, however they are added up.
Verdict check_row_sums(const Gemm& g);

}  // namespace gradual::cuda
