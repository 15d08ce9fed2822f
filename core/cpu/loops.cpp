#include "loops.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "../counts.h"
#include "../parallel.h"

namespace gradual::cpu {
namespace {

constexpr std::int64_t kShortRow = 128;  // rows below this are put together into blocks

void wrap_integers(DType d, const std::int64_t* in, std::int64_t* out, std::int64_t n) {
  if (d == DType::u8) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<std::uint8_t>(in[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<std::int32_t>(in[i]);
  }
}

void finish_view(const Loop& loop, View& v) {
  v.linear = true;
  v.constant = true;
  std::int64_t step = 1;
  for (int d = loop.ndim - 1; d >= 0; --d) {
    v.linear = v.linear && v.strides[d] == step;
    v.constant = v.constant && v.strides[d] == 0;
    step *= loop.sizes[d];
  }
}

}  // namespace

std::int64_t offset_of(const Loop& loop, const std::int64_t* strides, std::int64_t position) {
  std::int64_t offset = 0;
  for (int d = loop.ndim - 1; d >= 0; --d) {
    offset += position % loop.sizes[d] * strides[d];
    position /= loop.sizes[d];
  }
  return offset;
}

char* together(const Loop& loop, const View& view, std::int64_t position, std::int64_t n) {
  if (!view.linear) {
    const int last = loop.ndim - 1;
    if (view.strides[last] != 1 || position % loop.sizes[last] + n > loop.sizes[last]) return nullptr;
  }
  return view.data + (view.linear ? position : offset_of(loop, view.strides, position)) *
                         static_cast<std::int64_t>(size_of(view.dtype));
}

std::int64_t Loop::block(std::int64_t position, std::int64_t end) const {
  const std::int64_t row = ndim > 0 ? sizes[ndim - 1] : 1;
  const std::int64_t n = std::min(kBlock, end - position);
  return row < kShortRow ? n : std::min(n, row - position % row);
}

View make_view(const Tensor& t, const Shape& sizes) {
  View v;
  v.data = static_cast<char*>(t.raw());
  v.dtype = t.dtype();
  const int lead = sizes.size() - t.ndim();
  for (int d = 0; d < sizes.size(); ++d)
    v.strides[d] = d < lead || t.sizes()[d - lead] == 1 ? 0 : t.strides()[d - lead];
  return v;
}

void simplify(Loop& loop, bool order) {
  int n = 0;
  const auto move = [&](int to, int from) {
    loop.sizes[to] = loop.sizes[from];
    for (int i = 0; i < loop.operands; ++i) loop.view[i].strides[to] = loop.view[i].strides[from];
  };
  for (int d = 0; d < loop.ndim; ++d)
    if (loop.sizes[d] != 1) move(n++, d);
  loop.ndim = n;
  for (int d = 1; order && d < n; ++d) {  // insertion sort, outermost (largest stride) first
    for (int k = d; k > 0 && loop.view[0].strides[k - 1] < loop.view[0].strides[k]; --k) {
      std::swap(loop.sizes[k - 1], loop.sizes[k]);
      for (int i = 0; i < loop.operands; ++i) std::swap(loop.view[i].strides[k - 1], loop.view[i].strides[k]);
    }
  }
  int top = 0;
  for (int d = 1; d < n; ++d) {
    bool merge = true;
    for (int i = 0; i < loop.operands; ++i)
      merge = merge && loop.view[i].strides[top] == loop.view[i].strides[d] * loop.sizes[d];
    if (merge) {
      const std::int64_t size = loop.sizes[top];
      move(top, d);
      loop.sizes[top] *= size;
    } else {
      move(++top, d);
    }
  }
  if (n > 0) {
    loop.ndim = top + 1;
  } else {  // one element
    loop.ndim = 1;
    loop.sizes[0] = 1;
    for (int i = 0; i < loop.operands; ++i) loop.view[i].strides[0] = i == 0 ? 1 : 0;
  }
  for (int i = 0; i < loop.operands; ++i) finish_view(loop, loop.view[i]);
}

Loop make_loop(const Tensor& out, const Tensor* const* inputs, int n) {
  Loop loop;
  loop.operands = n + 1;
  loop.numel = out.numel();
  bool dense = out.is_contiguous();
  for (int i = 0; i < n; ++i)
    if (inputs[i]->defined()) dense = dense && inputs[i]->is_contiguous() && inputs[i]->numel() == loop.numel;
  for (int i = 0; i <= n; ++i) {
    const Tensor& t = i == 0 ? out : *inputs[i - 1];
    View& v = loop.view[i];
    if (dense) {
      v.strides[0] = t.defined() ? 1 : 0;
      v.linear = t.defined();
      v.constant = !t.defined();
      if (t.defined()) v.data = static_cast<char*>(t.raw()), v.dtype = t.dtype();
    } else if (t.defined()) {
      v = make_view(t, out.sizes());
    } else {
      std::fill_n(v.strides, kMaxDims, 0);
    }
  }
  if (dense) {
    loop.ndim = 1;
    loop.sizes[0] = loop.numel;
    return loop;
  }
  loop.ndim = out.ndim();
  std::copy_n(out.sizes().begin(), out.ndim(), loop.sizes);
  simplify(loop, !out.is_contiguous());
  return loop;
}

void gather_raw(const Loop& loop, const View& view, std::int64_t position, std::int64_t n, void* out) {
  visit_width(size_of(view.dtype), [&]<class W>(W) {
    const std::int64_t step = view.strides[loop.ndim - 1];
    for_pieces(loop, view.strides, position, n, [&](std::int64_t offset, std::int64_t length, std::int64_t done) {
      const W* from = reinterpret_cast<const W*>(view.data) + offset;
      W* to = static_cast<W*>(out) + done;
      if (step == 1) {
        for (std::int64_t i = 0; i < length; ++i) to[i] = from[i];
      } else {
        for (std::int64_t i = 0; i < length; ++i) to[i] = from[i * step];
      }
    });
  });
}

void scatter_raw(const Loop& loop, const View& view, std::int64_t position, std::int64_t n, const void* in) {
  visit_width(size_of(view.dtype), [&]<class W>(W) {
    const std::int64_t step = view.strides[loop.ndim - 1];
    for_pieces(loop, view.strides, position, n, [&](std::int64_t offset, std::int64_t length, std::int64_t done) {
      const W* from = static_cast<const W*>(in) + done;
      W* to = reinterpret_cast<W*>(view.data) + offset;
      for (std::int64_t i = 0; i < length; ++i) to[i * step] = from[i];
    });
  });
}

template <class C>
const C* fetch(const Loop& loop, const View& view, std::int64_t position, std::int64_t n, C* buffer, void* scratch) {
  const bool same = view.dtype == dtype_of<C>;
  const char* p = together(loop, view, position, n);
  if (p && same) return reinterpret_cast<const C*>(p);
  if (!p) gather_raw(loop, view, position, n, same ? static_cast<void*>(buffer) : scratch);
  if (!same) load(view.dtype, p ? p : scratch, 1, buffer, n);
  return buffer;
}

template <class C>
void put(const Loop& loop, const View& view, std::int64_t position, std::int64_t n, const C* values, void* scratch,
         CastCounts* counts) {
  char* p = together(loop, view, position, n);
  std::int64_t wrapped[kBlock];
  if constexpr (std::is_same_v<C, std::int64_t>) {
    if (view.dtype == DType::u8 || view.dtype == DType::i32) {
      wrap_integers(view.dtype, values, wrapped, n);
      values = wrapped;
    }
  }
  store(view.dtype, values, p ? p : scratch, 1, n, counts);
  if (!p) scatter_raw(loop, view, position, n, scratch);
}

void merge_counts(CastCounts* into, const CastCounts& chunk) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  *into += chunk;
}

CastCounts* counts_for(DType from, DType to) {
  CastCounts* counts = cast_counts();
  if (!counts || from == to) return nullptr;
  if (is_floating(from) && is_floating(to)) {
    const FloatInfo a = float_info(from);
    const FloatInfo b = float_info(to);
    if (b.mantissa_bits >= a.mantissa_bits && b.exponent_bits >= a.exponent_bits) return nullptr;
  }
  return counts;
}

namespace {

template <class C>
void run_chunk(const Loop& loop, C scalar, BlockFn<C> fn, const void* functor, std::int64_t begin, std::int64_t end,
               CastCounts* counts) {
  alignas(64) C buffers[kMaxOperands][kBlock];
  alignas(64) std::uint64_t scratch[kBlock];
  const C* in[kMaxOperands];
  for (int i = 1; i < loop.operands; ++i) {
    const View& v = loop.view[i];
    if (!v.constant) continue;
    C value = scalar;
    if (v.data) load(v.dtype, v.data, 1, &value, 1);
    std::fill_n(buffers[i], std::min(kBlock, end - begin), value);
    in[i - 1] = buffers[i];
  }
  const View& out = loop.view[0];
  const bool same = out.dtype == dtype_of<C>;
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t n = loop.block(at, end);
    for (int i = 1; i < loop.operands; ++i)
      if (!loop.view[i].constant) in[i - 1] = fetch(loop, loop.view[i], at, n, buffers[i], scratch);
    C* direct = same ? reinterpret_cast<C*>(together(loop, out, at, n)) : nullptr;
    fn(functor, direct ? direct : buffers[0], in, n);
    if (!direct) put(loop, out, at, n, buffers[0], scratch, counts);
    at += n;
  }
}

}  // namespace

template <class C>
void run_elementwise(Tensor& out, const Tensor* const* inputs, int n, C scalar, BlockFn<C> fn, const void* functor) {
  const std::int64_t numel = out.numel();
  if (numel == 0) return;
  bool direct = out.is_contiguous() && out.dtype() == dtype_of<C>;
  const C* in[kMaxOperands];
  for (int i = 0; i < n && direct; ++i) {
    const Tensor& t = *inputs[i];
    direct = t.defined() && t.is_contiguous() && t.dtype() == dtype_of<C> && t.numel() == numel;
    if (direct) in[i] = static_cast<const C*>(t.raw());
  }
  if (direct && numel <= kGrain) return fn(functor, static_cast<C*>(out.raw()), in, numel);
  if (direct) {
    auto* const to = static_cast<C*>(out.raw());
    parallel_for(numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
      const C* part[kMaxOperands];
      for (int i = 0; i < n; ++i) part[i] = in[i] + begin;
      fn(functor, to + begin, part, end - begin);
    });
    return;
  }
  const Loop loop = make_loop(out, inputs, n);
  CastCounts* const counts = is_floating(out.dtype()) ? counts_for(dtype_of<C>, out.dtype()) : nullptr;
  parallel_for(numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
    CastCounts chunk;
    run_chunk(loop, scalar, fn, functor, begin, end, counts ? &chunk : nullptr);
    if (counts) merge_counts(counts, chunk);
  });
}

template const float* fetch(const Loop&, const View&, std::int64_t, std::int64_t, float*, void*);
template const double* fetch(const Loop&, const View&, std::int64_t, std::int64_t, double*, void*);
template const std::int64_t* fetch(const Loop&, const View&, std::int64_t, std::int64_t, std::int64_t*, void*);
template void put(const Loop&, const View&, std::int64_t, std::int64_t, const float*, void*, CastCounts*);
template void put(const Loop&, const View&, std::int64_t, std::int64_t, const double*, void*, CastCounts*);
template void put(const Loop&, const View&, std::int64_t, std::int64_t, const std::int64_t*, void*, CastCounts*);
template void run_elementwise(Tensor&, const Tensor* const*, int, float, BlockFn<float>, const void*);
template void run_elementwise(Tensor&, const Tensor* const*, int, double, BlockFn<double>, const void*);
template void run_elementwise(Tensor&, const Tensor* const*, int, std::int64_t, BlockFn<std::int64_t>, const void*);

}  // namespace gradual::cpu
