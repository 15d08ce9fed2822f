// Kernels that move numbers: casts, copies, indexing (cat_slice_pad.h has cat, slices and padding). Additions to one
// element happen in row-major order of the index, for any number of threads.
#include <algorithm>
#include <cstdint>

#include "../kernels/cat_slice_pad.h"
#include "../kernels/copies.h"
#include "../kernels/loops.h"
#include "../support/throwf.h"
#include "../tensor/device_recording.h"
#include "../tensor/memory.h"
#include "kernels.h"

namespace gradual::cpu {
namespace {

// --- copies ---------------------------------------------------------------------------------------------------------

void cast(const OpCall& c, Outputs& out) { copy_elements(out[0], c[0]); }

void copy_in_place(const OpCall& c, Outputs&) { copy_elements(c[0], readable(c[0], c[1].to(Device::cpu()))); }

// From the CPU to a GPU: all bytes in one copy, in the result's memory order.
void to_device(const OpCall& c, Outputs& out) {
  if (out[0].device().is_cpu()) return copy_elements(out[0], c[0]);
  device::need_no_capture(gradual::describe(c) + " from the CPU to " + to_string(out[0].device()));
  const Tensor dense = same_order(c[0], out[0]) ? c[0] : copied(c[0], c[0].dtype());
  device::copy(out[0].raw(), out[0].device(), dense.raw(), Device::cpu(), dense.nbytes());
}

void fill(const Tensor& t, double value) { copy_elements(t, full({}, value, {.dtype = t.dtype()})); }

void clear(const Tensor& t) { fill(t, 0); }

void fill_in_place(const OpCall& c, Outputs&) { fill(c[0], c.get<ScalarAttrs>().value); }

// Entries right of the diagonal become 0; the others are copied.
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

// The index, broadcast to `sizes`: a 1-d index lies along `dim` and repeats along the other dims. All its values are
// checked to be in [0, size) before anything is written.
Tensor checked_index(const OpCall& c, const Tensor& given, std::int64_t size, const Shape& sizes, int dim) {
  Tensor index = given.is_contiguous() ? given : copied(given, DType::i64);
  const auto* values = index.data<std::int64_t>();
  const auto* const end = values + index.numel();
  const auto* const bad = std::find_if(values, end, [&](std::int64_t v) { return v < 0 || v >= size; });
  if (bad != end) {
    Shape position = index.sizes();
    for (std::int64_t d = index.dim() - 1, rest = bad - values; d >= 0; rest /= index.sizes()[static_cast<int>(d--)])
      position[static_cast<int>(d)] = rest % index.sizes()[static_cast<int>(d)];
    throwf(c, "index {} at {} is out of range; allowed are 0 to {}", *bad, to_string(position), size - 1);
  }
  if (index.dim() == sizes.size()) return index;
  Shape strides = Shape::filled(sizes.size(), 0);
  strides[dim] = 1;
  return as_strided(index, sizes, strides, index.offset());
}

// Calls f(element of x, element of y) for all positions in `sizes`; x's position takes the index's value at `dim`.
// Elements are of type W. Threads take `grain` positions at a time.
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

// out = x, or zeros, plus src at the positions of the index. Sums in the compute type, in order, and rounds once.
void sum_at(const Tensor& out, const Tensor& x, int dim, const Tensor& index, const Tensor& src, const Shape& sizes) {
  visit_compute(out.dtype(), [&]<class C>(C) {
    const bool same = out.dtype() == dtype_of<C>;
    const CategoryScope scope(Category::workspace);
    const Tensor sums = same ? out : empty(out.sizes(), {.dtype = dtype_of<C>});
    copy_elements(sums, x.defined() ? x : full({}, 0, {.dtype = dtype_of<C>}));
    const Tensor wide = same ? src : copied(src, dtype_of<C>);
    int shared = 0;  // threads share the longest dim that is not indexed
    for (int d = 1; d < sizes.size(); ++d)
      if (shared == dim || (d != dim && sizes[d] > sizes[shared])) shared = d;
    const std::int64_t all = numel(sizes);
    const std::int64_t slices = sizes.size() > 1 ? sizes[shared] : 1;
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

}  // namespace

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
