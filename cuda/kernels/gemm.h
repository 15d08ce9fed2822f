// Matrix products on device memory, for matmul and linear: by cuBLASLt (gemm_cublaslt.cpp), or by a kernel of Gradual
// (gemm_plain.cu) if cuBLASLt has no algorithm.
#pragma once

#include <cstdint>

#include "../../core/formats/dtype.h"

namespace gradual::cuda {

// A matrix, or one for each product of a batch. Element (i, j) is data[i * ld + j], transposed data[j * ld + i].
struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::f32;
  bool transposed = false;
  std::int64_t ld = 0;            // elements; at least the size of the contiguous dim
  std::int64_t batch_stride = 0;  // elements; 0: all products share it
  const float* scale = nullptr;   // of f8: the scale of all elements, in device memory; null: 1
};

// Applied to a finished sum before the one rounding. gelu: the tanh form.
enum class Activation : std::uint8_t { none, relu, gelu };

// c [m, n] = activation(a [m, k] b [k, n] + bias), `batch` times. Both operands have one dtype or are of f8; c has
// theirs or is f32. Sums are f64 of f64, f32 of all else.
struct Gemm {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t batch = 1;
  Matrix a, b;
  void* c = nullptr;
  DType c_dtype = DType::f32;
  std::int64_t ldc = 0;
  std::int64_t c_batch_stride = 0;
  bool tf32 = false;  // f32 operands are rounded to TF32 (core/ops/compute_mode.h)
  // [n] of bias_dtype(), at a multiple of 16 bytes, the same for the whole batch; null: none
  const void* bias = nullptr;
  Activation activation = Activation::none;
  void* before = nullptr;    // for gelu: receives its argument, in c's layout and dtype
  void* row_sums = nullptr;  // not null: receives the sums of a's rows, [m] in c's dtype

  constexpr DType bias_dtype() const { return is_f8(a.dtype) ? DType::bf16 : c_dtype; }
};

// Enqueues the product, without activation and row sums. Sizes are above 0. The same bits every time.
void gemm(const Gemm& g);
// The same with an activation or row sums, by the library alone. False if it has no such product, if it fails a check
// (relu keeps NaN, row sums are f32), or if the check cannot run during stream capture; outputs are then undefined.
bool fused_gemm(const Gemm& g);
// By a kernel of Gradual: relu or no activation, any sizes, also k = 0. Each element is one sum, in the order of k.
void plain_gemm(const Gemm& g);
// True if gemm() multiplies these f8 operands without widening.
bool multiplies_f8(const Gemm& g);

// Checks of the library's results; they wait for the stream (gemm_check.cu).
bool all_nan(const Gemm& g);  // c
enum class Verdict : std::uint8_t { unknown, right, wrong };
// Checks that row_sums are those of a, summed in f32 and rounded once. Unknown if all sums are of zeros or overflow,
// because these do not depend on the precision.
Verdict check_row_sums(const Gemm& g);

}  // namespace gradual::cuda
