// Kernels that move numbers: casts, copies, joining, indexing.
#include <algorithm>
#include <cstring>
#include <string>

#include "../counts.h"
#include "../dispatch.h"
#include "../parallel.h"
#include "kernels.h"
#include "loops.h"
#include "moves.h"

namespace gradual::cpu {
namespace {

// One block from any dtype to any other, with the bits kept where the dtypes are equal.
void copy_block(const Loop& loop, std::int64_t at, std::int64_t n, CastCounts* counts) {
  const View& out = loop.view[0];
  const View& in = loop.view[1];
  alignas(64) std::uint64_t from[kBlock];
  alignas(64) std::uint64_t to[kBlock];
  char* source = together(loop, in, at, n);
  char* target = together(loop, out, at, n);
  if (!source) {
    const bool straight = target && in.dtype == out.dtype;
    source = straight ? target : reinterpret_cast<char*>(from);
    gather_raw(loop, in, at, n, source);
    if (straight) return;
  }
  if (in.dtype == out.dtype && !target) return scatter_raw(loop, out, at, n, source);
  convert(in.dtype, source, out.dtype, target ? target : reinterpret_cast<char*>(to), n, counts);
  if (!target) scatter_raw(loop, out, at, n, to);
}

void cast(const OpCall& c, Outputs& out) { copy_elements(out[0], c[0]); }

}  // namespace

void copy_elements(const Tensor& out, const Tensor& x) {
  if (out.numel() == 0) return;
  const Tensor* inputs[] = {&x};
  const Loop loop = make_loop(out, inputs, 1);
  CastCounts* const counts = counts_for(x.dtype(), out.dtype());
  if (loop.view[0].linear && loop.view[1].linear && loop.numel <= kGrain) {
    convert(x.dtype(), loop.view[1].data, out.dtype(), loop.view[0].data, loop.numel, counts);
    return;
  }
  parallel_for(loop.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
    CastCounts chunk;
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t n = loop.block(at, end);
      copy_block(loop, at, n, counts ? &chunk : nullptr);
      at += n;
    }
    if (counts) merge_counts(counts, chunk);
  });
}

void register_movement() {
  const auto set = [](OpId op, KernelFn fn) { columns().cpu[static_cast<int>(op)] = fn; };
  set(OpId::cast, cast);
  set(OpId::clone, cast);
  set(OpId::to_device, cast);
}

}  // namespace gradual::cpu
