// matmul, linear and its fusions by a kernel that multiplies two matrices in f32 or bf16, such as a fast kernel or
// oneDNN. This code converts operands and cuts products by batch, threads and memory.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "../ops/dispatch.h"
#include "kernels.h"

namespace gradual::cpu {

using Strides = std::array<std::int64_t, 2>;  // row stride and column stride; one of them is 1
// c [m, n] (rows `across` elements apart) = a [m, k] b [k, n] + bias [n].
struct Product {
  std::int64_t m, n, k, across;
  Strides a_strides, b_strides;
  DType in, out;  // f32 or bf16: of the multiplication and of c
  DType stored;   // of a and b in memory: `in`, or one that the kernel reads
  bool bias;
  std::int64_t work;  // multiplications of the product that this is a part of
  bool relu = false;  // negative results become 0
};

// A kernel. `suits` selects the products. `run` computes one on the calling thread, or returns false, with nothing
// written, if it cannot. With `same_bits` a sum has the same bits however the product is cut, and the kernel applies
// `relu`. Products of other kernels are cut by shape alone in deterministic mode.
struct Multiplier {
  bool same_bits;
  DType (*dtype)(DType operands);  // the dtype in which operands are multiplied
  bool (*reads)(DType operands);   // whether operands of a dtype stay as they are; null: only those of dtype()
  bool (*suits)(const Product& p);
  bool (*run)(const Product& p, const char* a, const char* b, char* c, const float* bias);
};

// Computes matmul or linear as an offer. Sums are stored as f32 first if their rounding is counted, or if the result's
// dtype is neither f32 nor that of the multiplication. False, with nothing written, for f64, a set accumulator, empty
// operands and products that do not suit the kernel.
bool multiply(const Multiplier& kernel, const OpCall& call, Outputs& out, bool linear, bool relu);

// Fills a column of kernels or of offers with matmul and the ops built on it. product(call, out, linear, relu) is like
// multiply(); that of a kernel always returns true.
template <bool (*product)(const OpCall&, Outputs&, bool, bool), class Fn> void set_products(Fn* column) {
  static constexpr OfferFn matmul = [](const OpCall& call, Outputs& out) { return product(call, out, false, false); };
  const auto set = [column]<class F>(OpId op, F) {
    using Returned = std::invoke_result_t<Fn, const OpCall&, Outputs&>;  // void for kernels, bool for offers
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
