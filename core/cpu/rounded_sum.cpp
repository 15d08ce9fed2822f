#include "rounded_sum.h"

#include <algorithm>

#include "../kernels/contraction_operand.h"
#include "../kernels/copies.h"
#include "../kernels/loops.h"
#include "../kernels/reduce_plan.h"
#include "../ops/ops.h"
#include "../support/parallel.h"
#include "rounded_gemm.h"

namespace gradual::cpu {

bool sum_accumulated(const Tensor& x, std::uint32_t dims, double n, Tensor& out) {
  if (!current_accumulator() || !is_floating(x.dtype()) || x.dtype() == DType::f64) return false;
  constexpr float kOne = 1;
  constexpr std::int64_t kSums = 64;  // sums per product
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
    accumulate(how, ones, n == 1 && out.dtype() != DType::f32, begin, out.numel());
    for (std::int64_t i = 0; i < end - begin; ++i) to[i] = to[i] / static_cast<float>(n);
  });
  sums.store();
  return true;
}

}  // namespace gradual::cpu
