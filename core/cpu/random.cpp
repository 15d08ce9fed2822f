// The dropout row. The mask is a function of the key and the element's row-major index, so backward, a recomputation
// and another device draw the same one.
#include <cmath>

#include "../dispatch.h"
#include "../parallel.h"
#include "../philox.h"
#include "kernels.h"
#include "loops.h"

namespace gradual::cpu {
namespace {

// Element i stays where uniform01(word i) >= p, in whole multiples of 2^-24, and is scaled by 1 / (1 - p) so that the
// mean stays too.
template <class C> void drop(const Loop& loop, const DropoutAttrs& a, CastCounts* counts) {
  const auto threshold = static_cast<std::uint32_t>(std::ceil(a.p * 0x1p24));
  const C scale = a.p < 1 ? static_cast<C>(1 / (1 - a.p)) : C{0};
  parallel_for(loop.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) C in[kBlock];
    alignas(64) C out[kBlock];
    alignas(64) std::uint64_t scratch[kBlock];
    std::uint32_t words[kBlock];
    CastCounts chunk;
    for (std::int64_t at = begin, n = 0; at < end; at += n) {
      n = loop.block(at, end);
      const C* x = fetch(loop, loop.view[1], at, n, in, scratch);
      philox_fill(a.key.seed, a.key.stream, static_cast<std::uint64_t>(at), words, n);
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) {
        const C scaled = x[i] * scale;
        out[i] = words[i] >> 8 >= threshold ? scaled : C{0};
      }
      put(loop, loop.view[0], at, n, out, scratch, counts ? &chunk : nullptr);
    }
    if (counts) merge_counts(counts, chunk);
  });
}

void dropout(const OpCall& c, Outputs& out) {
  const Tensor& x = c[0];
  Loop loop;  // in row-major order whatever the strides: the position is the index
  loop.operands = 2;
  loop.numel = x.numel();
  loop.ndim = x.ndim();
  std::copy_n(x.sizes().begin(), x.ndim(), loop.sizes);
  loop.view[0] = make_view(out[0], x.sizes());
  loop.view[1] = make_view(x, x.sizes());
  simplify(loop, false);
  visit_floating(x.dtype(),
                 [&]<class C>(C) { drop<C>(loop, c.get<DropoutAttrs>(), counts_for(dtype_of<C>, x.dtype())); });
}

}  // namespace

void register_random() { columns().cpu[static_cast<int>(OpId::dropout)] = dropout; }

}  // namespace gradual::cpu
