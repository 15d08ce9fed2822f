#include "copies.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "../formats/convert_kernels.h"
#include "../support/transpose.h"
#include "streaming_store.h"

namespace gradual::cpu {
namespace {

// Copies one block between any two dtypes; equal dtypes keep the bits.
void copy_block(const Loop& loop, std::int64_t at, std::int64_t n, CastCounts* counts) {
  alignas(64) std::uint64_t from[kBlock];
  alignas(64) std::uint64_t to[kBlock];
  const DType out = loop.view[0].dtype;
  const DType in = loop.view[1].dtype;
  void* target = together(loop, 0, at, n);
  void* source = together(loop, 1, at, n);
  if (!source) {
    source = target && in == out ? target : from;
    move_raw(loop, 1, at, n, source, Move::gather);
  }
  if (in != out || (target && source != target)) convert(in, source, out, target ? target : to, n, counts);
  if (!target) move_raw(loop, 0, at, n, in == out ? source : to, Move::scatter);
}

// copy_elements of f32 whose elements are adjacent along one dim in x and along another one in `out`. `loop` has the
// order of out. Threads share strips of x's adjacent elements.
bool copy_transposed(const Loop& loop) {
  constexpr std::int64_t kStrip = 64;
  const View& to = loop.view[0];
  const View& from = loop.view[1];
  const int last = loop.ndim - 1;
  if (to.dtype != DType::f32 || from.dtype != DType::f32 || loop.ndim < 2 || to.strides[last] != 1) return false;
  int adjacent = 0;
  while (adjacent < last && (from.strides[adjacent] != 1 || loop.sizes[adjacent] < 4)) ++adjacent;
  if (adjacent == last || loop.sizes[last] < 4) return false;
  Loop outer;  // all other dims
  outer.operands = 2;
  outer.view[0] = to;
  outer.view[1] = from;
  for (int d = 0; d < last; ++d) {
    if (d == adjacent) continue;
    for (View& v : std::span(outer.view, 2)) v.strides[outer.ndim] = v.strides[d];
    outer.sizes[outer.ndim] = loop.sizes[d];
    outer.numel *= loop.sizes[d];
    ++outer.ndim;
  }
  const std::int64_t rows = loop.sizes[adjacent];
  const std::int64_t strips = (rows + kStrip - 1) / kStrip;
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / (kStrip * loop.sizes[last]));
  parallel_for(outer.numel * strips, grain, [&](std::int64_t at, std::int64_t end) {
    for (; at < end; ++at) {
      const std::int64_t row = at % strips * kStrip;
      const std::int64_t read = offset_of(outer, 1, at / strips) + row;
      const std::int64_t written = offset_of(outer, 0, at / strips) + row * to.strides[adjacent];
      transpose(reinterpret_cast<const float*>(from.data) + read, from.strides[last],
                reinterpret_cast<float*>(to.data) + written, to.strides[adjacent], std::min(kStrip, rows - row),
                loop.sizes[last]);
    }
  });
  return true;
}

// copy_elements of row-major tensors that exceed the caches: streams the results to memory. Conversions that
// convert_streamed() does not do, and those that are counted, go through a block in the L1 cache.
bool copy_streamed(const Tensor& out, const Tensor& x) {
  const auto from = static_cast<std::int64_t>(size_of(x.dtype()));
  const auto to = static_cast<std::int64_t>(size_of(out.dtype()));
  const bool aligned = reinterpret_cast<std::uintptr_t>(out.raw()) % 64 == 0 && out.numel() * to % 64 == 0;
  if (out.nbytes() < kStreamed || !aligned || !out.is_contiguous() || !x.is_contiguous() || x.sizes() != out.sizes())
    return false;
  const auto* in = static_cast<const char*>(x.raw());
  auto* const y = static_cast<char*>(out.raw());
  parallel_counted(out.numel(), kGrain, x.dtype(), out.dtype(), [&](auto at, auto end, CastCounts* counts) {
    const char* const source = in + at * from;
    char* const target = y + at * to;
    if (x.dtype() == out.dtype()) {
      stream(source, target, static_cast<std::size_t>((end - at) * to));
    } else if (counts || !detail::convert_streamed(x.dtype(), source, out.dtype(), target, end - at)) {
      alignas(64) std::uint64_t block[kBlock];
      for (std::int64_t n = 0; at < end; at += n) {
        n = std::min(kBlock, end - at);
        convert(x.dtype(), in + at * from, out.dtype(), block, n, counts);
        stream(block, y + at * to, static_cast<std::size_t>(n * to));
      }
    }
    stream_end();
  });
  return true;
}

}  // namespace

Tensor part(const Tensor& t, int dim, std::int64_t start, std::int64_t length, std::int64_t step) {
  Shape sizes = t.sizes();
  Shape strides = t.strides();
  sizes[dim] = length;
  strides[dim] *= step;
  return as_strided(t, sizes, strides, t.offset() + start * t.strides()[dim]);
}

bool overlaps(const Tensor& x, const Tensor& source) {
  const bool same = source.sizes() == x.sizes() && source.strides() == x.strides() && source.offset() == x.offset() &&
                    source.dtype() == x.dtype();
  return source.shares_storage(x) && !same;
}

void copy_elements(const Tensor& out, const Tensor& x) {
  if (out.numel() == 0 || copy_streamed(out, x)) return;
  if (out.numel() <= kGrain && out.is_contiguous() && x.is_contiguous() && x.numel() == out.numel())
    return convert(x.dtype(), x.raw(), out.dtype(), out.raw(), x.numel(), counts_for(x.dtype(), out.dtype()));
  const Tensor* operands[] = {&out, &x};
  const bool rows = x.is_contiguous() && out.strides().back() == 1;  // in x's order only the writes are scattered
  const Loop loop = make_loop(out.sizes(), operands, rows || out.is_contiguous());
  if (copy_transposed(loop)) return;
  const auto copy = [](const Loop& part, std::int64_t at, std::int64_t end, CastCounts* counts) {
    for (std::int64_t n = 0; at < end; at += n) copy_block(part, at, n = part.block(at, end), counts);
  };
  // If elements of x are a multiple of a page apart, as in some transposes, they fall into few sets of the cache. In
  // narrow strips of the last dim they stay in the cache until their neighbours are read.
  constexpr std::int64_t kPage = 4096;
  constexpr std::int64_t kStrip = 16;
  const int last = loop.ndim - 1;
  const std::int64_t jump = loop.view[1].strides[last] * static_cast<std::int64_t>(size_of(x.dtype()));
  const std::int64_t strips = loop.sizes[last] / kStrip;
  if (jump == 0 || jump % kPage != 0 || strips < 2)
    return parallel_counted(loop.numel, kGrain, x.dtype(), out.dtype(),
                            [&](auto begin, auto end, CastCounts* counts) { copy(loop, begin, end, counts); });
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain * strips / loop.numel);
  parallel_counted(strips, grain, x.dtype(), out.dtype(), [&](auto strip, auto end, CastCounts* counts) {
    for (; strip < end; ++strip) {
      Loop part = loop;
      part.sizes[last] = strip + 1 < strips ? kStrip : loop.sizes[last] - strip * kStrip;
      for (View& v : std::span(part.view, 2)) {
        v.linear = false;
        v.data += strip * kStrip * v.strides[last] * static_cast<std::int64_t>(size_of(v.dtype));
      }
      copy(part, 0, loop.numel / loop.sizes[last] * part.sizes[last], counts);
    }
  });
}

Tensor copied(const Tensor& x, DType dtype) {
  const CategoryScope scope(Category::workspace);
  Tensor out = empty(x.sizes(), {.dtype = dtype});
  copy_elements(out, x);
  return out;
}

Tensor readable(const Tensor& x, const Tensor& source) {
  return overlaps(x, source) ? copied(source, source.dtype()) : source;
}

}  // namespace gradual::cpu
