// Strided loops over up to four operands, in blocks of one compute type. Geometry, loading, rounding and threads live
// here and in loops.cpp once; a kernel brings only its inner loop, compiled for the compute type and never for
// combinations of dtypes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "../convert.h"
#include "../tensor.h"

namespace gradual::cpu {

inline constexpr int kMaxOperands = 4;
inline constexpr std::int64_t kBlock = 1024;   // elements that pass through one buffer
inline constexpr std::int64_t kGrain = 32768;  // elements that one thread takes at a time; fixed, so bits are too

// Calls f with a value of the type that elements of dtype d are computed in: double, float or int64.
template <class F> decltype(auto) visit_compute(DType d, const F& f) {
  if (d == DType::f64) return f(double{});
  return is_floating(d) ? f(float{}) : f(std::int64_t{});
}
template <class F> decltype(auto) visit_floating(DType d, const F& f) {
  return d == DType::f64 ? f(double{}) : f(float{});
}

inline void load(DType d, const void* p, std::int64_t stride, float* out, std::int64_t n) {
  load_to_float(d, p, stride, out, n);
}
inline void load(DType d, const void* p, std::int64_t stride, double* out, std::int64_t n) {
  load_to_double(d, p, stride, out, n);
}
inline void load(DType d, const void* p, std::int64_t stride, std::int64_t* out, std::int64_t n) {
  load_to_i64(d, p, stride, out, n);
}
inline void store(DType d, const float* in, void* p, std::int64_t stride, std::int64_t n, CastCounts* counts) {
  store_from_float(d, in, p, stride, n, counts);
}
inline void store(DType d, const double* in, void* p, std::int64_t stride, std::int64_t n, CastCounts* counts) {
  store_from_double(d, in, p, stride, n, counts);
}
inline void store(DType d, const std::int64_t* in, void* p, std::int64_t stride, std::int64_t n, CastCounts* counts) {
  store_from_i64(d, in, p, stride, n, counts);
}

// Calls f with the unsigned type of an element's width: moving elements needs no more.
template <class F> void visit_width(std::size_t width, const F& f) {
  switch (width) {
    case 1: return f(std::uint8_t{});
    case 2: return f(std::uint16_t{});
    case 4: return f(std::uint32_t{});
    default: return f(std::uint64_t{});
  }
}

// One operand as a loop sees it. Strides are in elements, 0 where it is broadcast.
struct View {
  char* data = nullptr;
  DType dtype = DType::f32;
  bool linear = false;    // element i of the loop is data[i]
  bool constant = false;  // one element for the whole loop
  std::int64_t strides[kMaxDims];
};

// Dims without those of size 1, neighbours merged, the last one innermost.
struct Loop {
  int ndim = 0;
  int operands = 0;
  std::int64_t numel = 1;
  std::int64_t sizes[kMaxDims];
  View view[kMaxOperands];

  // Elements of the block that starts at `position`: long rows are kept whole or cut, short ones are put together.
  std::int64_t block(std::int64_t position, std::int64_t end) const;
};

// Describes one operand before dims are merged: `tensor` broadcast to `sizes`.
View make_view(const Tensor& tensor, const Shape& sizes);
// Drops and merges dims; where `order` is set, sorts them by the strides of the first operand.
void simplify(Loop& loop, bool order);
// A loop over `sizes` with views[0] written. Operands that all are dense and of one shape make one dim.
Loop make_loop(const Tensor& out, const Tensor* const* inputs, int n);

// Where element `position` of the loop lies, in elements from view.data.
std::int64_t offset_of(const Loop& loop, const std::int64_t* strides, std::int64_t position);
// Walks the rows of [position, position + n): f(each operand's offset of the piece, its length).
template <class F> void for_rows(const Loop& loop, std::int64_t position, std::int64_t n, const F& f) {
  const int last = loop.ndim - 1;
  std::int64_t index[kMaxDims];
  std::int64_t offsets[kMaxOperands];
  for (int i = 0; i < loop.operands; ++i) offsets[i] = offset_of(loop, loop.view[i].strides, position);
  for (int d = last; d >= 0; --d) {
    index[d] = position % loop.sizes[d];
    position /= loop.sizes[d];
  }
  while (n > 0) {
    const std::int64_t length = std::min(loop.sizes[last] - index[last], n);
    f(static_cast<const std::int64_t*>(offsets), length);
    n -= length;
    index[last] += length;
    for (int i = 0; i < loop.operands; ++i) offsets[i] += length * loop.view[i].strides[last];
    for (int d = last; d > 0 && index[d] == loop.sizes[d]; --d) {
      for (int i = 0; i < loop.operands; ++i)
        offsets[i] += loop.view[i].strides[d - 1] - loop.sizes[d] * loop.view[i].strides[d];
      index[d] = 0;
      ++index[d - 1];
    }
  }
}
// The same for one operand: f(offset of the piece, its length, elements done).
template <class F>
void for_pieces(const Loop& loop, const std::int64_t* strides, std::int64_t position, std::int64_t n, const F& f) {
  const int last = loop.ndim - 1;
  std::int64_t index[kMaxDims];
  std::int64_t offset = offset_of(loop, strides, position);
  for (int d = last; d >= 0; --d) {
    index[d] = position % loop.sizes[d];
    position /= loop.sizes[d];
  }
  for (std::int64_t done = 0; done < n;) {
    const std::int64_t length = std::min(loop.sizes[last] - index[last], n - done);
    f(offset, length, done);
    done += length;
    offset += length * strides[last];
    index[last] += length;
    for (int d = last; d > 0 && index[d] == loop.sizes[d]; --d) {
      offset += strides[d - 1] - loop.sizes[d] * strides[d];
      index[d] = 0;
      ++index[d - 1];
    }
  }
}

// Elements [position, position + n) of an operand: in place where they lie together in type C, or in `buffer` (n
// elements). `scratch` holds n elements of any dtype.
template <class C>
const C* fetch(const Loop& loop, const View& view, std::int64_t position, std::int64_t n, C* buffer, void* scratch);
// Rounds n elements to an operand. Integers wrap where the dtype is too small, as they do in C.
template <class C>
void put(const Loop& loop, const View& view, std::int64_t position, std::int64_t n, const C* values, void* scratch,
         CastCounts* counts);
// Where elements [position, position + n) lie side by side, their address; else null.
char* together(const Loop& loop, const View& view, std::int64_t position, std::int64_t n);
// Moves elements as they are between an operand and contiguous memory.
void gather_raw(const Loop& loop, const View& view, std::int64_t position, std::int64_t n, void* out);
void scatter_raw(const Loop& loop, const View& view, std::int64_t position, std::int64_t n, const void* in);

// Adds a chunk's counts to those of the calling thread's scope; any thread may call it.
void merge_counts(CastCounts* into, const CastCounts& chunk);
// The current scope's counts for a store of type `from` into `to`, or null where nothing can be lost.
CastCounts* counts_for(DType from, DType to);

// out[i] = f(in[0][i], in[1][i], ..) for n elements. out may be one of the inputs.
template <class C> using BlockFn = void (*)(const void* functor, C* out, const C* const* in, std::int64_t n);

// Runs fn over out and the inputs. An undefined input is the number `scalar`.
template <class C>
void run_elementwise(Tensor& out, const Tensor* const* inputs, int n, C scalar, BlockFn<C> fn, const void* functor);

// The inner loop of a functor of N arguments.
template <class C, int N, class F> void block_of(const void* functor, C* out, const C* const* in, std::int64_t n) {
  const F f = *static_cast<const F*>(functor);
  const C* a = in[0];
  if constexpr (N == 1) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) out[i] = f(a[i]);
  } else if constexpr (N == 2) {
    const C* b = in[1];
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) out[i] = f(a[i], b[i]);
  } else {
    const C* b = in[1];
    const C* c = in[2];
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) out[i] = f(a[i], b[i], c[i]);
  }
}

}  // namespace gradual::cpu
