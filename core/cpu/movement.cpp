// Kernels that move numbers: casts, copies, indexing (cat and its kin: joining.h). Additions to one element happen in
// row-major order of the index, whatever the number of threads.
#include <algorithm>
#include <cstdint>

#include "../formats/convert_kernels.h"
#include "../kernels/cat_slice_pad.h"
#include "../kernels/loops.h"
#include "../support/failf.h"
#include "../tensor/device_recording.h"
#include "../tensor/memory.h"
#include "kernels.h"
#include "stream.h"

namespace gradual::cpu {
namespace {

// --- copies ---------------------------------------------------------------------------------------------------------

// One block from any dtype to any other, with the bits kept where the dtypes are equal.
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

void cast(const OpCall& c, Outputs& out) { copy_elements(out[0], c[0]); }

void copy_in_place(const OpCall& c, Outputs&) { copy_elements(c[0], readable(c[0], c[1].to(Device::cpu()))); }

// From the CPU to a GPU: all bytes at once, in the order that the result has.
void to_device(const OpCall& c, Outputs& out) {
  if (out[0].device().is_cpu()) return copy_elements(out[0], c[0]);
  device::need_no_capture(gradual::describe(c) + " from the CPU to " + to_string(out[0].device()));
  const Tensor dense = same_order(c[0], out[0]) ? c[0] : copied(c[0], c[0].dtype());
  device::copy(out[0].raw(), out[0].device(), dense.raw(), Device::cpu(), dense.nbytes());
}

void fill(const Tensor& t, double value) { copy_elements(t, full({}, value, {.dtype = t.dtype()})); }

void clear(const Tensor& t) { fill(t, 0); }

void fill_in_place(const OpCall& c, Outputs&) { fill(c[0], c.get<ScalarAttrs>().value); }

// Entries right of the diagonal become zero, the others stay.
void tril(const OpCall& c, Outputs& out) {
  copy_elements(out[0], c[0]);
  const int last = c[0].dim() - 1;
  const std::int64_t columns = c[0].size(last);
  for (std::int64_t row = 0; row < c[0].size(last - 1); ++row) {
    const std::int64_t kept = std::clamp<std::int64_t>(row + c.get<std::int64_t>() + 1, 0, columns);
    fill(part(part(out[0], last - 1, row, 1), last, kept, columns - kept), 0);
  }
}

// --- indexing -------------------------------------------------------------------------------------------------------

// The index for each position of `sizes`, after a check that all its values lie in [0, size): before anything is
// written. A 1-d index along `dim` repeats along the others.
Tensor checked_index(const OpCall& c, const Tensor& given, std::int64_t size, const Shape& sizes, int dim) {
  Tensor index = given.is_contiguous() ? given : copied(given, DType::i64);
  const auto* values = index.data<std::int64_t>();
  const auto* const end = values + index.numel();
  const auto* const bad = std::find_if(values, end, [&](std::int64_t v) { return v < 0 || v >= size; });
  if (bad != end) {
    Shape position = index.sizes();
    for (std::int64_t d = index.dim() - 1, rest = bad - values; d >= 0; rest /= index.sizes()[static_cast<int>(d--)])
      position[static_cast<int>(d)] = rest % index.sizes()[static_cast<int>(d)];
    failf(c, "index {} at {} is out of range; allowed are 0 to {}", *bad, to_string(position), size - 1);
  }
  if (index.dim() == sizes.size()) return index;
  Shape strides = Shape::filled(sizes.size(), 0);
  strides[dim] = 1;
  return as_strided(index, sizes, strides, index.offset());
}

// f(x at the position with the index's value at dim, y at the position) for all positions of y, whose dtypes are W wide,
// in parallel where `grain` lets it.
template <class W, class F>
void for_indexed(const Tensor& x, int dim, const Tensor& index, const Tensor& y, const Shape& sizes, std::int64_t grain,
                 const F& f) {
  Shape strides = x.strides();
  const std::int64_t jump = strides.empty() ? 0 : std::exchange(strides[dim], 0);
  const Tensor first = as_strided(x, sizes, strides, x.offset());
  const Tensor* operands[] = {&first, &index, &y};
  const Loop loop = make_loop(sizes, operands, true);
  auto* const found = reinterpret_cast<W*>(loop.view[0].data);
  const auto* const at = reinterpret_cast<const std::int64_t*>(loop.view[1].data);
  auto* const other = reinterpret_cast<W*>(loop.view[2].data);
  const int last = loop.ndim - 1;
  const std::int64_t step[] = {loop.view[0].strides[last], loop.view[1].strides[last], loop.view[2].strides[last]};
  parallel_for(loop.numel, grain, [&](std::int64_t begin, std::int64_t end) {
    for_rows(loop, begin, end - begin, [&](const std::int64_t* o, std::int64_t n) {
      if (step[1] == 0 && step[0] == 1 && step[2] == 1) {
        W* a = found + o[0] + at[o[1]] * jump;
        W* b = other + o[2];
#pragma omp simd
        for (std::int64_t k = 0; k < n; ++k) f(a[k], b[k]);
      } else {
        for (std::int64_t k = 0; k < n; ++k)
          f(found[o[0] + k * step[0] + at[o[1] + k * step[1]] * jump], other[o[2] + k * step[2]]);
      }
    });
  });
}

// out = (x or zeros) with src added at the index, for positions in `sizes`. Sums in the compute type, one after the
// other, and rounds once.
void sum_at(const Tensor& out, const Tensor& x, int dim, const Tensor& index, const Tensor& src, const Shape& sizes) {
  visit_compute(out.dtype(), [&]<class C>(C) {
    const bool same = out.dtype() == dtype_of<C>;
    const CategoryScope scope(Category::workspace);
    const Tensor sums = same ? out : empty(out.sizes(), {.dtype = dtype_of<C>});
    copy_elements(sums, x.defined() ? x : full({}, 0, {.dtype = dtype_of<C>}));
    const Tensor wide = same ? src : copied(src, dtype_of<C>);
    int shared = 0;  // threads share out the longest dim that is not indexed
    for (int d = 1; d < sizes.size(); ++d)
      if (shared == dim || (d != dim && sizes[d] > sizes[shared])) shared = d;
    const std::int64_t all = numel(sizes), slices = sizes.size() > 1 ? sizes[shared] : 1;
    const std::int64_t grain = std::max<std::int64_t>(64, kGrain * slices / std::max<std::int64_t>(1, all));
    parallel_for(all > 0 ? slices : 0, grain, [&](std::int64_t begin, std::int64_t end) {
      const auto mine = [&](const Tensor& t) { return slices == 1 ? t : part(t, shared, begin, end - begin); };
      for_indexed<C>(mine(sums), dim, mine(index), mine(wide), slices == 1 ? sizes : mine(index).sizes(), all,
                     [](C& sum, const C& value) { sum += value; });
    });
    if (!same) copy_elements(out, sums);
  });
}

// gather and index_select: out[position] = x[position with the index's value at dim].
void look_up(const OpCall& c, Outputs& out) {
  const int dim = c.get<IndexAttrs>().dim;
  const Shape& sizes = out[0].sizes();
  const Tensor index = checked_index(c, c[1], c[0].dim() > 0 ? c[0].sizes()[dim] : 1, sizes, dim);
  if (out[0].numel() == 0) return;
  visit_width(size_of(c[0].dtype()), [&]<class W>(W) {
    for_indexed<W>(c[0], dim, index, out[0], sizes, kGrain, [](const W& from, W& to) { to = from; });
  });
}

void scatter_add(const OpCall& c, Outputs& out) {
  const int dim = c.get<IndexAttrs>().dim;
  const Shape& sizes = c[1].sizes();
  sum_at(out[0], c[0], dim, checked_index(c, c[1], c[0].dim() > 0 ? c[0].sizes()[dim] : 1, sizes, dim), c[2], sizes);
}

void index_add(const OpCall& c, Outputs& out) {
  const auto& a = c.get<IndexAttrs>();
  const Shape& sizes = c[0].sizes();
  sum_at(out[0], {}, a.dim, checked_index(c, c[1], a.size, sizes, a.dim), c[0], sizes);
}

void one_hot(const OpCall& c, Outputs& out) {
  const std::int64_t classes = c.get<std::int64_t>();
  const Tensor index = checked_index(c, c[0], classes, c[0].sizes(), 0);
  auto* to = out[0].data<std::int64_t>();
  std::fill_n(to, out[0].numel(), 0);
  for (std::int64_t i = 0; i < index.numel(); ++i) to[i * classes + index.data<std::int64_t>()[i]] = 1;
}

// copy_elements of row-major tensors beyond the caches: a block is converted in the nearest one and streamed from there.
bool copy_streamed(const Tensor& out, const Tensor& x) {
  const auto from = static_cast<std::int64_t>(size_of(x.dtype()));
  const auto to = static_cast<std::int64_t>(size_of(out.dtype()));
  const bool aligned = reinterpret_cast<std::uintptr_t>(out.raw()) % 64 == 0 && out.numel() * to % 64 == 0;
  if (out.nbytes() < kStreamed || !aligned || !out.is_contiguous() || !x.is_contiguous() || x.sizes() != out.sizes())
    return false;
  const auto* in = static_cast<const char*>(x.raw());
  auto* const y = static_cast<char*>(out.raw());
  parallel_counted(out.numel(), kGrain, x.dtype(), out.dtype(), [&](auto at, auto end, CastCounts* counts) {
    alignas(64) std::uint64_t block[kBlock];
    const bool direct =
        x.dtype() == DType::f32 && !counts &&
        detail::encode_streamed(out.dtype(), reinterpret_cast<const float*>(in) + at, y + at * to, end - at);
    for (std::int64_t n = 0; at < end && !direct; at += n) {
      n = std::min(kBlock, end - at);
      convert(x.dtype(), in + at * from, out.dtype(), block, n, counts);
      stream(block, y + at * to, static_cast<std::size_t>(n * to));
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
  const Loop loop = make_loop(out.sizes(), operands, out.is_contiguous());
  const auto copy = [](const Loop& part, std::int64_t at, std::int64_t end, CastCounts* counts) {
    for (std::int64_t n = 0; at < end; at += n) copy_block(part, at, n = part.block(at, end), counts);
  };
  // Elements of x that lie whole pages apart, as in some transposes, would all fall into the same few sets of the cache:
  // in narrow strips of the last dim they stay there until their neighbours are read too.
  constexpr std::int64_t kPage = 4096, kStrip = 16;
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

void register_movement() {
  for (const OpId op : {OpId::cast, OpId::clone}) set_kernel(op, cast);
  set_kernel(OpId::to_device, to_device);
  set_kernel(OpId::copy_, copy_in_place);
  set_kernel(OpId::fill_, fill_in_place);
  set_kernel(OpId::cat, cat<copy_elements>);
  set_kernel(OpId::slice_backward, slice_backward<copy_elements, clear>);
  set_kernel(OpId::pad, pad<copy_elements, fill>);
  set_kernel(OpId::tril, tril);
  for (const OpId op : {OpId::gather, OpId::index_select}) set_kernel(op, look_up);
  set_kernel(OpId::scatter_add, scatter_add);
  set_kernel(OpId::index_add, index_add);
  set_kernel(OpId::one_hot, one_hot);
}

}  // namespace gradual::cpu
