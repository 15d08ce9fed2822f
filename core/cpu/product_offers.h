// matmul, linear and its fusions by a kernel that multiplies one matrix by another in f32 or bf16: what operands are
// converted to, and how batches, threads and memory cut a product. The fast kernels and oneDNN are such kernels.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "../ops/dispatch.h"
#include "kernels.h"

namespace gradual::cpu {

using Strides = std::array<std::int64_t, 2>;  // of rows and of columns; one of them is 1
// c [m, n] (rows `across` apart) = a [m, k] b [k, n] + bias [n].
struct Product {
  std::int64_t m, n, k, across;
  Strides a_strides, b_strides;
  DType in, out;  // f32 or bf16
  bool bias;
  std::int64_t work;  // multiplications of the product that this is a part of
  bool relu = false;  // 0 for what is below
};

// A kernel. `run` computes each product that `suits`, on the calling thread, and returns false, with nothing written,
// for those it has no way for. With `same_bits` a sum has the same bits however the product is cut, and the kernel
// takes `relu`; other products are cut by shape alone in deterministic mode.
struct Multiplier {
  bool same_bits;
  DType (*dtype)(DType operands);  // that operands of a dtype are multiplied in
  bool (*suits)(const Product& p);
  bool (*run)(const Product& p, const char* a, const char* b, char* c, const float* bias);
};

// Offers of matmul and linear. Sums whose rounding is counted, or that are rounded to another dtype than bf16, come as
// f32 first. False, with nothing written, for f64, a set accumulator, empty operands and what does not suit the kernel.
bool multiply(const Multiplier& kernel, const OpCall& call, Outputs& out, bool linear, bool relu);

// Fills a column of kernels or of offers with matmul and all that consists of it. product(call, out, linear, relu): as
// multiply() above; a kernel's returns true.
template <bool (*product)(const OpCall&, Outputs&, bool, bool), class Fn> void set_products(Fn* column) {
  static constexpr OfferFn matmul = [](const OpCall& call, Outputs& out) { return product(call, out, false, false); };
  const auto set = [column]<class F>(OpId op, F) {
    using Returned = std::invoke_result_t<Fn, const OpCall&, Outputs&>;  // of kernels: nothing
    column[static_cast<int>(op)] = [](const OpCall& call, Outputs& out) {
      return static_cast<Returned>(F{}(call, out));
    };
  };
  set(OpId::matmul, [](const OpCall& call, Outputs& out) { return matmul(call, out); });
  set(OpId::linear, [](const OpCall& call, Outputs& out) { return product(call, out, true, false); });
  set(OpId::linear_relu, [](const OpCall& call, Outputs& out) { return product(call, out, true, true); });
  set(OpId::linear_gelu, [](const OpCall& call, Outputs& out) {
    Outputs before{{out[1]}};
    if (!product(call, before, true, false)) return false;
    run_kernel(OpId::gelu, *call.attrs, out[1], out[0]);
    return true;
  });
  set(OpId::linear_backward_weight,
      [](const OpCall& call, Outputs& out) { return linear_gradients(call, out, matmul); });
}

}  // namespace gradual::cpu
