// Strided loops over up to four operands, in blocks of one compute type. This header and loops.cpp hold the geometry,
// the loads, the rounding and the threads. A kernel provides its inner loop only, which is compiled for each compute
// type and not for combinations of dtypes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "../formats/convert.h"
#include "../support/parallel.h"
#include "../tensor/tensor.h"

namespace gradual::cpu {

inline constexpr int kMaxOperands = 4;
inline constexpr std::int64_t kBlock = 1024;   // elements of one buffer
inline constexpr std::int64_t kGrain = 32768;  // elements that a thread takes at a time, for any number of threads

// Calls f with a value of d's compute type: double, float or int64.
template <class F> decltype(auto) visit_compute(DType d, const F& f) {
  if (d == DType::f64) return f(double{});
  return is_floating(d) ? f(float{}) : f(std::int64_t{});
}
template <class F> decltype(auto) visit_floating(DType d, const F& f) {
  return d == DType::f64 ? f(double{}) : f(float{});
}

// Calls f with a value of the unsigned type of `width` bytes, for loops that move elements.
template <class F> void visit_width(std::size_t width, const F& f) {
  switch (width) {
    case 1: return f(std::uint8_t{});
    case 2: return f(std::uint16_t{});
    case 4: return f(std::uint32_t{});
    default: return f(std::uint64_t{});
  }
}

// One operand of a loop. Strides are in elements; a broadcast dim has stride 0.
struct View {
  char* data = nullptr;
  DType dtype = DType::f32;
  bool linear = false;    // element i of the loop is data[i]
  bool constant = false;  // one element for the whole loop
  std::int64_t strides[kMaxDims];
};

// The dims of a loop without those of size 1. Adjacent dims are merged; the last one is innermost.
struct Loop {
  int ndim = 0;
  int operands = 0;
  std::int64_t numel = 1;
  std::int64_t sizes[kMaxDims];
  View view[kMaxOperands];

  // The number of elements of the block that starts at `position`: part of a long row, or several short rows.
  std::int64_t block(std::int64_t position, std::int64_t end) const;
};

// Drops dims of size 1 and merges neighbours. If `order` is set, sorts the dims by the strides of the first operand.
void simplify(Loop& loop, bool order);
// A loop over `sizes`, to which the operands are broadcast. An undefined operand has no data and strides of 0. The
// order is row-major or that of the first operand's memory.
Loop make_loop(const Shape& sizes, std::span<const Tensor* const> operands, bool row_major);

// The offset of the loop's element `position` from the operand's data, in elements.
std::int64_t offset_of(const Loop& loop, int operand, std::int64_t position);
// The address of elements [position, position + n) if they are adjacent in memory, else null.
char* together(const Loop& loop, int operand, std::int64_t position, std::int64_t n);
// Copies elements without conversion from an operand to contiguous memory (gather) or back (scatter).
enum class Move : std::uint8_t { gather, scatter };
void move_raw(const Loop& loop, int operand, std::int64_t position, std::int64_t n, void* dense, Move move);

// Walks n elements from `position` in pieces of the innermost dim: f(the piece's offset in each operand, its length).
template <class F> void for_rows(const Loop& loop, std::int64_t position, std::int64_t n, const F& f) {
  const int last = loop.ndim - 1;
  std::int64_t index[kMaxDims];
  std::int64_t offsets[kMaxOperands] = {};
  const auto move = [&](int d, std::int64_t by) {
    for (int i = 0; i < loop.operands; ++i) offsets[i] += by * loop.view[i].strides[d];
  };
  for (int d = last; d >= 0; position /= loop.sizes[d--]) move(d, index[d] = position % loop.sizes[d]);
  for (std::int64_t length = 0; n > 0; n -= length) {
    length = std::min(loop.sizes[last] - index[last], n);
    f(offsets, length);
    move(last, length);
    index[last] += length;
    for (int d = last; d > 0 && index[d] == loop.sizes[d]; --d) {  // faster than divisions for short rows
      move(d, -std::exchange(index[d], 0));
      move(d - 1, 1);
      ++index[d - 1];
    }
  }
}

// Elements [position, position + n) of an operand as C, n <= kBlock: in place if they are adjacent elements of type C,
// else in `buffer`.
template <class C> const C* fetch(const Loop& loop, int operand, std::int64_t position, std::int64_t n, C* buffer) {
  alignas(64) std::uint64_t scratch[kBlock];
  const DType dtype = loop.view[operand].dtype;
  const char* p = together(loop, operand, position, n);
  if (dtype == dtype_of<C>) {
    if (p) return reinterpret_cast<const C*>(p);
    move_raw(loop, operand, position, n, buffer, Move::gather);
  } else {
    if (!p) move_raw(loop, operand, position, n, scratch, Move::gather);
    fetch_and_cast(dtype, p ? static_cast<const void*>(p) : scratch, 1, buffer, n);
  }
  return buffer;
}

// Blocks of a row-major tensor's elements as values of the compute type C: in place if the dtype is C's, else in the
// caller's buffer. C may also be the tensor's own narrow dtype, such as BFloat16. An undefined tensor gives null. The
// tensor must outlive this object.
template <class C> class Dense {
 public:
  explicit Dense(const Tensor& t) {
    if (t.defined()) {
      data_ = static_cast<char*>(t.raw());
      dtype_ = t.dtype();
    }
  }
  explicit operator bool() const { return data_ != nullptr; }
  void* at(std::int64_t i) const { return data_ + i * static_cast<std::int64_t>(size_of(dtype_)); }
  // The memory for results from element i on; it is not loaded.
  C* target(std::int64_t i, C* buffer) const {
    return *this && dtype_ == dtype_of<C> ? static_cast<C*>(at(i)) : buffer;
  }
  C* load(std::int64_t i, std::int64_t n, C* buffer) const {
    if (!*this) return nullptr;
    if constexpr (std::is_arithmetic_v<C>)
      if (dtype_ != dtype_of<C>) gradual::fetch_and_cast(dtype_, at(i), 1, buffer, n);
    return target(i, buffer);
  }
  // Rounds `values` into the tensor, unless they are the tensor's memory already.
  void store(const C* values, std::int64_t i, std::int64_t n, CastCounts* counts) const {
    if constexpr (std::is_arithmetic_v<C>)
      if (*this && values != at(i)) gradual::cast_and_store(dtype_, values, at(i), 1, n, counts);
  }

 private:
  char* data_ = nullptr;
  DType dtype_ = dtype_of<C>;
};

// True if two tensors of the same sizes have no gaps and the same order of elements in memory.
inline bool same_order(const Tensor& a, const Tensor& b) {
  return (a.is_contiguous() && b.is_contiguous()) || (is_dense(a.sizes(), a.strides()) && a.strides() == b.strides());
}
// Adds a chunk's counts to *into. Any thread may call it.
void merge_counts(CastCounts* into, const CastCounts& chunk);
// The counts of this thread's scope for a store of `from` into `to`; null without a scope or if the store is exact.
CastCounts* counts_for(DType from, DType to);
// parallel_for over chunks that store `from` into `to`: f(begin, end, the chunk's counts or null).
template <class F> void parallel_counted(std::int64_t n, std::int64_t grain, DType from, DType to, const F& f) {
  CastCounts* const total = counts_for(from, to);
  parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    CastCounts chunk;
    f(begin, end, total ? &chunk : nullptr);
    if (total) merge_counts(total, chunk);
  });
}

}  // namespace gradual::cpu
