// Ops other than matmul and linear under an accumulator: by products whose chains are not cut.
#include <algorithm>

#include "../conv_products.h"
#include "../ops.h"
#include "../parallel.h"
#include "accumulate.h"
#include "loaded.h"
#include "loops.h"
#include "reduce_plan.h"

namespace gradual::cpu {

bool sum_accumulated(const Tensor& x, std::uint32_t dims, double n, Tensor& out) {
  if (!current_accumulator() || !is_floating(x.dtype()) || x.dtype() == DType::f64) return false;
  constexpr float kOne = 1;
  constexpr std::int64_t kSums = 64;  // side by side
  const Tensor rows = copied(reduced_last(x, dims), DType::f32);
  const std::int64_t count = x.numel() / std::max<std::int64_t>(1, out.numel());
  const Accumulator& how = *current_accumulator();
  const Result<float> sums(out);
  parallel_for(out.numel(), kSums, [&](std::int64_t begin, std::int64_t end) {
    float* const to = sums.data() + begin;
    std::fill_n(to, end - begin, 0.0F);
    const Gemm<float> ones{.m = 1,
                           .n = end - begin,
                           .k = count,
                           .a = {&kOne, 0, 0},
                           .b = {rows.data<float>() + begin * count, 1, count},
                           .c = to,
                           .ldc = end - begin};
    accumulate(how, ones, n == 1 && out.dtype() != DType::f32);
    for (std::int64_t i = 0; i < end - begin; ++i) to[i] = to[i] / static_cast<float>(n);
  });
  sums.store();
  return true;
}

bool convolution_accumulated(const OpCall& call, Tensor& out) {
  if (!current_accumulator() || out.dtype() == DType::f64) return false;
  const auto product = [&](const Tensor& a, const Tensor& b, std::int64_t group) {
    if (call.op != OpId::conv2d || !call[2].defined()) return matmul(a, b);
    return linear(a, b.t(), call[2].narrow(0, group * b.size(1), b.size(1)));
  };
  out.copy_(conv_by_products(call.op, call[0], call[1], call.get<ConvAttrs>(), out.sizes(), product));
  return true;
}

}  // namespace gradual::cpu
