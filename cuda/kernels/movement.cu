// Kernels that move numbers: copies, casts, fills; counterpart of core/cpu/movement.cpp (indexing: indexing.cu).
#include "movement.h"

#include "../../core/kernels/cat_slice_pad.h"
#include "../../core/tensor/device_recording.h"
#include "../../core/tensor/memory.h"
#include "../runtime/memory.h"
#include "elementwise.h"
#include "kernels.h"
#include "tensor_lists.h"

namespace gradual::cuda {
namespace {

// Moves elements without conversion: only their width matters.
template <class W> __device__ void move_element(const Geometry<2>& g, std::int64_t i) {
  std::int64_t at[2];
  g.locate(i, at);
  reinterpret_cast<W*>(g.operand[0].data)[at[0]] = reinterpret_cast<const W*>(g.operand[1].data)[at[1]];
}
template <class W> struct MoveElements {
  Geometry<2> g;
  __device__ void operator()(std::int64_t i) const { move_element<W>(g, i); }
};

// Writes packs of elements; all elements of a pack repeat one element of the source.
template <class W> struct RepeatElements {
  Geometry<2> g;  // of the result, in packs
  __device__ void operator()(std::int64_t i) const {
    std::int64_t at[2];
    g.locate(i, at);
    const W value = reinterpret_cast<const W*>(g.operand[1].data)[at[1]];
    Pack<W> pack;
    for (W& element : pack.of) element = value;
    reinterpret_cast<Pack<W>*>(g.operand[0].data)[at[0]] = pack;
  }
};

// Makes `n` elements of the innermost dim one: in all operands, or only in the result if the source repeats one number.
// False if they are not adjacent or not aligned.
template <int N> bool join(Geometry<N>& g, int n, std::size_t width, bool repeats) {
  const int last = g.ndim - 1;
  if (g.sizes[last] % n != 0) return false;
  const auto fits = [&](const ElementOperand& o) {
    if (o.strides[last] != 1 || reinterpret_cast<std::uintptr_t>(o.data) % (static_cast<std::size_t>(n) * width) != 0)
      return false;
    for (int d = 0; d < last; ++d)
      if (g.sizes[d] != 1 && o.strides[d] % n != 0) return false;
    return true;
  };
  if (!fits(g.operand[0])) return false;
  if constexpr (N > 1)
    if (repeats ? g.operand[1].strides[last] != 0 : !fits(g.operand[1])) return false;
  g.sizes[last] /= n;
  g.numel /= n;
  for (int d = 0; d < last; ++d) {
    g.operand[0].strides[d] /= n;
    if constexpr (N > 1)
      if (!repeats) g.operand[1].strides[d] /= n;
  }
  return true;
}

// Combines elements of `width` bytes into units of up to 16 bytes that can be moved at once. Returns their width.
std::size_t widen(Geometry<2>& g, std::size_t width) {
  while (width < 16 && join(g, 2, width, false)) width *= 2;
  return width;
}
template <class F> GRADUAL_HD void visit_unit(std::size_t width, const F& f) {
  switch (width) {
    case 1: return f.template operator()<std::uint8_t>();
    case 2: return f.template operator()<std::uint16_t>();
    case 4: return f.template operator()<std::uint32_t>();
    case 8: return f.template operator()<std::uint64_t>();
    default: return f.template operator()<Sixteen>();
  }
}

void move_elements(Geometry<2> g, std::size_t width) {
  const bool repeats = g.operand[1].strides[g.ndim - 1] == 0;
  if (repeats && join(g, static_cast<int>(16 / width), width, true))
    return cpu::visit_width(width, [&]<class W>(W) { for_each(g.numel, RepeatElements<W>{g}); });
  visit_unit(widen(g, width), [&]<class W> { for_each(g.numel, MoveElements<W>{g}); });
}

// A tensor that moves to its place in a larger one. A chunk is a unit.
struct Moved {
  Geometry<2> g;
  std::size_t width;  // of a unit
  std::int64_t first_chunk;
  std::int64_t chunks() const { return g.numel; }
};
// parts per table
constexpr int kFewMoved = 15;
constexpr int kManyMoved = 120;

template <int kMost> struct MoveParts {
  Table<Moved, kMost> parts;
  __device__ void operator()(std::int64_t i) const {
    const Moved& p = parts.part[parts.find(i)];
    visit_unit(p.width, [&]<class W> { move_element<W>(p.g, i - p.first_chunk); });
  }
};

struct Same {
  template <class C> GRADUAL_HD C operator()(C x) const { return x; }
};

// Converts through the type C, which holds every value of the source.
template <class C> struct ConvertElements {
  Geometry<2> g;
  Counter counter;
  __device__ void operator()(std::int64_t i) const {
    std::int64_t at[2];
    g.locate(i, at);
    const C value = load_element<C>(g.operand[1].dtype, g.operand[1].data, at[1]);
    store_counted(g.operand[0].dtype, value, g.operand[0].data, at[0], counter);
  }
};

// n elements per index. The last index may have fewer; then the loop has one dim.
template <class W, int n> struct FillElements {
  Geometry<1> g;       // in packs of n
  std::int64_t count;  // of elements
  W value;
  __device__ void operator()(std::int64_t i) const {
    std::int64_t at[1];
    g.locate(i, at);
    W* const to = reinterpret_cast<W*>(g.operand[0].data) + n * at[0];
    if (n * i + n <= count) {
      RunPart<W, n> pack;
      for (W& element : pack.of) element = value;
      *reinterpret_cast<RunPart<W, n>*>(to) = pack;
    } else {
      for (std::int64_t j = 0; j < count - n * i; ++j) to[j] = value;
    }
  }
};

void fill_pattern(const Geometry<1>& g, const void* pattern, std::size_t width) {
  cpu::visit_width(width, [&]<class W>(W) {
    constexpr int kPack = 16 / sizeof(W);
    const W value = *static_cast<const W*>(pattern);
    Geometry<1> packs = g;
    if (g.ndim == 1) {
      packs.numel = (g.numel + kPack - 1) / kPack * kPack;
      packs.sizes[0] = packs.numel;
    }
    if (join(packs, kPack, sizeof(W), false)) for_each(packs.numel, FillElements<W, kPack>{packs, g.numel, value});
    else for_each(g.numel, FillElements<W, 1>{g, g.numel, value});
  });
}

void cast(const OpCall& c, Outputs& out) { copy_elements(out[0], c[0]); }

// A source on another device is copied to this one first.
void copy_in_place(const OpCall& c, Outputs&) { copy_elements(c[0], readable(c[0], c[1].to(c[0].device()))); }

// Clears a tensor without gaps.
void clear_elements(const Tensor& t) {
  if (t.numel() > 0) clear(t.raw(), t.nbytes());
}

void fill_in_place(const OpCall& c, Outputs&) { fill_elements(c[0], c.get<ScalarAttrs>().value); }

// Copies all inputs in one launch. They have the result's dtype and any strides.
void cat(const OpCall& c, Outputs& out) {
  const int dim = c.get<DimAttrs>().dim;
  std::int64_t start = 0;
  const auto make = [&](int i) {
    const std::int64_t n = c[i].sizes()[dim];
    const Tensor to = cpu::part(out[0], dim, start, n);
    start += n;
    Moved moved{.g = {}, .width = size_of(to.dtype()), .first_chunk = 0};
    if (to.numel() == 0) return moved;
    const Tensor* const operands[] = {&to, &c[i]};
    moved.g = make_geometry(to.sizes(), operands, true);
    moved.width = widen(moved.g, moved.width);
    return moved;
  };
  in_tables<kFewMoved, kManyMoved>(c.inputs.size(), make, [&]<int kMost>(const Table<Moved, kMost>& table, int) {
    for_each(table.chunks, MoveParts<kMost>{table});
  });
}

// Entries right of the diagonal become 0; the others are copied.
template <class W> struct LowerTriangle {
  Geometry<2> g;  // in row-major order
  std::int64_t rows, columns, diagonal;
  __device__ void operator()(std::int64_t i) const {
    std::int64_t at[2];
    g.locate(i, at);
    const bool kept = i % columns - i / columns % rows <= diagonal;
    reinterpret_cast<W*>(g.operand[0].data)[at[0]] = kept ? reinterpret_cast<const W*>(g.operand[1].data)[at[1]] : W{0};
  }
};

void tril(const OpCall& c, Outputs& out) {
  const Tensor* const operands[] = {&out[0], &c[0]};
  const Geometry<2> g = make_geometry(out[0].sizes(), operands, true);
  const std::int64_t rows = c[0].size(-2);
  const std::int64_t columns = c[0].size(-1);
  cpu::visit_width(size_of(c[0].dtype()), [&]<class W>(W) {
    for_each(g.numel, LowerTriangle<W>{g, rows, columns, c.get<std::int64_t>()});
  });
}

// To the CPU or another GPU: all bytes in one copy, in the result's memory order.
void to_device(const OpCall& c, Outputs& out) {
  if (out[0].device().is_cpu())
    device::need_no_capture(gradual::describe(c) + " from " + to_string(c[0].device()) + " to the CPU");
  const Tensor source = cpu::same_order(c[0], out[0]) ? c[0] : copied(c[0], c[0].dtype());
  device::copy(out[0].raw(), out[0].device(), source.raw(), c[0].device(), source.nbytes());
}

}  // namespace

void copy_elements(const Tensor& out, const Tensor& x) {
  if (out.numel() == 0) return;
  const bool same = out.dtype() == x.dtype();
  if (same && out.sizes() == x.sizes() && cpu::same_order(out, x))
    return device::copy(out.raw(), out.device(), x.raw(), x.device(), out.nbytes());
  const Tensor* const operands[] = {&out, &x};
  const Geometry<2> g = make_geometry(out.sizes(), operands, out.is_contiguous());
  if (same) return move_elements(g, size_of(x.dtype()));
  const CountingStores counting(x.dtype(), out.dtype());
  if (map_runs<1>(g, Same{}, 0, counting.counter())) return;
  cpu::visit_compute(x.dtype(), [&]<class C>(C) { for_each(g.numel, ConvertElements<C>{g, counting.counter()}); });
}

void fill_elements(const Tensor& t, double value) {
  if (t.numel() == 0) return;
  const Tensor one = full({}, value, {.dtype = t.dtype()});  // rounded to the dtype
  const Tensor* const operands[] = {&t};
  fill_pattern(make_geometry(t.sizes(), operands, false), one.raw(), size_of(t.dtype()));
}

Tensor copied(const Tensor& x, DType dtype) {
  const CategoryScope scope(Category::workspace);
  Tensor out = empty(x.sizes(), {.dtype = dtype, .device = x.device()});
  copy_elements(out, x);
  return out;
}

Tensor dense(const Tensor& x, DType dtype) { return x.is_contiguous() && x.dtype() == dtype ? x : copied(x, dtype); }

Tensor readable(const Tensor& x, const Tensor& source) {
  return cpu::overlaps(x, source) ? copied(source, source.dtype()) : source;
}

void register_movement() {
  set_kernel(OpId::cast, cast);
  set_kernel(OpId::clone, cast);
  set_kernel(OpId::to_device, to_device);
  set_kernel(OpId::copy_, copy_in_place);
  set_kernel(OpId::fill_, fill_in_place);
  set_kernel(OpId::cat, cat);
  set_kernel(OpId::slice_backward, cpu::slice_backward<copy_elements, clear_elements>);
  set_kernel(OpId::pad, cpu::pad<copy_elements, fill_elements>);
  set_kernel(OpId::tril, tril);
}

}  // namespace gradual::cuda

namespace gradual::device {

void fill(void* to, Device device, const void* pattern, std::size_t width, std::int64_t n) {
  if (n == 0) return;
  select(device);
  cuda::Geometry<1> g;
  g.ndim = 1;
  g.narrow = n <= INT32_MAX;
  g.numel = n;
  g.sizes[0] = n;
  g.operand[0].data = static_cast<char*>(to);
  g.operand[0].strides[0] = 1;
  cuda::fill_pattern(g, pattern, width);
}

}  // namespace gradual::device
