// matmul and linear by the fast kernels. bf16 and f8 operands are multiplied as bf16 if the processor has bf16
// products, all others as f32. Sums are f32.
#include "../../ops/cpu_backend.h"
#include "../ordered_gemm.h"
#include "../product_offers.h"
#include "bf16_gemm.h"
#include "f32_gemm.h"
#include "kernels.h"

namespace gradual::fast {
namespace {

using cpu::Product;

// With AVX512-BF16, large bf16 products are left to oneDNN, which is up to 5% faster (bench/results/compare.md).
bool suits_sizes(DType in, std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kSmall = 1 << 19;
  if (in == DType::f32) return cpu::suits_f32_product(m, n, k);
  return cpu_isa() == CpuIsa::amx || cpu_backend() == CpuBackend::fast || m * n * k <= kSmall;
}

DType dtype_for(DType operands) {
  const bool exact = operands == DType::bf16 || is_f8(operands);
  return exact && cpu::has_bf16_product() ? DType::bf16 : DType::f32;
}

bool suits(const Product& p) {
  return (p.in == DType::bf16 || p.out == DType::f32) && suits_sizes(p.in, p.m, p.n, p.k);
}

template <class In, class Out>
cpu::FastProduct<In, Out> typed(const Product& p, const char* a, const char* b, char* c, const float* bias) {
  const auto matrix = [](const char* data, const cpu::Strides& strides) {
    return cpu::MatrixRef<In>{reinterpret_cast<const In*>(data), strides[0], strides[1]};
  };
  return {p.m,      p.n,   p.k, matrix(a, p.a_strides), matrix(b, p.b_strides), bias, reinterpret_cast<Out*>(c),
          p.across, p.relu};
}

bool run(const Product& p, const char* a, const char* b, char* c, const float* bias) {
  if (p.stored == DType::f16) cpu::f32_product_of(typed<Half, float>(p, a, b, c, bias));
  else if (p.in == DType::f32 && p.stored == DType::bf16) cpu::f32_product_of(typed<BFloat16, float>(p, a, b, c, bias));
  else if (p.in == DType::f32) cpu::f32_product(typed<float, float>(p, a, b, c, bias));
  else if (p.out == DType::bf16) cpu::bf16_product(typed<BFloat16, BFloat16>(p, a, b, c, bias));
  else cpu::bf16_product(typed<BFloat16, float>(p, a, b, c, bias));
  return true;
}

// A check before anything is converted: true if the product may suit, as one matrix of a batch or with the rows of the
// whole batch.
bool may_suit(const OpCall& call, bool linear) {
  const Tensor& a = call[0];
  const Tensor& b = call[1];
  if (a.dtype() == DType::f64 || a.numel() == 0 || b.numel() == 0) return false;
  const DType in = dtype_for(a.dtype());
  const std::int64_t k = a.size(-1);
  const std::int64_t n = linear ? b.size(0) : b.dim() == 1 ? 1 : b.size(-1);
  return suits_sizes(in, a.dim() == 1 ? 1 : a.size(-2), n, k) || suits_sizes(in, a.numel() / k, n, k);
}

bool product(const OpCall& call, Outputs& out, bool linear, bool relu) {
  static constexpr cpu::Multiplier kKernel{
      .same_bits = true, .dtype = dtype_for, .reads = cpu::reads_for_f32_product, .suits = suits, .run = run};
  return may_suit(call, linear) && cpu::multiply(kKernel, call, out, linear, relu);
}

}  // namespace

void register_contractions() {
  cpu::set_products<product>(columns().fast);
  cpu::set_ordered_kernel(cpu::f32_in_order);
}

}  // namespace gradual::fast
