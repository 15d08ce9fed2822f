// Matrix products with one thread per element.
#include "gemm_element.h"

namespace gradual::cuda {
namespace {

template <class C> struct PlainGemm {
  Gemm g;
  __device__ void operator()(std::int64_t i) const {
    const Place at = place(g, i);
    C sum = 0;
    for (std::int64_t p = 0; p < g.k; ++p)
      sum += element<C>(g.a, g.tf32, at.batch, at.row, p) * element<C>(g.b, g.tf32, at.batch, p, at.col);
    if (g.a.scale) sum *= *g.a.scale;
    if (g.b.scale) sum *= *g.b.scale;
    if (g.bias) sum += load_element<C>(g.bias_dtype(), g.bias, at.col);
    store_result(g, at, sum);
  }
};

}  // namespace

void plain_gemm(const Gemm& g) {
  cpu::visit_floating(g.c_dtype, [&]<class C>(C) { for_each(g.batch * g.m * g.n, PlainGemm<C>{g}); });
}

}  // namespace gradual::cuda
