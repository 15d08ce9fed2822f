// Element access of the matrix-product kernels.
#pragma once

#include "../../core/kernels/formulas.h"
#include "../../core/ops/compute_mode.h"
#include "elements.h"
#include "gemm.h"

namespace gradual::cuda {

// Output element i over all products of the batch: its product, row and column.
struct Place {
  std::int64_t batch, row, col;
};
GRADUAL_HD inline Place place(const Gemm& g, std::int64_t i) { return {i / g.n / g.m, i / g.n % g.m, i % g.n}; }

// Element (i, j) of one matrix of the batch, without its scale.
template <class C>
GRADUAL_HD C element(const Matrix& x, bool tf32, std::int64_t batch, std::int64_t i, std::int64_t j) {
  const C value =
      load_element<C>(x.dtype, x.data, batch * x.batch_stride + (x.transposed ? j * x.ld + i : i * x.ld + j));
  if constexpr (std::is_same_v<C, float>)
    if (tf32) return round_tf32(value);
  return value;
}

template <class C> GRADUAL_HD void store_result(const Gemm& g, const Place& at, C value) {
  if (g.activation == Activation::relu) value = math::relu(value);
  store_element(g.c_dtype, value, g.c, at.batch * g.c_batch_stride + at.row * g.ldc + at.col);
}

}  // namespace gradual::cuda
