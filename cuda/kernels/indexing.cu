// Kernels that gather and add at an index; counterpart of the second half of core/cpu/movement.cpp. Additions to one
// element are in row-major order of the index: entries are sorted by destination, and one thread adds each run of equal
// ones.
#include <bit>

#include "../../core/ops/ops.h"
#include "../../core/tensor/memory.h"
#include "../runtime/index_check.h"
#include "../runtime/memory.h"
#include "elements.h"
#include "elementwise.h"
#include "kernels.h"
#include "movement.h"
#include "sort.h"

namespace gradual::cuda {
namespace {

// A row-major tensor as [outer, middle, inner], for ops along one dim.
struct Slabs {
  std::int64_t outer = 1;
  std::int64_t middle = 1;
  std::int64_t inner = 1;
  bool narrow = false;

  Slabs(const Shape& sizes, int dim) {
    for (int d = 0; d < sizes.size(); ++d) (d < dim ? outer : d == dim ? middle : inner) *= sizes[d];
    narrow = outer * middle * inner <= INT32_MAX;
  }
  std::int64_t numel() const { return outer * middle * inner; }

  struct At {
    std::int64_t outer, middle, inner;
  };
  GRADUAL_HD At locate(std::int64_t i) const {
    return narrow ? divide(static_cast<std::uint32_t>(i)) : divide(static_cast<std::uint64_t>(i));
  }

 private:
  template <class U> GRADUAL_HD At divide(U i) const {
    const U row = i / static_cast<U>(inner);
    const U slab = row / static_cast<U>(middle);
    return {static_cast<std::int64_t>(slab), static_cast<std::int64_t>(row - slab * static_cast<U>(middle)),
            static_cast<std::int64_t>(i - row * static_cast<U>(inner))};
  }
};

// `index` for each position of `sizes`: a 1-d index along `dim` repeats along the others.
Tensor spread(const Tensor& index, const Shape& sizes, int dim) {
  if (index.dim() == sizes.size()) return index;
  Shape strides = Shape::filled(sizes.size(), 0);
  strides[dim] = 1;
  return as_strided(index, sizes, strides, index.offset());
}
// x at index 0 along `dim`, for each position of `sizes`.
Tensor first_along(const Tensor& x, const Shape& sizes, int dim) {
  Shape strides = x.strides();
  if (!strides.empty()) strides[dim] = 0;
  return as_strided(x, sizes, strides, x.offset());
}
std::int64_t size_along(const Tensor& x, int dim) { return x.dim() > 0 ? x.sizes()[dim] : 1; }
// The check of an index into a dim of this size.
IndexCheck check_into(const OpCall& c, std::int64_t size, const Tensor& index) {
  if (size == 0 && index.numel() > 0) throw_error(c, "no index is in range, for there is nothing along that dim");
  return index_check(c, size);
}
std::int64_t stride_along(const Tensor& x, int dim) { return x.dim() > 0 ? x.strides()[dim] : 0; }

// --- gather and index_select: out[position] = x[position with the index's value at dim] ------------------------------

// Any strides.
template <class W> struct LookUp {
  Geometry<3> g;  // out, x along 0, index
  std::int64_t jump;
  IndexCheck check;
  __device__ void operator()(std::int64_t i) const {
    std::int64_t at[3];
    g.locate(i, at);
    const std::int64_t value = reinterpret_cast<const std::int64_t*>(g.operand[2].data)[at[2]];
    const W* const from = reinterpret_cast<const W*>(g.operand[1].data) + at[1];
    reinterpret_cast<W*>(g.operand[0].data)[at[0]] = check(value, at[2]) ? from[value * jump] : W{};
  }
};

// index_select of row-major tensors, in units that may be wider than elements.
template <class W> struct SelectSlabs {
  Slabs slabs;  // of out, in units
  const W* x;
  W* out;
  const std::int64_t* index;
  IndexCheck check;
  __device__ void operator()(std::int64_t i) const {
    const auto at = slabs.locate(i);
    const std::int64_t value = index[at.middle];
    const W* const from = x + at.outer * check.size * slabs.inner + at.inner;
    out[i] = check(value, at.middle) ? from[value * slabs.inner] : W{};
  }
};

template <class W> void select_slabs(const Tensor& x, const Tensor& index, Tensor& out, Slabs slabs, IndexCheck check) {
  slabs.inner = slabs.inner * static_cast<std::int64_t>(size_of(x.dtype())) / static_cast<std::int64_t>(sizeof(W));
  for_each(slabs.numel(), SelectSlabs<W>{slabs, static_cast<const W*>(x.raw()), static_cast<W*>(out.raw()),
                                         static_cast<const std::int64_t*>(index.raw()), check});
}

void look_up(const OpCall& c, Outputs& out) {
  if (out[0].numel() == 0) return;
  const int dim = c.get<IndexAttrs>().dim;
  const Tensor& x = c[0];
  const Tensor index = dense(c[1], DType::i64);
  const IndexCheck check = check_into(c, size_along(x, dim), index);
  if (c.op == OpId::index_select && x.is_contiguous() && out[0].is_contiguous()) {
    const Slabs slabs(out[0].sizes(), dim);
    const std::int64_t bytes = slabs.inner * static_cast<std::int64_t>(size_of(x.dtype()));
    if (bytes % 16 == 0 && aligned(x.raw()) && aligned(out[0].raw()))
      return select_slabs<Sixteen>(x, index, out[0], slabs, check);
    return cpu::visit_width(size_of(x.dtype()), [&]<class W>(W) { select_slabs<W>(x, index, out[0], slabs, check); });
  }
  const Shape& sizes = out[0].sizes();
  const Tensor first = first_along(x, sizes, dim);
  const Tensor values = spread(index, sizes, dim);
  const Tensor* const operands[] = {&out[0], &first, &values};
  const Geometry<3> g = make_geometry(sizes, operands, true);
  cpu::visit_width(size_of(x.dtype()), [&]<class W>(W) {
    for_each(g.numel, LookUp<W>{g, stride_along(x, dim), check});
  });
}

// --- scatter_add and index_add ---------------------------------------------------------------------------------------

// For each entry of the index, in row-major order: its destination and its number. Values out of range go to `beyond`.
struct MakeKeys {
  Geometry<2> g;  // the target along 0, index
  std::int64_t jump, beyond;
  IndexCheck check;
  std::int64_t* keys;
  std::int64_t* entries;
  __device__ void operator()(std::int64_t i) const {
    std::int64_t at[2];
    g.locate(i, at);
    const std::int64_t value = reinterpret_cast<const std::int64_t*>(g.operand[1].data)[at[1]];
    keys[i] = check(value, i) ? at[0] + value * jump : beyond;
    entries[i] = i;
  }
};

// out[outer, key, inner] += src[outer, entry, inner], by the thread of the first of a run of equal keys.
template <class C> struct AddRuns {
  Slabs slabs;  // of src
  const std::int64_t* keys;
  const std::int64_t* entries;
  std::int64_t size;  // of out along the middle
  DType out_dtype, src_dtype;
  void* out;
  const void* src;
  __device__ void operator()(std::int64_t i) const {
    const auto at = slabs.locate(i);
    std::int64_t entry = at.middle;
    const std::int64_t key = keys[entry];
    if (key >= size || (entry > 0 && keys[entry - 1] == key)) return;
    const std::int64_t to = (at.outer * size + key) * slabs.inner + at.inner;
    C sum = load_element<C>(out_dtype, out, to);
    for (; entry < slabs.middle && keys[entry] == key; ++entry)
      sum += load_element<C>(src_dtype, src, (at.outer * slabs.middle + entries[entry]) * slabs.inner + at.inner);
    store_element(out_dtype, sum, out, to);
  }
};

// Adds src [outer, entries, inner] to out [outer, size, inner], which is row-major. Sums in the compute type and rounds
// once.
void add_runs(const Tensor& out, const Tensor& src, const Slabs& slabs, std::int64_t size, MakeKeys make) {
  const std::int64_t n = make.g.numel;
  if (n == 0 || slabs.numel() == 0) return;
  const Workspace memory(static_cast<std::size_t>(4 * n) * sizeof(std::int64_t));
  auto* const keys = memory.as<std::int64_t>();
  make.beyond = size;
  make.keys = keys;
  make.entries = keys + n;
  for_each(n, make);
  const int bits = std::bit_width(static_cast<std::uint64_t>(size));  // of `beyond`, the largest; size is not 0
  note_call("cub::DeviceRadixSort::SortPairs");
  sort_pairs(n, bits, keys, keys + 2 * n, keys + n, keys + 3 * n);
  const Tensor from = dense(src, src.dtype());
  cpu::visit_compute(out.dtype(), [&]<class C>(C) {
    const bool counted = cpu::counts_for(dtype_of<C>, out.dtype()) != nullptr;  // then all stores are, as on the CPU
    const Tensor sums = counted ? copied(out, dtype_of<C>) : out;
    for_each(slabs.numel(),
             AddRuns<C>{slabs, keys + 2 * n, keys + 3 * n, size, sums.dtype(), from.dtype(), sums.raw(), from.raw()});
    if (counted) copy_elements(out, sums);
  });
}

void scatter_add(const OpCall& c, Outputs& out) {
  const int dim = c.get<IndexAttrs>().dim;
  const Shape& sizes = c[1].sizes();
  const IndexCheck check = check_into(c, size_along(c[0], dim), c[1]);
  copy_elements(out[0], c[0]);
  const Tensor index = dense(c[1], DType::i64);
  const Tensor target = first_along(out[0], sizes, dim);
  const Tensor* const operands[] = {&target, &index};
  const MakeKeys make{make_geometry(sizes, operands, true), stride_along(out[0], dim), 0, check, nullptr, nullptr};
  Slabs slabs({}, 0);
  slabs.middle = index.numel();
  slabs.narrow = slabs.middle <= INT32_MAX;
  add_runs(out[0], as_strided(c[2], sizes, c[2].strides(), c[2].offset()), slabs, out[0].numel(), make);
}

void index_add(const OpCall& c, Outputs& out) {
  const auto& a = c.get<IndexAttrs>();
  const IndexCheck in_range = check_into(c, a.size, c[1]);
  if (out[0].numel() == 0) return;
  clear(out[0].raw(), out[0].nbytes());
  const Tensor index = dense(c[1], DType::i64);
  const Tensor target = as_strided(out[0], index.sizes(), {0}, out[0].offset());
  const Tensor* const operands[] = {&target, &index};
  const MakeKeys make{make_geometry(index.sizes(), operands, true), 1, 0, in_range, nullptr, nullptr};
  add_runs(out[0], c[0], Slabs(c[0].sizes(), a.dim), a.size, make);
}

// --- one_hot ---------------------------------------------------------------------------------------------------------

struct OneHot {
  const std::int64_t* index;
  std::int64_t* out;
  Slabs slabs;
  IndexCheck check;
  __device__ void operator()(std::int64_t i) const {
    const auto at = slabs.locate(i);
    const std::int64_t value = index[at.middle];
    if (at.inner == 0) check(value, at.middle);
    out[i] = value == at.inner;
  }
};

void one_hot(const OpCall& c, Outputs& out) {
  const std::int64_t classes = c.get<std::int64_t>();
  const Tensor index = dense(c[0], DType::i64);
  const Slabs slabs({index.numel(), classes}, 0);
  for_each(slabs.numel(), OneHot{static_cast<const std::int64_t*>(index.raw()),
                                 static_cast<std::int64_t*>(out[0].raw()), slabs, index_check(c, classes)});
}

}  // namespace

void register_indexing() {
  set_kernel(OpId::gather, look_up);
  set_kernel(OpId::index_select, look_up);
  set_kernel(OpId::scatter_add, scatter_add);
  set_kernel(OpId::index_add, index_add);
  set_kernel(OpId::one_hot, one_hot);
}

}  // namespace gradual::cuda
