// Maps matmul, linear and its fusions to matrix products; counterpart of core/cpu/matmul.cpp.
#include <algorithm>

#include "../../core/formats/accumulator.h"
#include "../../core/kernels/contraction_operand.h"
#include "../../core/kernels/copies.h"
#include "../../core/kernels/loops.h"
#include "../../core/kernels/matrix_batch.h"
#include "../../core/ops/compute_mode.h"
#include "../../core/ops/f8_operands.h"
#include "../../core/support/error.h"
#include "../../core/tensor/memory.h"
#include "counted_again.h"
#include "elementwise.h"
#include "gemm.h"
#include "kernels.h"
#include "movement.h"
#include "rounded_gemm.h"

namespace gradual::cuda {
namespace {

// An operand as a batch of matrices: the tensor itself or a copy.
struct MatrixOperand : cpu::MatrixBatch {
  Tensor values;
  explicit MatrixOperand(const Tensor& t) : MatrixBatch{t.sizes(), t.strides()}, values(t) {}

  // To another dtype, row-major; what is repeated stays one copy.
  void convert(DType dtype) {
    values = copied(as_strided(values, distinct(), strides, values.offset()), dtype);
    lay_out();
  }
  // The strides that convert() gives.
  void lay_out() {
    const Shape dense = contiguous_strides(distinct());
    for (int d = 0; d < dense.size(); ++d)
      if (strides[d] != 0) strides[d] = dense[d];
  }
  // The sizes without repetition.
  Shape distinct() const {
    Shape own = sizes;
    for (int d = 0; d < own.size(); ++d)
      if (strides[d] == 0) own[d] = std::min<std::int64_t>(1, own[d]);
    return own;
  }
  // A row-major copy of all matrices of the batch, each its own.
  void make_dense(const Shape& batch) {
    Shape all = batch, from;
    for (int d = 0, own = sizes.size() - 2 - batch.size(); d < batch.size(); ++d, ++own)
      from.push_back(own >= 0 && sizes[own] != 1 ? strides[own] : 0);
    for (const int d : {sizes.size() - 2, sizes.size() - 1}) {
      all.push_back(sizes[d]);
      from.push_back(strides[d]);
    }
    values = copied(as_strided(values, all, from, values.offset()), values.dtype());
    sizes = values.sizes();
    strides = values.strides();
  }
  // The distance of the batch's matrices, if it is constant.
  bool even_stride(const Shape& batch, std::int64_t& stride) const {
    std::int64_t count = 1;
    stride = 0;
    for (int d = batch.size() - 1, own = sizes.size() - 3; d >= 0; --d, --own) {
      if (batch[d] == 1) continue;
      const std::int64_t step = own >= 0 && sizes[own] != 1 ? strides[own] : 0;
      if (count == 1) stride = step;
      else if (step != stride * count) return false;
      count *= batch[d];
    }
    return true;
  }
  // The matrices of a product; false if the strides do not fit.
  bool describe(const Shape& batch, Matrix& matrix) const {
    const std::int64_t down = strides[strides.size() - 2];
    const std::int64_t across = strides.back();
    const bool by_rows = (across == 1 || cols() == 1) && (down >= cols() || rows() == 1);
    const bool by_cols = (down == 1 || rows() == 1) && (across >= rows() || cols() == 1);
    matrix.data = values.raw();
    matrix.dtype = values.dtype();
    matrix.transposed = !by_rows;
    if (by_rows) matrix.ld = rows() == 1 ? std::max<std::int64_t>(1, cols()) : down;
    else matrix.ld = cols() == 1 ? std::max<std::int64_t>(1, rows()) : across;
    return (by_rows || by_cols) && even_stride(batch, matrix.batch_stride);
  }
  Matrix matrix(const Shape& batch) {
    Matrix m;
    if (describe(batch, m)) return m;
    make_dense(batch);
    describe(batch, m);
    return m;
  }
};

// The epilogue of a product; undefined tensors are not requested. gelu and row_sums are fused with the product or not
// done.
struct Ending {
  Tensor bias = {};
  bool relu = false;
  Tensor gelu = {};      // receives the tanh form of gelu of the product; the product is stored, too
  Tensor row_sums = {};  // receives the sums of a's rows
  bool fuses() const { return relu || gelu.defined() || row_sums.defined(); }
};

// The product with its epilogue, if cuBLASLt has it.
bool fused_product(Gemm g, const Ending& end) {
  if (end.relu) g.activation = Activation::relu;
  if (end.gelu.defined()) {
    g.activation = Activation::gelu;
    g.before = g.c;
    g.c = end.gelu.raw();
  }
  if (end.row_sums.defined()) g.row_sums = end.row_sums.raw();
  return fused_gemm(g);
}

void relu_in_place(const Tensor& t) {
  const CountScope uncounted(nullptr);
  const Tensor* const inputs[] = {&t};
  cpu::visit_floating(t.dtype(), [&]<class C>(C) { map_elements<C, 1>(t, inputs, functors::Relu{}); });
}

// The operands of matmul or linear as batches of matrices.
struct Product {
  MatrixOperand a, b;
  Shape batch;
  explicit Product(const OpCall& call) : a(call[0]), b(call[1]) {
    if (a.sizes.size() == 1) a.insert_dim(0);
    if (call.op == OpId::linear) b.transpose();
    else if (b.sizes.size() == 1) b.insert_dim(1);
    batch = broadcast_shapes(a.sizes.first(a.sizes.size() - 2), b.sizes.first(b.sizes.size() - 2), "matmul");
  }
};

// The product of these operands into `out`, which has no gaps; where the operands lie is open.
Gemm gemm_into(const Tensor& out, const MatrixOperand& a, const MatrixOperand& b, const Shape& batch) {
  Gemm g;
  g.m = a.rows();
  g.n = b.cols();
  g.k = a.cols();
  g.batch = numel(batch);
  g.c = out.raw();
  g.c_dtype = out.dtype();
  g.ldc = g.n;
  g.c_batch_stride = g.m * g.n;
  return g;
}

// The product of f32 operands by their f8 codes and scales. suits_f8() must hold.
void f8_product(const OpCall& call, const Tensor& out) {
  const auto& f8 = call.get<F8Attrs>();
  auto [a, b, batch] = Product(call);
  a.convert(f8.a);
  b.transpose();  // the contracted axis last in both, as Hopper wants it
  b.convert(f8.b);
  b.transpose();
  cpu::merge_rows(a, b, batch);
  Gemm g = gemm_into(out, a, b, batch);
  g.a = a.matrix(batch);
  g.b = b.matrix(batch);
  g.a.scale = f8.a_scale;
  g.b.scale = f8.b_scale;
  if (!multiplies_f8(g)) throw_error("internal: an f8 product that f8 instructions cannot compute");
  gemm(g);
}

// True if f8 instructions can compute the product by codes: what multiplies_f8() asks, before any copy.
bool suits_f8(const OpCall& call) {
  const bool bias = call.op == OpId::linear && call[2].defined();
  if (bias || !call.attrs->is<F8Attrs>()) return false;
  const auto& f8 = call.get<F8Attrs>();
  auto [a, b, batch] = Product(call);
  const bool two_wide = f8.a == DType::f8e5m2 && f8.b == DType::f8e5m2;
  const bool in_f32 = a.values.dtype() == DType::f32 && b.values.dtype() == DType::f32;
  if (!fast_f8() || current_accumulator() || two_wide || !in_f32) return false;
  if (a.cols() == 0 || a.cols() % 16 != 0 || b.cols() % 16 != 0) return false;
  a.lay_out();
  b.transpose();
  b.lay_out();
  b.transpose();
  cpu::merge_rows(a, b, batch);
  // What does not fit as it is becomes a dense copy, which is right for a and has the wrong order for b.
  Matrix left, right;
  const bool fits = !a.describe(batch, left) || (!left.transposed && left.ld % 16 == 0 && left.batch_stride % 16 == 0);
  return fits && b.describe(batch, right) && right.transposed && right.ld % 16 == 0 && right.batch_stride % 16 == 0;
}

// Computes the product of a and b into out, which has no gaps, with its epilogue. Returns true if gelu or row sums were
// written. `narrows`: f32 sums are rounded to a narrower dtype.
bool product(MatrixOperand& a, MatrixOperand& b, Shape batch, const Ending& end, const Tensor& out, bool narrows) {
  const bool accumulates = current_accumulator() && out.dtype() != DType::f64;
  const bool f8 = is_f8(a.values.dtype()) && !accumulates;
  cpu::merge_rows(a, b, batch);
  Gemm g = gemm_into(out, a, b, batch);
  const auto describe = [&] {
    g.a = a.matrix(batch);
    g.b = b.matrix(batch);
  };
  const auto widen = [&] {
    a.convert(DType::bf16);
    b.convert(DType::bf16);
  };
  g.tf32 = cpu::rounds_to_tf32(a.values.dtype());
  if (f8 && !fast_f8()) widen();
  describe();
  if (f8 && fast_f8() && !multiplies_f8(g)) {
    widen();
    describe();
  }
  Tensor own_bias;
  if (end.bias.defined()) {
    own_bias = dense(end.bias, g.bias_dtype());
    // Library kernels may read 16 bytes at a time; the interface has no preference for alignment.
    if (reinterpret_cast<std::uintptr_t>(own_bias.raw()) % 16 != 0) own_bias = copied(own_bias, own_bias.dtype());
    g.bias = own_bias.raw();
  }
  const bool ours = accumulates || g.k == 0;
  if (!ours && end.fuses() && fused_product(g, end)) return true;
  if (accumulates) accumulate(*current_accumulator(), g, narrows);
  else if (ours) plain_gemm(g);
  else gemm(g);
  if (end.relu) relu_in_place(out);
  return false;
}

// Counts what rounding a product's sums to out's dtype loses, by computing the sums again in f32.
void count_rounding(MatrixOperand a, MatrixOperand b, const Shape& batch, const Tensor& bias, const Tensor& out) {
  const CategoryScope scope(Category::workspace);
  const Tensor sums = empty(out.sizes(), {.dtype = DType::f32, .device = out.device()});
  product(a, b, batch, {.bias = bias}, sums, true);
  copied(sums, out.dtype());
}

bool contraction(MatrixOperand& a, MatrixOperand& b, const Shape& batch, const Ending& end, const Tensor& out) {
  const bool counted = cpu::counts_for(DType::f32, out.dtype()) != nullptr;
  if (counted) count_rounding(a, b, batch, end.bias, out);
  const CountScope rest(counted ? nullptr : cast_counts());
  return product(a, b, batch, end, out, out.dtype() != DType::f32);
}

void matmul(const OpCall& call, Outputs& out) {
  if (out[0].numel() == 0) return;
  if (call.attrs->is<F8Attrs>()) return f8_product(call, out[0]);
  MatrixOperand a(call[0]);
  MatrixOperand b(call[1]);
  Shape batch = out[0].sizes();
  if (call[0].dim() == 1) a.insert_dim(0);
  else batch.erase(batch.size() - 1);
  if (call[1].dim() == 1) b.insert_dim(1);
  else batch.erase(batch.size() - 1);
  contraction(a, b, batch, {}, out[0]);
}

bool linear_ending(const OpCall& call, Ending end, const Tensor& out) {
  if (out.numel() == 0) return true;
  if (call.attrs->is<F8Attrs>()) {
    f8_product(call, out);
    return false;
  }
  MatrixOperand x(call[0]);
  MatrixOperand w(call[1]);
  if (call[0].dim() == 1) x.insert_dim(0);
  w.transpose();
  Shape batch = x.sizes;
  batch.erase(batch.size() - 1);
  batch.erase(batch.size() - 1);
  end.bias = call[2];
  return contraction(x, w, batch, end, out);
}
void linear(const OpCall& call, Outputs& out) { linear_ending(call, {}, out[0]); }
void linear_relu(const OpCall& call, Outputs& out) { linear_ending(call, {.relu = true}, out[0]); }

void run_kernel(OpId op, const Tensor& x, const Attrs& attrs, const Tensor& y) {
  const Tensor* const input = &x;
  Outputs out{{y}};
  columns().cuda[static_cast<int>(op)]({op, TensorRefs(&input, 1), &attrs, {}}, out);
}

// cuBLASLt's gelu is the tanh form; used only for f16 and bf16, because its tanh may differ from f32's.
void linear_gelu(const OpCall& call, Outputs& out) {
  const Gelu form = call.get<Gelu>();
  const bool narrow = is_half(out[0].dtype());
  Ending end;
  if (narrow && form == Gelu::tanh) end.gelu = out[0];
  const auto gelu = [&](const Outputs& y) { run_kernel(OpId::gelu, out[1], form, y[0]); };
  if (linear_ending(call, end, out[1])) count_again({{out[0]}}, gelu);
  else gelu(out);
}

void linear_backward_weight(const OpCall& call, Outputs& out) {
  bool summed = false;
  if (out[0].numel() > 0) {
    MatrixOperand dy(call[0]);
    MatrixOperand x(call[1]);
    dy.transpose();
    summed = contraction(dy, x, {}, {.row_sums = out[1]}, out[0]);
  }
  const auto sums = [&](const Outputs& db) { run_kernel(OpId::sum, call[0], ReduceAttrs{.dims = 1}, db[0]); };
  if (summed) count_again({{out[1]}}, sums);
  else sums({{out[1]}});
}

}  // namespace

void register_contractions() {
  set_kernel(OpId::matmul, matmul);
  set_kernel(OpId::linear, linear);
  set_kernel(OpId::linear_relu, linear_relu);
  set_kernel(OpId::linear_gelu, linear_gelu);
  set_kernel(OpId::linear_backward_weight, linear_backward_weight);
  capability(OpId::matmul).suits = suits_f8;
  capability(OpId::linear).suits = suits_f8;
  capability(OpId::linear_backward_weight).suits = [](const OpCall&) {
    return true;
  };  // one product gives both gradients
}

}  // namespace gradual::cuda
