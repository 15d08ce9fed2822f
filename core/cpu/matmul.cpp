// matmul, linear and its fusions. This file cuts products into batches and panels; gemm.cpp multiplies a panel.
#include <algorithm>

#include "../kernels/contraction_operand.h"
#include "../kernels/loops.h"
#include "../kernels/matrix_batch.h"
#include "../ops/dispatch.h"
#include "../support/parallel.h"
#include "gemm.h"
#include "product_offers.h"
#include "rounded_gemm.h"

namespace gradual::cpu {
namespace {

inline constexpr std::int64_t kPanelRows = 128;
inline constexpr std::int64_t kPanelCols = 256;
inline constexpr std::int64_t kSlow = 64;  // cost of a product with a rounded sum, in plain products, about

template <class T> struct MatrixOperand : MatrixBatch {
  Loaded<T> values;
  explicit MatrixOperand(const Tensor& t) : MatrixBatch{t.sizes(), {}}, values(t) { strides = values.strides(); }
  MatrixRef<T> matrix() const { return {values.data(), strides[strides.size() - 2], strides.back()}; }
};

// out = bias + a b. The bias is one row, or null. Panels are cut by shape alone, alike for all matrices of a batch.
template <class T>
void product(MatrixOperand<T>& a, const MatrixOperand<T>& b, Shape batch, const T* bias, Tensor& out) {
  merge_rows(a, b, batch);
  const Result<T> c(out);
  const Gemm<T> g{
      .m = a.rows(), .n = b.cols(), .k = a.cols(), .a = a.matrix(), .b = b.matrix(), .c = c.data(), .ldc = b.cols()};
  const Accumulator* const how = sizeof(T) == 4 && current_accumulator() ? &*current_accumulator() : nullptr;
  const std::int64_t rows = even_part(g.m, how ? kPanelRows / 4 : kPanelRows);
  const std::int64_t cols = even_part(g.n, how ? kPanelCols / 4 : kPanelCols);
  const std::int64_t across = (g.n + cols - 1) / cols;
  const std::int64_t panels = (g.m + rows - 1) / rows * across;
  const std::int64_t work = std::max<std::int64_t>(1, rows * cols * g.k * (how ? kSlow : 1));
  const std::int64_t grain = std::max<std::int64_t>(1, kWorthThreads / work);
  parallel_for(numel(batch) * panels, grain, [&](std::int64_t task, std::int64_t end) {
    for (; task < end; ++task) {
      const std::int64_t i = task % panels / across * rows;
      const std::int64_t j = task % panels % across * cols;
      Gemm<T> panel = g;
      panel.m = std::min(rows, g.m - i);
      panel.n = std::min(cols, g.n - j);
      panel.a.data += a.offset(task / panels, batch) + i * g.a.row_stride;
      panel.b.data += b.offset(task / panels, batch) + j * g.b.col_stride;
      panel.c += (task / panels * g.m + i) * g.n + j;
      for (std::int64_t r = 0; r < panel.m; ++r) {
        if (bias) std::copy_n(bias + j, panel.n, panel.c + r * g.n);
        else std::fill_n(panel.c + r * g.n, panel.n, T{0});
      }
      if constexpr (sizeof(T) == 4)
        if (how) accumulate(*how, panel, out.dtype() != DType::f32, panel.c - c.data(), g.n);
      if (!how) gemm(panel);
    }
  });
  c.store();
}

bool product(const OpCall& call, Outputs& out, bool linear, bool relu) {
  if (out[0].numel() == 0) return true;
  visit_floating(out[0].dtype(), [&]<class T>(T) {
    MatrixOperand<T> a(call[0]), b(call[1]);
    const Loaded<T> bias(linear ? call[2] : Tensor(), Loaded<T>::As::rows);
    const Shape batch = as_matrices(a, b, linear, out[0].sizes());
    product<T>(a, b, batch, bias.data(), out[0]);
  });
  if (relu) relu_in_place(out[0]);
  return true;
}

}  // namespace

bool linear_gradients(const OpCall& call, Outputs& out, bool (*matmul)(const OpCall& call, Outputs& out)) {
  const Tensor& dy = call[0];
  const Tensor& x = call[1];
  const Tensor turned = as_strided(dy, {dy.sizes()[1], dy.sizes()[0]}, {dy.strides()[1], dy.strides()[0]}, dy.offset());
  const Attrs none{};
  Outputs dw{{out[0]}};
  if (!matmul({OpId::matmul, {&turned, &x}, &none, call.where}, dw)) return false;
  run_kernel(OpId::sum, ReduceAttrs{.dims = 1}, dy, out[1]);
  return true;
}

void register_contractions() { set_products<product>(columns().cpu); }

}  // namespace gradual::cpu
