// matmul, linear and its fusions by a kernel that multiplies one matrix by another in f32 or bf16: what operands are
// converted to, and how batches, threads and memory cut a product. The fast kernels and oneDNN are such kernels.
#pragma once

#include <cstdint>

#include "../ops/dispatch.h"
#include "kernels.h"

namespace gradual::cpu {

// c [m, n] (rows `across` apart) = a [m, k] b [k, n] + bias [n]. Strides are those of rows and columns, one of them is
// 1.
struct Product {
  std::int64_t m, n, k, across;
  Shape a_strides, b_strides;
  DType in, out;  // f32 or bf16
  bool bias;
  std::int64_t work;  // multiplications of the product that this is a part of
  bool relu = false;  // 0 for what is below
};

// A kernel. `run` computes each product that `suits`, on the calling thread, and returns false, with nothing written,
// for those it has no way for. With `same_bits` a sum has the same bits however
// the product is cut, and bf16 products take `relu`; other products are cut by shape alone in deterministic mode.
struct Multiplier {
  bool same_bits;
  DType (*dtype)(DType operands);  // that operands of a dtype are multiplied in
  bool (*suits)(const Product& p);
  bool (*run)(const Product& p, const char* a, const char* b, char* c, const float* bias);
};

// Offers of matmul and linear. Sums whose rounding is counted, or that are rounded to another dtype than bf16, come as
// f32 first. False, with nothing written, for f64, a set accumulator, empty operands and what does not suit the kernel.
bool multiply(const Multiplier& kernel, const OpCall& call, Outputs& out, bool linear, bool relu);

// Fills a column with matmul and all that consists of it. product(call, out, linear, relu): as multiply() above.
template <bool (*product)(const OpCall&, Outputs&, bool, bool)> void offer_products(OfferFn* column) {
  static constexpr OfferFn matmul = [](const OpCall& call, Outputs& out) { return product(call, out, false, false); };
  const auto set = [column](OpId op, OfferFn fn) { column[static_cast<int>(op)] = fn; };
  set(OpId::matmul, matmul);
  set(OpId::linear, [](const OpCall& call, Outputs& out) { return product(call, out, true, false); });
  set(OpId::linear_relu, [](const OpCall& call, Outputs& out) { return product(call, out, true, true); });
  set(OpId::linear_gelu, [](const OpCall& call, Outputs& out) {
    Outputs before{{out[1]}};
    if (!product(call, before, true, false)) return false;
    gelu_of(out[1], call.get<Gelu>(), out[0]);
    return true;
  });
  set(OpId::linear_backward_weight,
      [](const OpCall& call, Outputs& out) { return linear_gradients(call, out, matmul); });
}

}  // namespace gradual::cpu
