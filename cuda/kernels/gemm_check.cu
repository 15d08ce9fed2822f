// Checks properties of a library's products that its documentation leaves open.
#include <cmath>
#include <limits>

#include "../runtime/memory.h"
#include "gemm_element.h"

namespace gradual::cuda {
namespace {

// The bitwise or of look(i) for n indices, on the host.
template <class Look> struct Gather {
  Look look;
  int* seen;
  __device__ void operator()(std::int64_t i) const {
    if (const int what = look(i)) atomicOr(seen, what);
  }
};
template <class Look> int gathered(std::int64_t n, const Look& look) {
  const Workspace flags(sizeof(int));
  clear(flags.as<void>(), sizeof(int));
  for_each(n, Gather<Look>{look, flags.as<int>()});
  int seen = 0;
  device::copy(&seen, Device::cpu(), flags.as<void>(), Device::cuda(current_device()), sizeof seen);
  return seen;
}

struct NotNan {
  Gemm g;
  __device__ int operator()(std::int64_t i) const {
    const Place at = place(g, i);
    const auto value = load_element<double>(g.c_dtype, g.c, at.batch * g.c_batch_stride + at.row * g.ldc + at.col);
    return value == value;
  }
};

// For one row: 1 if it is conclusive, 2 if its sum is wrong.
struct RowSum {
  Gemm g;
  double half_ulp, most, least;  // of c's dtype
  __device__ int operator()(std::int64_t i) const {
    double sum = 0;
    double size = 0;
    for (std::int64_t p = 0; p < g.k; ++p) {
      const auto value = element<double>(g.a, false, 0, i, p);
      sum += value;
      size += std::fabs(value);
    }
    const double slack = static_cast<double>(g.k) * 0x1p-23 * size;  // f32 sums in any order
    if (size == 0 || !(std::fabs(sum) + slack < most)) return 0;
    const double away = std::fabs(load_element<double>(g.c_dtype, g.row_sums, i) - sum);
    return away <= half_ulp * (std::fabs(sum) + slack) + slack + least ? 1 : 3;
  }
};

}  // namespace

bool all_nan(const Gemm& g) { return gathered(g.batch * g.m * g.n, NotNan{g}) == 0; }

Verdict check_row_sums(const Gemm& g) {
  const FloatInfo& info = float_info(g.c_dtype);
  const int seen = gathered(g.m, RowSum{g, info.epsilon / 2, info.max, info.min_subnormal});
  return seen == 0 ? Verdict::unknown : seen == 1 ? Verdict::right : Verdict::wrong;
}

}  // namespace gradual::cuda
