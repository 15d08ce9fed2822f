// Kernels that find elements by an index tensor. Additions to one element happen in row-major order of the index,
// whatever the number of threads: threads share out a dim that is not indexed.
#include <algorithm>
#include <string>

#include "../dispatch.h"
#include "../parallel.h"
#include "kernels.h"
#include "loops.h"
#include "moves.h"

namespace gradual::cpu {
namespace {

Tensor dense_index(const Tensor& index) {
  if (index.is_contiguous()) return index;
  const Tensor copy = empty(index.sizes(), {.dtype = DType::i64});
  copy_elements(copy, index);
  return copy;
}

// Before anything is written.
void check_indices(const OpCall& c, const Tensor& index, std::int64_t size) {
  const auto* values = index.data<std::int64_t>();
  for (std::int64_t i = 0; i < index.numel(); ++i) {
    if (values[i] >= 0 && values[i] < size) continue;
    Shape position = index.sizes();
    for (std::int64_t d = index.ndim() - 1, rest = i; d >= 0; --d) {
      const std::int64_t n = index.sizes()[static_cast<int>(d)];
      position[static_cast<int>(d)] = rest % n;
      rest /= n;
    }
    fail(describe(c) + ": index " + std::to_string(values[i]) + " at " + to_string(position) +
         " is out of range; allowed are 0 to " + std::to_string(size - 1));
  }
}

// A loop over `sizes` of a target and a source, one of them found by the index: view[0] is what is looked up along
// `dim` (its stride there is 0: the index says where), view[1] the index, view[2] the other.
Loop index_loop(const Tensor& looked_up, const Tensor& index, const Tensor& other, const Shape& sizes, int dim) {
  Loop loop;
  loop.operands = 3;
  loop.ndim = sizes.size();
  const Tensor* tensors[] = {&looked_up, &index, &other};
  for (int i = 0; i < 3; ++i) {
    View& v = loop.view[i];
    v.data = static_cast<char*>(tensors[i]->raw());
    v.dtype = tensors[i]->dtype();
    std::copy_n(tensors[i]->strides().begin(), sizes.size(), v.strides);
  }
  if (loop.ndim > 0) loop.view[0].strides[dim] = 0;
  std::copy_n(sizes.begin(), sizes.size(), loop.sizes);
  loop.numel = numel(sizes);
  return loop;
}

// Seen with the number of dims of `like`: a 1-d index that selects along `dim` repeats along the others.
Tensor spread(const Tensor& index, const Tensor& like, int dim) {
  Shape strides = Shape::filled(like.ndim(), 0);
  strides[dim] = index.strides()[0];
  Shape sizes = Shape::filled(like.ndim(), 1);
  sizes[dim] = index.numel();
  return as_strided(index, sizes, strides, index.offset());
}

// out[position] = x[position with the index's value at dim].
void look_up(const Tensor& out, const Tensor& x, int dim, const Tensor& index) {
  if (out.numel() == 0) return;
  Loop loop = index_loop(x, index, out, out.sizes(), dim);
  const std::int64_t jump = x.ndim() > 0 ? x.strides()[dim] : 0;
  simplify(loop, false);
  visit_width(size_of(x.dtype()), [&]<class W>(W) {
    const auto* from = reinterpret_cast<const W*>(loop.view[0].data);
    const auto* at = reinterpret_cast<const std::int64_t*>(loop.view[1].data);
    auto* to = reinterpret_cast<W*>(loop.view[2].data);
    const int last = loop.ndim - 1;
    const std::int64_t step[3] = {loop.view[0].strides[last], loop.view[1].strides[last], loop.view[2].strides[last]};
    parallel_for(loop.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for_rows(loop, begin, end - begin, [&](const std::int64_t* o, std::int64_t n) {
        const W* source = from + o[0];
        W* target = to + o[2];
        const std::int64_t* i = at + o[1];
        if (step[1] == 0 && step[0] == 1 && step[2] == 1) {
          std::copy_n(source + *i * jump, n, target);
        } else {
          for (std::int64_t k = 0; k < n; ++k) target[k * step[2]] = source[k * step[0] + i[k * step[1]] * jump];
        }
      });
    });
  });
}

template <class C> void add_rows(const Loop& loop, std::int64_t jump) {
  auto* to = reinterpret_cast<C*>(loop.view[0].data);
  const auto* at = reinterpret_cast<const std::int64_t*>(loop.view[1].data);
  const auto* from = reinterpret_cast<const C*>(loop.view[2].data);
  const int last = loop.ndim - 1;
  const std::int64_t step[3] = {loop.view[0].strides[last], loop.view[1].strides[last], loop.view[2].strides[last]};
  for_rows(loop, 0, loop.numel, [&](const std::int64_t* o, std::int64_t n) {
    C* target = to + o[0];
    const C* source = from + o[2];
    const std::int64_t* i = at + o[1];
    if (step[1] == 0 && step[0] == 1 && step[2] == 1) {
      target += *i * jump;
#pragma omp simd
      for (std::int64_t k = 0; k < n; ++k) target[k] += source[k];
    } else {
      for (std::int64_t k = 0; k < n; ++k) target[k * step[0] + i[k * step[1]] * jump] += source[k * step[2]];
    }
  });
}

// acc[position with the index's value at dim] += src[position] for positions in `sizes`; acc and src are of type C.
template <class C> void add_at(const Tensor& acc, int dim, const Tensor& index, const Tensor& src, const Shape& sizes) {
  if (numel(sizes) == 0) return;
  const Loop loop = index_loop(acc, index, src, sizes, dim);
  const std::int64_t jump = acc.ndim() > 0 ? acc.strides()[dim] : 0;
  int shared = -1;  // the longest dim that is not indexed
  for (int d = 0; d < loop.ndim; ++d)
    if (d != dim && (shared < 0 || loop.sizes[d] > loop.sizes[shared])) shared = d;
  const std::int64_t n = shared < 0 ? 1 : loop.sizes[shared];
  const std::int64_t grain = std::max<std::int64_t>(64, kGrain * n / loop.numel);
  parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    Loop mine = loop;
    if (shared >= 0) {
      mine.sizes[shared] = end - begin;
      mine.numel = loop.numel / n * (end - begin);
      for (int i = 0; i < 3; ++i)
        mine.view[i].data +=
            begin * mine.view[i].strides[shared] * static_cast<std::int64_t>(size_of(mine.view[i].dtype));
    }
    simplify(mine, false);
    add_rows<C>(mine, jump);
  });
}

// Sums in the compute type and rounds once: out = (x or zeros) with src added at the index.
void sum_at(const Tensor& out, const Tensor& x, int dim, const Tensor& index, const Tensor& src, const Shape& sizes) {
  const CategoryScope scope(Category::workspace);
  visit_compute(out.dtype(), [&]<class C>(C) {
    const bool same = out.dtype() == dtype_of<C>;
    const Tensor acc = same ? out : empty(out.sizes(), {.dtype = dtype_of<C>});
    copy_elements(acc, x.defined() ? x : full({}, 0, {.dtype = dtype_of<C>}));
    Tensor wide = src;
    if (!same) {
      wide = empty(src.sizes(), {.dtype = dtype_of<C>});
      copy_elements(wide, src);
    }
    add_at<C>(acc, dim, index, wide, sizes);
    if (!same) copy_elements(out, acc);
  });
}

void gather(const OpCall& c, Outputs& out) {
  const int dim = c.get<IndexAttrs>().dim;
  const Tensor index = dense_index(c[1]);
  check_indices(c, index, c[0].ndim() > 0 ? c[0].sizes()[dim] : 1);
  look_up(out[0], c[0], dim, index);
}

void index_select(const OpCall& c, Outputs& out) {
  const int dim = c.get<IndexAttrs>().dim;
  const Tensor index = dense_index(c[1]);
  check_indices(c, index, c[0].sizes()[dim]);
  look_up(out[0], c[0], dim, spread(index, c[0], dim));
}

void scatter_add(const OpCall& c, Outputs& out) {
  const int dim = c.get<IndexAttrs>().dim;
  const Tensor index = dense_index(c[1]);
  check_indices(c, index, c[0].ndim() > 0 ? c[0].sizes()[dim] : 1);
  sum_at(out[0], c[0], dim, index, c[2], index.sizes());
}

void index_add(const OpCall& c, Outputs& out) {
  const auto& a = c.get<IndexAttrs>();
  const Tensor index = dense_index(c[1]);
  check_indices(c, index, a.size);
  sum_at(out[0], {}, a.dim, spread(index, c[0], a.dim), c[0], c[0].sizes());
}

void one_hot(const OpCall& c, Outputs& out) {
  const std::int64_t classes = c.get<OneHotAttrs>().classes;
  const Tensor index = dense_index(c[0]);
  check_indices(c, index, classes);
  auto* to = out[0].data<std::int64_t>();
  std::fill_n(to, out[0].numel(), 0);
  for (std::int64_t i = 0; i < index.numel(); ++i) to[i * classes + index.data<std::int64_t>()[i]] = 1;
}

}  // namespace

void register_indexing() {
  const auto set = [](OpId op, KernelFn fn) { columns().cpu[static_cast<int>(op)] = fn; };
  set(OpId::gather, gather);
  set(OpId::index_select, index_select);
  set(OpId::scatter_add, scatter_add);
  set(OpId::index_add, index_add);
  set(OpId::one_hot, one_hot);
}

}  // namespace gradual::cpu
