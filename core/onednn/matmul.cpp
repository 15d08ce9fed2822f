// matmul and linear by oneDNN. bf16 and f8 operands are multiplied as bf16 if the processor has bf16 products, all
// others as f32. Sums are f32.
#include <algorithm>
#include <memory>

#include "../cpu/gemm.h"
#include "../cpu/product_offers.h"
#include "../kernels/loops.h"
#include "../support/parallel.h"
#include "../support/throwf.h"
#include "kernels.h"
#include "primitive.h"

namespace gradual::onednn {
namespace {

using cpu::Product;

Primitive* primitive_of(const Product& p) {
  Key key(static_cast<std::int64_t>(OpId::matmul));
  key.add(p.m).add(p.n).add(p.k).add(p.across);
  for (const cpu::Strides& s : {p.a_strides, p.b_strides}) key.add(s[0]).add(s[1]);
  key.add(static_cast<int>(p.in)).add(static_cast<int>(p.out)).add(p.bias);
  return find(key, [&]() -> std::unique_ptr<Primitive> {
    const dnnl::memory::desc a = layout_of({p.m, p.k}, {p.a_strides[0], p.a_strides[1]}, p.in);
    const dnnl::memory::desc b = layout_of({p.k, p.n}, {p.b_strides[0], p.b_strides[1]}, p.in);
    const dnnl::memory::desc c = layout_of({p.m, p.n}, {p.across, 1}, p.out);
    const dnnl::memory::desc bias = layout_of({1, p.n}, {p.n, 1}, DType::f32);
    const auto how = p.bias ? describe<dnnl::matmul>(a, b, bias, c) : describe<dnnl::matmul>(a, b, c);
    if (!is_fast(how.impl_info_str())) return nullptr;
    std::vector<Primitive::Argument> arguments{{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}};
    if (p.bias) arguments.push_back({DNNL_ARG_BIAS, bias});
    return std::make_unique<Primitive>(dnnl::matmul(how), how.scratchpad_desc(), arguments);
  });
}

// oneDNN 2.6's sgemm is faster than its matmul on processors with AMX (bench/results/compare.md) for large products
// whose rows are not short. oneDNN 3 was not measured there.
bool is_sgemm(const Product& p) {
  constexpr std::int64_t kLarge = std::int64_t{1} << 27;
  constexpr std::int64_t kShort = 512;
  return p.in == DType::f32 && p.out == DType::f32 && p.n >= kShort && p.work >= kLarge && DNNL_VERSION_MAJOR == 2 &&
         cpu_isa() == CpuIsa::amx;
}

void run_sgemm(const Product& p, const char* a, const char* b, float* c, const float* bias) {
  const auto across = [](const cpu::Strides& strides) { return strides[1] == 1 ? strides[0] : strides[1]; };
  const auto order = [](const cpu::Strides& strides) { return strides[1] == 1 ? 'N' : 'T'; };
  if (bias)
    parallel_for(p.m, std::max<std::int64_t>(1, cpu::kGrain / p.n), [&](std::int64_t i, std::int64_t end) {
      for (; i < end; ++i) std::copy_n(bias, p.n, c + i * p.across);
    });
  const dnnl::status status = dnnl::sgemm(
      order(p.a_strides), order(p.b_strides), p.m, p.n, p.k, 1, reinterpret_cast<const float*>(a), across(p.a_strides),
      reinterpret_cast<const float*>(b), across(p.b_strides), bias ? 1 : 0, c, p.across);
  if (status != dnnl::status::success) throwf("oneDNN's sgemm failed with status {}", static_cast<int>(status));
}

bool suits(const Product& p) {
  const Team one(1);
  return is_sgemm(p) || primitive_of(p);
}

bool run(const Product& p, const char* a, const char* b, char* c, const float* bias) {
  const Team one(1);
  if (is_sgemm(p)) {
    run_sgemm(p, a, b, reinterpret_cast<float*>(c), bias);
    return true;
  }
  Primitive* const primitive = primitive_of(p);
  if (!primitive) return false;
  primitive->run({a, b, c, bias});
  return true;
}

bool product(const OpCall& call, Outputs& out, bool linear, bool relu) {
  static constexpr cpu::Multiplier kKernel{
      .same_bits = false, .dtype = product_dtype, .reads = nullptr, .suits = suits, .run = run};
  return cpu::multiply(kKernel, call, out, linear, relu);
}

}  // namespace

void register_contractions() {
  cpu::set_products<product>(columns().onednn);
  columns().onednn_description = description;
}

}  // namespace gradual::onednn
