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

// The dim along which neighbours of `in` lie side by side while the innermost dim jumps, as in a transpose; else -1.
int crossing_dim(const Loop& loop) {
  const int last = loop.ndim - 1;
  if (loop.view[0].strides[last] != 1 || loop.view[1].strides[last] < 16 || loop.sizes[last] < 16) return -1;
  for (int d = 0; d < last; ++d)
    if (loop.view[1].strides[d] == 1 && loop.sizes[d] >= 16) return d;
  return -1;
}

// A transposed copy in tiles, so that whole cache lines are used of either side. `cross` becomes the last dim but one.
void copy_crossing(Loop loop, int cross) {
  constexpr std::int64_t kTile = 16;
  const int last = loop.ndim - 1;
  for (int d = cross; d < last - 1; ++d) {
    std::swap(loop.sizes[d], loop.sizes[d + 1]);
    for (int i = 0; i < loop.operands; ++i) std::swap(loop.view[i].strides[d], loop.view[i].strides[d + 1]);
  }
  const std::int64_t rows = loop.sizes[last - 1];
  const std::int64_t columns = loop.sizes[last];
  const std::int64_t row_step = loop.view[0].strides[last - 1];
  const std::int64_t column_step = loop.view[1].strides[last];
  const std::int64_t row_tiles = (rows + kTile - 1) / kTile;
  visit_width(size_of(loop.view[0].dtype), [&]<class W>(W) {
    parallel_for(loop.numel / columns / rows * row_tiles, std::max<std::int64_t>(1, kGrain / (kTile * columns)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t task = begin; task < end; ++task) {
                     const std::int64_t first = task % row_tiles * kTile;
                     const std::int64_t position = (task / row_tiles * rows + first) * columns;
                     W* to = reinterpret_cast<W*>(loop.view[0].data) + offset_of(loop, loop.view[0].strides, position);
                     const W* from = reinterpret_cast<const W*>(loop.view[1].data) +
                                     offset_of(loop, loop.view[1].strides, position);
                     const std::int64_t height = std::min(kTile, rows - first);
                     for (std::int64_t j = 0; j < columns; j += kTile)
                       for (std::int64_t r = 0; r < height; ++r)
                         for (std::int64_t k = j; k < std::min(columns, j + kTile); ++k)
                           to[r * row_step + k] = from[r + k * column_step];
                   }
                 });
  });
}

void cast(const OpCall& c, Outputs& out) { copy_elements(out[0], c[0]); }

void fill(const Tensor& t, double value) { copy_elements(t, full({}, value, {.dtype = t.dtype()})); }

// `length` entries of `t` along `dim` from `start`, every step-th.
Tensor part(const Tensor& t, int dim, std::int64_t start, std::int64_t length, std::int64_t step = 1) {
  Shape sizes = t.sizes();
  Shape strides = t.strides();
  sizes[dim] = length;
  strides[dim] *= step;
  return as_strided(t, sizes, strides, t.offset() + start * t.strides()[dim]);
}

void cat(const OpCall& c, Outputs& out) {
  const int dim = c.get<DimAttrs>().dim;
  std::int64_t start = 0;
  for (int i = 0; i < c.inputs.size(); ++i) {
    const std::int64_t n = c[i].sizes()[dim];
    copy_elements(part(out[0], dim, start, n), c[i]);
    start += n;
  }
}

void slice_backward(const OpCall& c, Outputs& out) {
  const auto& a = c.get<SliceAttrs>();
  fill(out[0], 0);
  copy_elements(part(out[0], a.dim, a.start, c[0].sizes()[a.dim], a.step), c[0]);
}

void pad(const OpCall& c, Outputs& out) {
  const auto& a = c.get<PadAttrs>();
  fill(out[0], a.value);
  Tensor inside = out[0];
  for (int d = 0; d < inside.ndim(); ++d) inside = part(inside, d, a.before[d], c[0].sizes()[d]);
  copy_elements(inside, c[0]);
}

// Entries right of the diagonal become zero, the others stay.
void tril(const OpCall& c, Outputs& out) {
  copy_elements(out[0], c[0]);
  const std::int64_t rows = out[0].size(-2);
  const std::int64_t columns = out[0].size(-1);
  if (out[0].numel() == 0) return;
  const std::size_t width = size_of(out[0].dtype());
  auto* data = static_cast<char*>(out[0].raw());
  for (std::int64_t r = 0; r < out[0].numel() / columns; ++r) {
    const std::int64_t kept = std::clamp<std::int64_t>(r % rows + c.get<TrilAttrs>().diagonal + 1, 0, columns);
    std::memset(data + static_cast<std::size_t>(r * columns + kept) * width, 0,
                static_cast<std::size_t>(columns - kept) * width);
  }
}

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
  if (const int cross = crossing_dim(loop); cross >= 0 && x.dtype() == out.dtype()) return copy_crossing(loop, cross);
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
  set(OpId::cat, cat);
  set(OpId::slice_backward, slice_backward);
  set(OpId::pad, pad);
  set(OpId::tril, tril);
  register_indexing();
}

}  // namespace gradual::cpu
